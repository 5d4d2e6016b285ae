"""Caches of fewer bytes: latent vectors, few bits, sinks and windows, and what a budget buys."""
