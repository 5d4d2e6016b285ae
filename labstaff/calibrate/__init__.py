"""How much of each limit in the suites correct submissions use, and by how much mistakes exceed it."""
