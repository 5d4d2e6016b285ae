"""A run's memory as a picture to walk through: every tensor alive, operator by operator, with the line behind it."""
