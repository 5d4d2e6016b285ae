"""Calls in a child process: results, errors, and what takes too long or too much."""

from __future__ import annotations

import os
import re

import pytest

from labstaff.grader import bounded as module
from labstaff.grader.bounded import TooMuch, bounded


def test_results_and_errors_come_back_from_another_process_that_stays():
    assert bounded(os.getpid) == bounded(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match="invalid literal"):
        bounded(int, "x")


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (re.fullmatch, ("(a*)*b", "a" * 60), "0.2 s of CPU time"),
        (bytes, (3 << 30,), "2 GiB of memory"),
        (os._exit, (0,), "crashes its reader"),
    ],
    ids=["one endless call", "memory", "ended"],
)
def test_too_much_has_a_reason_and_the_next_call_works(function, arguments, why, monkeypatch):
    monkeypatch.setattr(module, "CPU_SECONDS", 0.2)
    with pytest.raises(TooMuch, match=why):
        bounded(function, *arguments)
    assert bounded(len, "abc") == 3
