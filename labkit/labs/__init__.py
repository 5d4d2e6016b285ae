"""The labs: reading their manifests, finding their folders."""
