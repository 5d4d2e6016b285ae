"""Reads the labs: their manifests, and where they lie."""
