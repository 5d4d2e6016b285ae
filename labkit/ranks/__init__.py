"""Ranks that share one sequence (Lab 11): threads that take turns, or processes over gloo."""
