"""What a course looks like once it is recorded, as data: for tests that compare two of them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from own_word import LAB

from labstaff.course.grade import grade

FIRST = LAB.tasks[0].name


def graded(course: Path, status: int = 0, **options) -> list[str]:
    """Grade, and return what was said."""
    said: list[str] = []
    assert grade(course / "submitted", [LAB], unsafe=True, say=said.append, **options) == status, "\n".join(said)
    return said


def gradebook(course: Path) -> dict[str, list[tuple]]:
    """All that the gradebook says, as data: scores by student and cell, and what is flagged."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        scores = database.execute(
            "select a.student_id, base_cell.name, auto_score, manual_score, extra_credit, needs_manual_grade "
            "from grade join base_cell on grade.cell_id = base_cell.id "
            "join submitted_notebook n on grade.notebook_id = n.id "
            "join submitted_assignment a on n.assignment_id = a.id"
        ).fetchall()
        submitted = database.execute(
            "select a.student_id, a.timestamp, n.flagged, n.late_submission_penalty "
            "from submitted_notebook n join submitted_assignment a on n.assignment_id = a.id"
        ).fetchall()
        assert len({row[:2] for row in scores}) == len(scores), "a grade stands twice"
        return {"scores": sorted(scores), "submitted": sorted(submitted, key=repr)}


def first_scores(course: Path) -> dict[str, float]:
    """What each student has in the first task."""
    return {student: score for student, cell, score, *_ in gradebook(course)["scores"] if cell == FIRST}


def shown(course: Path) -> dict[str, str]:
    """What formgrader and the students are shown: every notebook and page."""
    files = [*course.glob("autograded/*/*/report.ipynb"), *course.glob("feedback/*/*/report.html")]
    return {str(path.relative_to(course)): path.read_text(encoding="utf-8") for path in files}


def leftovers(folder: Path) -> list[str]:
    """What a killed grader may leave in a folder: whatever is hidden there and no lock."""
    found = [path.relative_to(folder) for path in folder.rglob(".*") if path.suffix != ".lock"]
    return sorted(str(path) for path in found)
