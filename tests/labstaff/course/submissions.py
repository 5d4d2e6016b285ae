"""Submissions to a course of Lab 01, and a grader that takes no time: a comment says what a submission is worth."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from labkit.labs.catalog import find_lab
from labstaff.course.grade import grade
from labstaff.course.nbgrader import opened_gradebook
from labstaff.grader.results import GradedSubmission
from tests.student import LAB

NAME = LAB.folder.name
CODE = f"src/{LAB.module}.py"
WORTH = re.compile(rb"# points: (\d+)")


def answer(points: int) -> str:
    """Code that `graded_by_comment` gives so many points of the first task's."""
    return f"# points: {points}\n"


def graded_by_comment(self, submission, seed, source):
    """Replaces `Grader.grade`."""
    found = WORTH.search(submission.source)
    points = float(found[1]) if found else 0.0
    first, *others = LAB.tasks
    return GradedSubmission(
        NAME,
        submission.key,
        "graded",
        tests={f"{task.tests}::test_it": "passed" if task is first and points else "failed" for task in LAB.tasks},
        shares={first.name: points / first.points, **{task.name: 0.0 for task in others}},
        findings=[str(each) for each in source.findings],
    )


def hand_in(course: Path, student: str, source: str, change: Callable[[dict], object] | None = None) -> Path:
    """Hand in `source` and the released notebook with a change; returns the submission's folder."""
    folder = course / "submitted" / student / NAME
    shutil.copytree(course / "release" / NAME, folder, dirs_exist_ok=True)
    (folder / CODE).write_text(source, encoding="utf-8")
    if change:
        notebook = json.loads((folder / "report.ipynb").read_text(encoding="utf-8"))
        change(notebook)
        (folder / "report.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    return folder


def graded(course: Path, status: int = 0, **options) -> list[str]:
    """Grade, and return the printed lines."""
    printed: list[str] = []
    options = {"unsafe": True, **options}
    assert grade(course / "submitted", [find_lab(NAME)], say=printed.append, **options) == status, "\n".join(printed)
    return printed


def cell_of(notebook: dict, grade_id: str) -> dict:
    """The first cell with this grade_id."""
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def grade_by_hand(course: Path, student: str, **scores: float) -> None:
    """Type a score for each of these cells, as formgrader saves it."""
    with opened_gradebook(course) as gradebook:
        for cell, score in scores.items():
            grade = gradebook.find_grade(cell, "report", NAME, student)
            grade.manual_score, grade.needs_manual_grade = score, False
        gradebook.db.commit()


def answers(**texts: str) -> Callable[[dict], None]:
    """A change of a notebook: these written answers."""

    def change(notebook: dict) -> None:
        for cell, text in texts.items():
            cell_of(notebook, cell)["source"] = text

    return change
