"""`lab chat`: a real language model answers through the functions of a lab."""
