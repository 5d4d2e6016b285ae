"""Grades many submissions of the labs and summarizes the results."""
