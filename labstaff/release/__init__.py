"""Writes the students' tree, searched for leaks."""
