"""What labs, tests, graders and docs lean on: catalog, finder, suite, meters, board."""
