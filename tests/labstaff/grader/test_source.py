"""A submission's source is read in a child process with limits, and what its counters earn waits for a look."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.results import Failure, State, SuiteRun, TestResult
from labkit.suite.source_check import Finding
from labstaff.grader.grade import Grader, grade_now, graded_run
from labstaff.grader.imports import imported_modules
from labstaff.grader.source import MAX_FINDINGS, MAX_RUNS, NOT_READ, read_source
from labstaff.grader.submission import Submission

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
    found, runs, _ = read_source(text, LAB)
    assert len(found) <= MAX_FINDINGS + 1
    assert len(runs) <= MAX_RUNS


CHAINS = b"import x\n" + (b"x" + b".a" * 900 + b"\n") * 570


def test_what_takes_too_long_to_check_is_a_finding_and_runs():
    assert read_source(CHAINS, LAB, cpu_seconds=0.2) == ([NOT_READ], [], CHAINS)


def test_what_ends_the_child_is_a_finding(monkeypatch):
    monkeypatch.setattr("labstaff.grader.source.WAIT_SECONDS", 0.01)
    assert read_source(b"x = 1", LAB) == ([NOT_READ], [], b"x = 1")


def test_a_solution_is_read_whole():
    found, runs, text = read_source(solution_file(LAB).read_bytes(), LAB)
    assert found == []
    assert text == solution_file(LAB).read_bytes()
    assert len(runs) > 300


def test_findings_without_end_are_cut():
    found, *_ = read_source(b"".join(b"import missing_%d\n" % i for i in range(50)), LAB)
    assert [each.line for each in found] == list(range(1, MAX_FINDINGS + 2))
    assert found[-1].what == "and 30 more"


PASSED = TestResult("test_result", FORWARD.name, State.PASSED)
ODD = Finding(3, "imports ctypes")
SDPA = Finding(3, "flash_backward uses a library's own attention", (BACKWARD.name,))


def test_a_librarys_own_attention_earns_nothing_and_other_findings_are_shown():
    results = [TestResult("test_result", task.name, State.PASSED) for task in LAB.tasks]
    graded = graded_run(LAB, "key", SuiteRun(results, len(results)), [ODD, SDPA])
    assert graded.shares == {task.name: 0.0 if task is BACKWARD else 1.0 for task in LAB.tasks}
    assert graded.findings == ["line 3: imports ctypes", "line 3: flash_backward uses a library's own attention"]
    assert graded.flags == [f"{BACKWARD.name}: no points: {graded.findings[1]}"]


@pytest.mark.parametrize("state", [State.UNUSABLE, State.MISSING, State.NOT_STARTED])
def test_a_file_of_which_no_test_could_run_is_a_flag(state):
    results = [
        TestResult("test_result", task.name, state, Failure("it has a syntax error in line 3")) for task in LAB.tasks
    ]
    flag = "no test could run: it has a syntax error in line 3"
    expected = [] if state is State.NOT_STARTED else [flag]
    assert graded_run(LAB, "key", SuiteRun(results, len(results))).flags == expected
    assert graded_run(LAB, "key", SuiteRun([*results[1:], PASSED], len(results))).flags == []


def test_what_is_loaded_before_a_memory_limit_has_no_private_parts():
    """One of them held a list of 30 MiB: a submission named it, emptied it, and had that much more for itself."""
    source = (
        "if 0:\n    from torch.testing._internal import common\nimport torch._dynamo, numpy.linalg, torch, os, unknown"
    )
    assert imported_modules(source) == ["numpy.linalg", "os", "torch"]


BY_HAND = "import os\r\ndef main(): os.fork()\rif __name__ == '__main__':\n    main()\nx = 1"


@pytest.mark.parametrize("mark", ["", "\ufeff", "\ufeff\ufeff"])
def test_what_runs_is_what_was_read(mark, monkeypatch):
    """One line end and no mark, of which the worker would skip another than the check."""
    seen = []

    class Runner:
        def __init__(self, modules, unsafe):
            pass

        def run(self, lab, *options, **_):
            seen.append(Path(options[1], f"{LAB.module}.py").read_bytes())
            return SuiteRun([TestResult("test_it", FORWARD.name, State.PASSED)], 1)

        def close(self):
            pass

    monkeypatch.setattr("labstaff.grader.grade.SandboxedRunner", Runner)
    with Grader(unsafe=True) as grader:
        graded = grade_now(grader, Submission(LAB, (mark + BY_HAND).encode()), 1)
    assert seen == [b"pass\ndef main(): pass\nif __name__ == '__main__':\n    pass\nx = 1"]
    assert graded.findings == []


def test_what_is_no_text_was_not_checked():
    assert [each.what for each in read_source(b"x = '\xff'", LAB).findings] == [
        "is not UTF-8 text, and was not checked"
    ]
