"""What a student calls: the board, check, hints, watch."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""
