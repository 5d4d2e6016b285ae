"""Lab 13's suite."""
