"""What is kept beside each solution to try its suite on: other right answers, and mistakes."""
