"""The commands of `lab` for students: board, check, review, hint, watch, kernel."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""
