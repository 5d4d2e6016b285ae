"""How close right answers come to each limit of a suite, and how far mistakes stay away, over many seeds."""
