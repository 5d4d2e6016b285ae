"""Serving for Lab 13: a tiny model, traces of requests, and an engine that checks a server and counts."""
