"""The points rule, and what is stored between runs."""

from __future__ import annotations

import msgspec
import pytest

from labkit.suite.messages import WHY_CAPPED, run_lines
from labkit.suite.results import (
    Failure,
    Kind,
    State,
    TaskResult,
    TestResult,
    add_up,
    lab_points,
    load,
    next_task,
    store,
)
from tests.student import results, student_lab

FIRST = "standard_attention"


@pytest.fixture
def lab(tmp_path):
    """Lab 01 untouched, in a separate folder."""
    return student_lab(tmp_path)


def points(lab, given):
    """The points of all tasks, and the run's lines."""
    return lab_points(lab, add_up(lab, given)), run_lines(lab, given)


def test_points_are_the_share_of_tests_that_pass(lab):
    added = add_up(lab, results(lab, standard_attention=10, measure_attention_memory=5, analyze_scaling=0))
    assert added[FIRST] == TaskResult(FIRST, 10, 10, started=True)
    assert added["profile_memory_scaling"] == TaskResult("profile_memory_scaling", 0, 10, False, most_share=0.5)
    assert lab_points(lab, added) == 20 + 5
    assert next_task(lab, added).name == "measure_attention_memory"
    assert [name for name, result in added.items() if result.done] == [FIRST]


@pytest.mark.parametrize(
    ("failed", "earned"),
    [
        ({}, 20),
        ({Kind.EXACT: 1}, 10),
        ({Kind.EXACT: 15}, 20 * 5 / 20),
        ({Kind.ROBUST: 1}, 15),
        ({Kind.COST: 2, Kind.REFUSES: 1}, 15),
        ({Kind.REFUSES: 1}, 19),
        ({Kind.ROBUST: 1, Kind.EXACT: 1}, 10),
        ({Kind.UNCHANGED: 1}, 15),
        ({Kind.MEMORY: 1, Kind.COST: 1}, 15),
    ],
    ids=str,
)
def test_failures_cap_points_by_kind(lab, failed, earned):
    kinds = [kind for kind, n in failed.items() for _ in range(n)]
    given = [TestResult(f"test_{i}", FIRST, State.WRONG, kind=kind) for i, kind in enumerate(kinds)]
    given += [TestResult(f"test_right_{i}", FIRST, State.PASSED) for i in range(20 - len(given))]
    found, lines = points(lab, given)
    assert found == earned
    why = {10: [WHY_CAPPED[Kind.EXACT]], 15: [text for kind, text in WHY_CAPPED.items() if kind in kinds]}
    expected = [f"  at most {earned:g} of its 20 points while {' and '.join(why[earned])}"] if earned in why else []
    assert [line for line in lines if "at most" in line] == expected


def test_memory_costs_what_the_manifest_says(lab):
    """In a task about memory, code that exceeds a memory limit earns a quarter; other costs are as everywhere."""
    task = msgspec.structs.replace(lab.tasks[0], memory_share=0.25)
    lab = msgspec.structs.replace(lab, tasks=(task, *lab.tasks[1:]))
    right = [TestResult(f"test_{i}", FIRST, State.PASSED) for i in range(19)]
    for kind, earned in ((Kind.MEMORY, 5), (Kind.COST, 15)):
        found, lines = points(lab, [*right, TestResult("test_far", FIRST, State.WRONG, kind=kind)])
        assert found == earned
        assert f"  at most {earned} of its 20 points while {WHY_CAPPED[kind]}" in lines


def test_no_points_before_a_random_input_is_right(lab):
    """Code that only repeats the examples, or does nothing, passes some tests."""
    given = [TestResult(f"test_{i}", FIRST, State.PASSED) for i in range(10)]
    given.append(TestResult("test_left_alone", FIRST, State.PASSED, drawn=True, kind=Kind.ROBUST))
    given.append(TestResult("test_random", FIRST, State.WRONG, Failure("off"), drawn=True))
    found, lines = points(lab, given)
    assert found == 0
    assert "  no points yet: no result on inputs drawn at random is right" in lines
    assert "0 of 20 points" in "\n".join(lines)
    assert points(lab, [*given, TestResult("test_another", FIRST, State.PASSED, drawn=True)])[0] == 10


def test_no_points_while_a_library_does_the_work(lab):
    given = [TestResult(f"test_{i}", FIRST, State.PASSED, drawn=True) for i in range(9)]
    given += [TestResult("test_edge", FIRST, State.WRONG, Failure(f"edge {i}"), kind=Kind.ROBUST) for i in range(3)]
    given.append(TestResult("test_memory", FIRST, State.WRONG, Failure("calls another's"), kind=Kind.BORROWED))
    found, lines = points(lab, given)
    assert found == 0
    assert "  no points: a library does the work that is yours to write" in lines
    assert "      calls another's" in lines, "what takes all points away is shown first"


def test_results_are_stored_by_task(lab):
    assert load(lab) == {}
    store(lab, add_up(lab, results(lab, standard_attention=3)))
    one_task = [each for each in results(lab, estimate_attention_memory=10) if each.task == "estimate_attention_memory"]
    store(lab, add_up(lab, one_task))
    stored = load(lab)
    assert (stored[FIRST].passed, stored["estimate_attention_memory"].passed) == (3, 10)
    assert len(stored) == len(lab.tasks)


@pytest.mark.parametrize("text", ["", "{", "[{}]", '[{"task": 1}]'])
def test_a_damaged_file_holds_no_results(lab, text):
    store(lab, {})
    (lab.folder.parent.parent / ".lab" / "lab01.json").write_text(text, encoding="utf-8")
    assert load(lab) == {}
