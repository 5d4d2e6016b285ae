"""What a student calls: the board, check, hints, watch."""
