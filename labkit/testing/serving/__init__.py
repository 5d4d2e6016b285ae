"""A server's blocks: how many fit, and what is held in few bits."""
