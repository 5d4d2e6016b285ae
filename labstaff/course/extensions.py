"""Moves due dates for students, in nbgrader's own field: an extension for a reason, or late days that everybody has."""

from __future__ import annotations

import datetime
import math
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.gradebook import opened
from labstaff.course.paths import SUBMITTED, Places
from labstaff.grader.plain_text import one_line

ONE_DAY = datetime.timedelta(days=1)


class CannotExtend(Exception):
    """Why a due date was not moved; the message says whose, and what to do first."""


def extend_all(course: Path, labs: Sequence[Lab], students: Sequence[str], days: float) -> list[str]:
    """Move the due date of `labs` for `students` by `days` from the lab's own; 0 takes an extension back.

    It may be granted before anything is handed in. All is done or nothing; returns a line for each.

    Raises:
        CannotExtend: a lab has no due date, the course does not know a student, or `days` is no number of days.
        NoGradebook: `course` is none.
    """
    if not 0 <= days <= 3650:
        raise CannotExtend(f"{days:g} days: name a number of days from the due date on, or 0 to take it back")
    with opened(course) as gradebook:
        due = {each.name: each.duedate for each in gradebook.assignments}
        known = {student.id for student in gradebook.students}
        for lab in labs:
            if due.get(lab.folder.name) is None:
                how = f"nbgrader db assignment add {lab.folder.name} --duedate '2027-03-01 23:59:00 UTC'"
                raise CannotExtend(f"{lab.folder.name} has no due date that could be moved: {how}")
        for student in students:
            if student not in known and not (course / SUBMITTED / one_line(student)).exists():
                raise CannotExtend(f"no student {one_line(student)!r}: nbgrader db student add makes one known")
        for lab in labs:
            for student in students:
                gradebook.update_or_create_student(student)
                with gradebook.db.no_autoflush:  # nbgrader puts a submission together piece by piece
                    gradebook.update_or_create_submission(lab.folder.name, student)
                _grant(course, gradebook, lab.folder.name, student, days)
    moved = f"due {days:g} days later" if days else "due as for everybody"
    return [f"{one_line(student)}: {lab.label}: {moved}" for lab in labs for student in students]


def spend_late_days(course: Path, students: Collection[str], late_days: int) -> list[str]:
    """Cover lateness by extensions of whole days, the earliest due date first, up to `late_days` a student in all labs.

    Extensions that were granted before count among them. Returns a line for each that was moved now.

    Args:
        students: whose; everybody's when empty.

    Raises:
        NoGradebook: `course` is none.
    """
    done = []
    with opened(course) as gradebook:
        for student, submissions in _submissions(gradebook, students):
            left = late_days - sum(_days(each.extension) for each in submissions)
            for each in submissions:
                spent = min(_days(_lateness(each)) - _days(each.extension), left)
                if spent > 0:
                    left -= spent
                    _grant(course, gradebook, each.name, student, _days(each.extension) + spent)
                    done.append(f"{one_line(student)}: {each.name}: {spent} late days spent, {left} left")
    return done


def extension_lines(course: Path, students: Collection[str]) -> list[str]:
    """A line for each student and lab with lateness or an extension.

    Raises:
        NoGradebook: `course` is none.
    """
    with opened(course) as gradebook:
        return [
            f"{one_line(student)}: {each.name}: {_lateness(each) / ONE_DAY:.2f} days late, "
            f"extension of {(each.extension or ONE_DAY * 0) / ONE_DAY:g} days"
            for student, submissions in _submissions(gradebook, students)
            for each in submissions
            if each.extension or _lateness(each)
        ]


def _grant(course: Path, gradebook: Any, assignment: str, student: str, days: float) -> None:
    """nbgrader works out the penalty when it autogrades: without its folder, the next `lab grade` has it do so."""
    gradebook.grant_extension(assignment, student, days=days)
    shutil.rmtree(Places(course, student, assignment).autograded, ignore_errors=True)


def _submissions(gradebook: Any, students: Collection[str]) -> list[tuple[str, list[Any]]]:
    """Each student's submissions, by due date."""
    chosen = sorted(student.id for student in gradebook.students if not students or student.id in students)
    everything = [each for assignment in gradebook.assignments for each in assignment.submissions]
    everything.sort(key=lambda each: (each.assignment.duedate or datetime.datetime.max, each.name))
    return [(student, [each for each in everything if each.student_id == student]) for student in chosen]


def _lateness(submission: Any) -> datetime.timedelta:
    """How long after the lab's own due date it was handed in."""
    due, time = submission.assignment.duedate, submission.timestamp
    return max(time - due, datetime.timedelta()) if due and time else datetime.timedelta()


def _days(time: datetime.timedelta | None) -> int:
    return math.ceil(time / ONE_DAY) if time else 0
