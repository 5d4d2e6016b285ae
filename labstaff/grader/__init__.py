"""Grades a submission in a sandbox, and reviews its source."""
