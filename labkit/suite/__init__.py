"""Runs a lab's suite: which answer it judges, its limits, its verdicts and their words."""
