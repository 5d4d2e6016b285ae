"""Runs a lab's suite: import finder, time limits, points, messages, source check."""
