"""The model answers of reviews: short, right about every right version, and finding nearly every wrong one."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs, review_assignment, solution_file
from labkit.review.file import read_review
from labkit.suite.source_check import check_source
from labstaff.authoring.mistakes import mistakes_of
from labstaff.review.__main__ import LEAST_FOUND, lines_allowed, n_lines, try_answer
from labstaff.review.versions import found_by, not_found

ANSWERS = {lab.label: lab for lab in find_labs() if solution_file(review_assignment(lab)).exists()}

SHARE = 16
"""Of the wrong versions, one in so many is run."""


def by_lab(function):
    """Run a test once for each lab that has a model answer."""
    return pytest.mark.parametrize("lab", ANSWERS.values(), ids=ANSWERS)(function)


@by_lab
def test_answer_is_short_and_has_tests_of_every_task(lab):
    file = solution_file(review_assignment(lab))
    assert n_lines(file) <= lines_allowed(lab)
    review = read_review(lab, file)
    assert review.begun == [task.name for task in lab.tasks]
    assert not review.stray


@by_lab
def test_answer_is_ordinary(lab):
    text = solution_file(review_assignment(lab)).read_text(encoding="utf-8")
    assert [str(finding) for finding in check_source(text, review_assignment(lab))] == []


@by_lab
def test_answer_was_tried_on_every_wrong_version(lab):
    """`python -m labstaff.review NN` writes both lists: which mistakes are found, and which are not asked for."""
    tried = [*found_by(lab), *not_found(lab)]
    assert sorted(tried) == sorted(mistake.name for mistake in mistakes_of(lab))
    assert len(found_by(lab)) >= LEAST_FOUND * len(tried)


@pytest.mark.slow
@by_lab
def test_answer_accepts_right_versions_and_finds_wrong_ones(lab):
    """Of the wrong ones every sixteenth, others in each lab: the command has run them all."""
    file = solution_file(review_assignment(lab))
    drawn = sorted(found_by(lab))[int(lab.number) % SHARE :: SHARE]
    tried = try_answer(lab, file, [task.name for task in lab.tasks], seeds=(0,), tests=found_by(lab), wrong=drawn)
    assert (tried.problems, tried.refusals, tried.missed) == ([], [], [])
