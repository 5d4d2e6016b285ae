"""The package that students install: manifests, suites, meters, commands."""
