"""Judges answers that nobody trusts: the suite runs here, the answer in a sandboxed process of its own."""
