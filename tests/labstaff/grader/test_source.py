"""A submission's source is read in a child process with limits, and what its counters earn waits for a look."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.results import Kind, State, TestResult
from labkit.suite.review import Finding
from labstaff.grader.grade import of_submission
from labstaff.grader.results import GradedSubmission
from labstaff.grader.source import MOST_FINDINGS, MOST_RUNS, NOT_READ, read_source
from labstaff.grader.submission import Submission
from labstaff.grader.withheld import withheld_points

LAB = find_lab("05")
FORWARD, BACKWARD, FUNCTION = LAB.tasks

TEXTS = {
    "attributes": b"x = a" + b".b" * 25_000,
    "minus": b"-" * 500_000 + b"1",
    "brackets": b"x = " + b"[" * 90 + b"]" * 90 + b"\n" + b"(" * 300_000,
    "deep_else": b"".join(b" " * i + b"if x:\n" for i in range(90)) + b" " * 90 + b"pass\n",
    "format": b'f"' + b"{" * 50_000,
    "null": b"x = 1\x00",
    "no_utf8": b"x = '\xff\xfe'",
    "other_coding": b"# -*- coding: utf-7 -*-\nx = 1",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_is_read_within_bounds(text):
    found, runs = read_source(text, LAB)
    assert len(found) <= MOST_FINDINGS + 1
    assert len(runs) <= MOST_RUNS


CHAINS = b"import x\n" + (b"x" + b".a" * 900 + b"\n") * 570


def test_what_takes_the_review_too_long_is_a_finding():
    assert read_source(CHAINS, LAB, cpu_seconds=1) == ([NOT_READ], [])


def test_what_ends_the_child_is_a_finding(monkeypatch):
    monkeypatch.setattr("labstaff.grader.source.WAIT_SECONDS", 0.01)
    assert read_source(b"x = 1", LAB) == ([NOT_READ], [])


def test_a_solution_is_read_whole():
    found, runs = read_source(solution_file(LAB).read_bytes(), LAB)
    assert found == []
    assert len(runs) > 300


def test_findings_without_end_are_cut():
    found, _ = read_source(b"import ctypes\n" * 50, LAB)
    assert [each.line for each in found] == list(range(1, MOST_FINDINGS + 2))
    assert found[-1].what == "and 30 more"


RIGHT = {task.name: float(task.points) for task in LAB.tasks}
VERDICTS = [
    TestResult("test_result", FORWARD.name, State.PASSED),
    TestResult("test_memory", FORWARD.name, State.PASSED, kind=Kind.SMALL),
    TestResult("test_result", BACKWARD.name, State.PASSED),
    TestResult("test_outside", BACKWARD.name, State.PASSED, kind=Kind.SMALL, outside=True),
    TestResult("test_memory", FUNCTION.name, State.WRONG, kind=Kind.SMALL),
]
ODD = Finding(3, "imports ctypes")
SDPA = Finding(3, "flash_backward uses a library's own attention", (BACKWARD.name,))


@pytest.mark.parametrize(
    ("findings", "points", "withheld"),
    [
        ([], RIGHT, {}),
        ([ODD], RIGHT, {FORWARD.name: FORWARD.points / 4}),
        ([ODD], {**RIGHT, FORWARD.name: 0.7 * FORWARD.points}, {}),
        ([SDPA], RIGHT, {FORWARD.name: FORWARD.points / 4, BACKWARD.name: BACKWARD.points}),
    ],
    ids=["nothing found", "what a counter decides", "what no counter decides", "a library's own attention"],
)
def test_what_is_withheld(findings, points, withheld):
    assert withheld_points(LAB, findings, VERDICTS, points) == withheld


def test_a_look_releases_it():
    submission = Submission(LAB, b"import ctypes", flags=["conftest.py: left aside"])
    graded = GradedSubmission(
        "lab05", submission.key, "graded", tasks=RIGHT, findings=[str(ODD)], withheld={FORWARD.name: 6.25}
    )
    waiting = of_submission(graded, submission, ["another"])
    assert waiting.points == LAB.points - 6.25
    assert waiting.findings == ["line 3: imports ctypes"]
    released = of_submission(graded, submission, [submission.key])
    assert (released.points, released.findings, released.withheld) == (LAB.points, [], {})
    assert waiting.flags == released.flags == ["conftest.py: left aside"]
