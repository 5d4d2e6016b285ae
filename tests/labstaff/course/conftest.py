"""A course to be graded at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labstaff.grader.grade import Grader
from tests.labstaff.course.submissions import answer, graded_by_comment, hand_in

POINTS = {"ann": 20, "bob": 10, "4711": 5}


@pytest.fixture
def course(made_course, tmp_path, monkeypatch) -> Path:
    """A course with three submissions, and a grader that reads their points from a comment."""
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    shutil.copytree(made_course, tmp_path / "course")
    for student, points in POINTS.items():
        hand_in(tmp_path / "course", student, answer(points))
    return tmp_path / "course"
