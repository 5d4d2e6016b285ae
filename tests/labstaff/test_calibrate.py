"""Calibration: the worst correct submission and the nearest mistake of each limit."""

from __future__ import annotations

from labstaff.calibrate import Job, Limit, Result, report

L, O = (Limit("TestA::test_b", what, "tolerance") for what in ("l of n", "o"))


def result(name, shares, *, correct=True, failed=()):
    return Result(Job(name, (), correct=correct), list(failed), shares)


def test_the_worst_correct_submission_and_the_nearest_mistake_count():
    results = [
        result("solution, seed 1", {L: 0.5, O: 0.1}),
        result("solution, seed 2", {L: 0.8}, failed=["test_b: wrong"]),
        result("far", {L: 50.0, O: 1.1}, correct=False),
        result("near", {L: 1.2}, correct=False),
    ]
    assert list(report(results)) == [
        "refused: solution, seed 2: test_b: wrong",
        "0.80 used by solution, seed 2: TestA::test_b l of n tolerance",
        "0.10 used by solution, seed 1: TestA::test_b o tolerance",
        "1.20 exceeded by near: TestA::test_b l of n tolerance",
        "50.00 exceeded by far: TestA::test_b l of n tolerance",
    ]
