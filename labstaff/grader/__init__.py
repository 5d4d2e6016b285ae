"""Grades submissions: the suite runs in a trusted process, the submission in a sandboxed worker."""
