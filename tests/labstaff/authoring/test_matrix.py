"""The recorded matrix of mistakes: complete, and in agreement with what each mistake says must find it."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs
from labstaff.authoring.matrix import Row, affected_classes, recorded, suite_tests, unneeded, written
from labstaff.authoring.mistakes import find_mistake, mistakes_of

LABS = find_labs()
by_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])


@by_lab
def test_every_mistake_has_a_row_and_every_row_is_of_a_mistake(lab):
    """A new mistake's row: `python -m labstaff.authoring.matrix --missing`."""
    names = {mistake.name: mistake.task for mistake in mistakes_of(lab)}
    assert {name: row.task for name, row in recorded(lab).items()} == names


@by_lab
def test_each_mistake_is_found_by_a_test_of_its_task(lab):
    classes = {task.name: task.tests for task in lab.tasks}
    for name, row in recorded(lab).items():
        assert row.found_by, name
        assert {test.split("::")[0] for test in row.found_by} == {classes[row.task]}, name
        assert set(row.found_by) <= set(row.fails), name
        assert row.message, name


@by_lab
def test_rows_name_tests_that_are_there(lab):
    named = {test for row in recorded(lab).values() for test in row.fails}
    assert named <= set(suite_tests(lab))


def test_a_row_is_read_as_it_was_written(tmp_path):
    rows = {
        "b_name": Row("task", ("TestA::test_b",), 'says "−inf"', ("TestA::test_b", "TestA::test_a")),
        "a_name": Row("t", (), "x", ()),
    }
    text = written(rows)
    assert text.index("[a_name]") < text.index("[b_name]")
    assert '    "TestA::test_b",\n    "TestA::test_a",\n' in text
    assert "−inf" in text


def test_only_classes_that_see_a_change_are_run():
    lab = next(lab for lab in LABS if lab.number == "04")
    changed = find_mistake(lab, "traffic_formula").source()
    assert "TestTiledTraffic" in affected_classes(lab, changed)
    assert "TestCountTiles" not in affected_classes(lab, changed)


def test_a_test_that_no_mistake_fails_is_unneeded(monkeypatch):
    lab = LABS[0]
    monkeypatch.setattr(
        "labstaff.authoring.matrix.recorded", lambda _lab: {"m": Row("t", (), "x", (suite_tests(lab)[0],))}
    )
    assert unneeded(lab) == suite_tests(lab)[1:]
