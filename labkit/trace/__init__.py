"""`lab trace`: a page of every tensor alive in a run, operator by operator, with the line that made it."""
