"""A server under test: a tiny model, traces of requests, and the engine that serves them and counts."""
