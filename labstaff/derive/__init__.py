"""Derives what students get from solutions/: stubs, reports, the map."""
