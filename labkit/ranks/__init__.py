"""Ranks that share one sequence: as threads that take turns here, as processes over gloo for real."""
