"""Reads the grades of a course out of nbgrader's gradebook: all that is known of one student's submission at once."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.labs.catalog import UnknownLab, find_lab

GRADEBOOK = "gradebook.db"


class NoGradebook(Exception):
    """There is no gradebook that can be used where one was looked for; the message says where, and what is wrong."""


@dataclass(frozen=True)
class Graded:
    """What the gradebook says of one assignment and student; of one who handed nothing in, all points are 0.

    `cells` maps each task and question, in the manifest's order, to its points, as a grader has left them; `waiting`
    counts those that wait for a person. `recorded` is whether anything was graded yet. Times are UTC, as nbgrader
    keeps them; `due` is the assignment's own, without the student's extension.
    """

    assignment: str
    student: str
    last_name: str = ""
    first_name: str = ""
    email: str = ""
    due: datetime.datetime | None = None
    extension: datetime.timedelta = datetime.timedelta()
    timestamp: datetime.datetime | None = None
    recorded: bool = False
    flagged: bool = False
    waiting: int = 0
    cells: dict[str, float] = field(default_factory=dict)
    raw_score: float = 0.0
    penalty: float = 0.0
    max_score: float = 0.0

    @property
    def score(self) -> float:
        """The points after the penalty."""
        return max(0.0, self.raw_score - self.penalty)

    @property
    def extension_days(self) -> float:
        """The extension in days."""
        return self.extension / datetime.timedelta(days=1)

    @property
    def lateness(self) -> datetime.timedelta:
        """How long after the due date it was handed in, before any extension; 0 where one of the times is not known."""
        if self.due is None or self.timestamp is None:
            return datetime.timedelta()
        return max(self.timestamp - self.due, datetime.timedelta())


@contextlib.contextmanager
def opened(course: Path) -> Iterator[Any]:
    """nbgrader's own `Gradebook` of the course in the folder `course`.

    Raises:
        NoGradebook: there is none, or it cannot be read or, in the body, written.
    """
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import DatabaseError

    if not (course / GRADEBOOK).is_file():
        raise NoGradebook(f"{course} holds no {GRADEBOOK}: name the folder that `lab course` made")
    require_readable(course)
    try:
        with Gradebook(f"sqlite:///{course / GRADEBOOK}") as gradebook:
            yield gradebook
    except DatabaseError as error:
        raise NoGradebook(f"{course / GRADEBOOK}: {error.orig}") from None


def require_readable(course: Path) -> None:
    """Nothing, where the course's gradebook is one of nbgrader's or is not there yet.

    Raises:
        NoGradebook: what lies there is none.
    """
    path = course / GRADEBOOK
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("select name from assignment limit 1")
    except sqlite3.DatabaseError as error:
        remedy = "put a copy back, or move it away: what was judged is recorded anew, what was given by hand is not"
        raise NoGradebook(f"{path} is no gradebook of nbgrader's ({error}): {remedy}") from None


def grades(
    gradebook: Any, assignments: Collection[str] = (), students: Collection[str] = ()
) -> Iterator[tuple[Any, list[Graded]]]:
    """Each of nbgrader's assignments with the grades of every student that it knows, by last name as nbgrader sorts.

    Args:
        assignments, students: those wanted; all when empty.
    """
    for assignment in gradebook.assignments:
        if not assignments or assignment.name in assignments:
            wanted = [each for each in gradebook.students if not students or each.id in students]
            yield assignment, [_graded(gradebook, assignment, student) for student in wanted]


def cells_of(assignment: Any) -> dict[str, float]:
    """The assignment's tasks and questions with their points: the manifest's in its order, then what else there is."""
    points = {cell.name: float(cell.max_score) for notebook in assignment.notebooks for cell in notebook.grade_cells}
    with contextlib.suppress(UnknownLab):
        lab = find_lab(assignment.name)
        ordered = [name for name in (*(t.name for t in lab.tasks), *(q.id for q in lab.questions)) if name in points]
        return {name: points[name] for name in dict.fromkeys([*ordered, *points])}
    return points


def _graded(gradebook: Any, assignment: Any, student: Any) -> Graded:
    from nbgrader.api import MissingEntry

    names = {name: getattr(student, name) or "" for name in ("last_name", "first_name", "email")}
    cells = dict.fromkeys(cells_of(assignment), 0.0)
    known = {"due": assignment.duedate, "max_score": float(assignment.max_score), **names}
    try:
        submission = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return Graded(assignment.name, student.id, cells=cells, **known)
    given = [grade for notebook in submission.notebooks for grade in notebook.grades]
    recorded = any(grade.auto_score is not None or grade.manual_score is not None for grade in given)
    return Graded(
        assignment.name,
        student.id,
        extension=submission.extension or datetime.timedelta(),
        timestamp=submission.timestamp,
        recorded=recorded,
        flagged=any(notebook.flagged for notebook in submission.notebooks),
        waiting=sum(bool(grade.needs_manual_grade) for grade in given) if recorded else 0,
        cells=cells | {grade.name: float(grade.score) for grade in given if grade.name in cells},
        raw_score=float(submission.score),
        penalty=float(submission.late_submission_penalty or 0.0),
        **known,
    )
