"""Judges answers that nobody trusts: the suite runs here, the answer in a sandboxed process of its own."""

from labkit.judge.judging import Judge, judge_submission
from labkit.judge.results import JudgedSubmission

__all__ = ["Judge", "JudgedSubmission", "judge_submission"]
