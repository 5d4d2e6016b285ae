"""What a course looks like once it is recorded, as data: for tests that compare two of them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from labstaff.course.grade import grade
from tests.labstaff.course.own_word import LAB

FIRST = LAB.tasks[0].name
LENGTH_OF_ID = 32


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


def everything(course: Path) -> dict[str, object]:
    """All rows of the gradebook and all files that nbgrader has written, with their modes.

    nbgrader draws a row's id at random: it is named by the row's place in its table.
    """
    found: dict[str, object] = {}
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        rows = {name: database.execute(f"select * from '{name}' order by rowid").fetchall() for name in tables}
    places = {
        row[0]: f"{name} {n}" for name in tables for n, row in enumerate(rows[name]) if len(str(row[0])) == LENGTH_OF_ID
    }
    for name in tables:
        found[name] = [tuple(places.get(value, value) for value in row) for row in rows[name]]
    for folder in ("autograded", "feedback"):
        for path in (course / folder).rglob("*"):
            if path.is_file():
                found[str(path.relative_to(course))] = (path.read_bytes(), path.stat().st_mode)
    return found
