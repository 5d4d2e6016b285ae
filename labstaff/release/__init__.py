"""Writes the students' tree, after a search for leaks."""
