"""Linear attention: cases, the peaks of its forms, and the rows of a profile."""
