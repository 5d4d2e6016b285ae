"""Sliding windows, their tiles, a cache of their masks, and the audit of what they save."""
