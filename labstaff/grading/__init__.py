"""Judges many submissions at once, and says what an instructor wants to know of all of them together."""
