"""What the labs' tests lean on: references, tolerances, assertions that teach."""
