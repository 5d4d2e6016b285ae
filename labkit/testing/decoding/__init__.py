"""Decoding: caches and their bytes, shared heads, splits, pages and the slots of a server."""
