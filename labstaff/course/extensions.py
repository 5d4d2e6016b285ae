"""Grants extensions: moves due dates for students, in nbgrader's own field."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import SUBMITTED
from labstaff.course.penalties import update_penalties
from labstaff.grader.plain_text import one_line

ONE_DAY = datetime.timedelta(days=1)


class CannotExtend(Exception):
    """Why a due date was not moved; the message says whose, and what to do first."""


def extend_all(course: Path, labs: Sequence[Lab], students: Sequence[str], days: float) -> list[str]:
    """Move the due date of `labs` for `students` by `days` from the lab's own; 0 removes an extension.

    An extension may be granted before anything is submitted. All is done or nothing; returns a line for each.

    Raises:
        CannotExtend: a lab has no due date, or the course does not know a student.
        NoGradebook: `course` is none.
    """
    with opened_gradebook(course) as gradebook:
        due = {each.name: each.duedate for each in gradebook.assignments}
        known = {student.id for student in gradebook.students}
        for lab in labs:
            if due.get(lab.folder.name) is None:
                how = f"nbgrader db assignment add {lab.folder.name} --duedate '2027-03-01 23:59:00 UTC'"
                raise CannotExtend(f"{lab.folder.name} has no due date: {how}")
        for student in students:
            if student not in known and not (course / SUBMITTED / student).is_dir():
                raise CannotExtend(f"no student {one_line(student)!r}: add one with nbgrader db student add")
        for lab in labs:
            for student in students:
                gradebook.update_or_create_student(student)
                with gradebook.db.no_autoflush:  # nbgrader puts a submission together piece by piece
                    gradebook.update_or_create_submission(lab.folder.name, student)
                gradebook.grant_extension(lab.folder.name, student, days=days)
    update_penalties(course)
    moved = f"due {days:g} days later" if days else "due as for everybody"
    return [f"{one_line(student)}: {lab.label}: {moved}" for lab in labs for student in students]


def extension_lines(course: Path) -> list[str]:
    """A line for each late submission and each extension, sorted by student and lab.

    Raises:
        NoGradebook: `course` is none.
    """
    with opened_gradebook(course) as gradebook:
        submissions = [each for assignment in gradebook.assignments for each in assignment.submissions]
        return [
            f"{one_line(each.student_id)}: {each.name}: {_lateness(each) / ONE_DAY:.2f} days late, "
            f"extension of {(each.extension or ONE_DAY * 0) / ONE_DAY:g} days"
            for each in sorted(submissions, key=lambda each: (each.student_id, each.name))
            if each.extension or _lateness(each)
        ]


def _lateness(submission: Any) -> datetime.timedelta:
    """How long after the lab's own due date it was submitted."""
    due, time = submission.assignment.duedate, submission.timestamp
    return max(time - due, datetime.timedelta()) if due and time else datetime.timedelta()
