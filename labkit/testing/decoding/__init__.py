"""Decoding: heads that share keys, splits, paged caches, block managers."""
