"""What each solution has to try its suite on: alternative solutions and mistakes."""
