from __future__ import annotations

import pytest
from msgspec.structs import replace

from labkit.labs.catalog import find_lab
from labkit.suite.verdict import State, Verdict
from labkit.suite.words import run_lines
from tests.student import solution_text

FIRST, SECOND, THIRD = "standard_attention", "measure_attention_memory", "profile_memory_scaling"


@pytest.fixture
def lab(tmp_path):
    """Lab 01 with the solution as a student's file."""
    lab = replace(find_lab("01"), folder=tmp_path / "labs" / "lab01_memory_profiling")
    lab.answer_file.parent.mkdir(parents=True)
    lab.answer_file.write_text(solution_text(), encoding="utf-8")
    return lab


def wrong(task, test="test", line="off"):
    return Verdict(test, task, State.WRONG, (line,))


def test_a_task_that_runs_an_undone_one_refers_to_it(lab):
    estimate = lab.tasks[3].name
    lines = run_lines(lab, [wrong(FIRST), wrong(SECOND), wrong(THIRD), wrong(estimate)])
    assert [line for line in lines if "mend" in line] == [
        f"  your code for it runs {FIRST}, which is not right yet: mend {FIRST} first"
    ] * 2


def test_a_task_refers_to_none_that_is_done(lab):
    lines = run_lines(lab, [Verdict("test", FIRST, State.PASSED), wrong(SECOND), wrong(THIRD)])
    assert [line for line in lines if "mend" in line] == [
        f"  your code for it runs {SECOND}, which is not right yet: mend {SECOND} first"
    ]


def test_a_file_that_cannot_be_read_refers_to_none(lab):
    lab.answer_file.write_text("def (", encoding="utf-8")
    assert not [line for line in run_lines(lab, [wrong(FIRST), wrong(SECOND)]) if "mend" in line]


@pytest.mark.parametrize("everything", [False, True])
def test_failures_that_are_the_same_are_told_once(lab, everything):
    verdicts = [wrong(FIRST, f"test_a[{i}]", "TypeError") for i in range(22)]
    verdicts += [wrong(FIRST, f"test_b[{i}]", f"off by {i}") for i in range(4)]
    lines = run_lines(lab, verdicts, everything=everything)
    assert lines.count("      TypeError") == 1
    assert "      and 21 more tests: the same (test_a)" in lines
    assert ("  ✗ and 2 more of test_b (-v shows all)" in lines) != everything
    assert ("      off by 3" in lines) == everything
