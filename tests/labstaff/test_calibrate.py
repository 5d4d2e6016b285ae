"""Calibration: the worst correct submission and the nearest mistake of each limit."""

from __future__ import annotations

from labkit.labs.catalog import find_lab
from labstaff.calibrate.__main__ import Job, Limit, Result, near_lines, shares_of, write_table

LAB = find_lab("03")
L, O, TILES = (
    Limit("lab03", "TestA::test_b", what, unit)
    for what, unit in (("l of n", "tolerance"), ("o", "tolerance"), ("o", "tiles"))
)


def result(name, seed, shares, *, correct=True):
    return Result(Job(LAB, name, (), (), seed, correct), [] if correct else ["failed"], list(shares.items()))


def test_the_worst_correct_submission_and_the_nearest_mistake_count(tmp_path):
    limits = shares_of(
        [
            result("solution", 1, {L: 0.5, O: 0.1, TILES: 1.0}),
            result("solution", 2, {L: 0.8}),
            result("far", 1, {L: 50.0, O: 1.1}, correct=False),
            result("near", 1, {L: 1.2}, correct=False),
        ]
    )
    assert (limits[L].correct, limits[L].by) == (0.8, "solution, seed 2")
    assert (limits[L].mistaken, limits[L].mistake) == (1.2, "near, seed 1")
    assert limits[O].mistaken is None, "`far` is found by L, which it exceeds by more"
    lines = list(near_lines(limits))
    assert [line.split(":")[0] for line in lines] == ["tight", "near"], "all tiles were asked for"
    write_table(tmp_path / "limits.csv", limits)
    row = 'lab03,TestA::test_b,l of n,tolerance,0.800,"solution, seed 2",1.2,"near, seed 1"'
    assert row in (tmp_path / "limits.csv").read_text().splitlines()
