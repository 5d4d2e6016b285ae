"""Derives students' files from solutions/ and the manifests: stubs, reports, the course map."""
