"""The versions that `solutions/` holds, and the kind of each mistake."""

from __future__ import annotations

import ast

import pytest

from labkit.labs.catalog import find_lab, find_labs
from labkit.review.versions import Kind
from labstaff.authoring.mistakes import find_mistake, mistakes_of
from labstaff.review.versions import kind_of, marks_of, versions_of

LABS = find_labs()
FLASH = find_lab("05")


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_every_task_has_right_and_wrong_versions(lab):
    versions = versions_of(lab)
    assert len({version.name for version in versions}) == len(versions)
    assert sum(not version.is_right for version in versions) == len(mistakes_of(lab))
    for task in lab.tasks:
        assert {True, False} == {version.is_right for version in versions if task.name in version.tasks}
    for version in versions:
        ast.parse(version.source)
        assert version.is_right or (version.diff and len(version.tasks) == 1), version.name


def test_alternatives_are_for_the_tasks_that_they_change():
    tasks = {version.name: version.tasks for version in versions_of(FLASH) if version.is_right}
    assert tasks["solution"] == ("flash_forward", "flash_backward", "FlashAttention")
    assert tasks["lazy_gradients"] == ("FlashAttention",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("forward_without_scale", Kind.RESULTS),
        ("forward_divides_by_no_keys", Kind.EXTREMES),
        ("forward_shapes_unchecked", Kind.REFUSALS),
        ("apply_saves_weights", Kind.MEMORY),
        ("forward_blocks_swapped", Kind.WORK),
    ],
)
def test_kind_is_that_of_the_tests_that_find_it(name, kind):
    assert kind_of(find_mistake(FLASH, name), marks_of(FLASH)) == kind


def test_marks_of_classes_and_their_bases_count():
    marks = marks_of(find_lab("04"))
    assert any("cost" in each for each in marks.values())
    suites = {test.split("::")[0] for test in marks}
    assert {task.tests for task in find_lab("04").tasks} <= suites
