"""What `lab grade` refuses before it waits for anything or writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.grade import grade
from labstaff.grading.run import NothingToGrade
from tests.labstaff.course.submissions import CODE, NAME
from tests.student import LAB


@pytest.fixture
def course(tmp_path):
    """A course's folder, whose own folders look like those of students."""
    for student in ("submitted/ann", "release", "source", "accepted/ann"):
        (tmp_path / student / NAME / "src").mkdir(parents=True)
        (tmp_path / student / NAME / CODE).touch()
    (tmp_path / "nbgrader_config.py").touch()
    return tmp_path


def files(folder):
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("folder", [".", "release", "accepted", "submitted/ann", "none"])
def test_a_wrong_folder_is_refused_and_nothing_is_written(folder, course):
    before = files(course)
    with pytest.raises(NothingToGrade, match="STUDENT/LAB") as refused:
        grade((course / folder).resolve(), [LAB], unsafe=True)
    assert "\n" not in str(refused.value)
    if folder != "submitted/ann":
        assert str(course / "submitted") in str(refused.value)
    assert files(course) == before


def test_the_clone_is_refused():
    with pytest.raises(NothingToGrade, match="expected a folder of STUDENT/LAB folders"):
        grade(ROOT, [LAB], unsafe=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"table": "no/such/points.csv"}, "there is no folder no/such"), ({"gradescope": "x.json"}, "single submission")],
)
def test_arguments_are_checked_before_the_lock_is_waited_for(options, why, course, monkeypatch):
    (course / "submitted" / "bob" / NAME).mkdir(parents=True)
    monkeypatch.setattr("labstaff.course.grade.only_one", None)
    arguments = {name: Path(value) for name, value in options.items()}
    with pytest.raises(NothingToGrade, match=why):
        grade(course / "submitted", [LAB], unsafe=True, **arguments)
