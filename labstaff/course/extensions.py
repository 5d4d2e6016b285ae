"""Moves due dates for students, in nbgrader's own field: an extension for a reason, or late days that everybody has."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.gradebook import Graded, grades, opened
from labstaff.course.paths import COMMANDS_LOCK, CONFIG_FILE, alone, submissions, why_not_recordable
from labstaff.grader.plain_text import one_line

ONE_DAY = datetime.timedelta(days=1)
MOST_DAYS = 3650


class CannotExtend(Exception):
    """Why a due date was not moved; the message says whose, and what to do first."""


def extend_all(course: Path, labs: Sequence[Lab], students: Sequence[str], days: float) -> list[str]:
    """Move the due date of `labs` for `students` by `days` from the lab's own; 0 takes an extension back.

    It may be granted before anything is handed in. All is done, or nothing; returns what was done, a line each.

    Raises:
        CannotExtend: a lab has no due date, the course does not know a student, or `days` is no number of days.
        NoGradebook: `course` is none.
    """
    if not 0 <= days <= MOST_DAYS:
        raise CannotExtend(f"{days:g} days: name a number of days from the due date on, or 0 to take it back")
    with opened(course) as gradebook, alone(course, COMMANDS_LOCK):
        dates = {each.name: each.duedate for each in gradebook.assignments}
        known = {student.id for student in gradebook.students}
        for lab in labs:
            name = lab.folder.name
            if dates.get(name) is None:
                how = f"nbgrader db assignment add {name} --duedate '2027-03-01 23:59:00 UTC'"
                raise CannotExtend(f"{name} has no due date that could be moved: {how}")
        for student in students:
            if student not in known and not _has_handed_in(course, student):
                how = "if it is not misspelt, nbgrader db student add makes it known"
                raise CannotExtend(f"the course knows no student {one_line(student)!r}: {how}")
        for lab in labs:
            for student in students:
                gradebook.update_or_create_student(student)
                with gradebook.db.no_autoflush:  # nbgrader puts a submission together piece by piece
                    gradebook.update_or_create_submission(lab.folder.name, student)
                gradebook.grant_extension(lab.folder.name, student, days=days)
    moved = f"due {days:g} days later" if days else "due as for everybody"
    return [f"{one_line(student)}: {lab.label}: {moved}" for lab in labs for student in students]


def spend_late_days(course: Path, students: Collection[str], late_days: int) -> list[str]:
    """Cover lateness by extensions of whole days, the earliest due date first, up to `late_days` a student in all labs.

    Extensions that were granted before count among them. What the course forgives as minutes of grace takes no day.
    Run again when more was handed in: it adds what is missing. Returns what was done, a line each.

    Args:
        students: whose; everybody's when empty.

    Raises:
        NoGradebook: `course` is none.
    """
    done = []
    with opened(course) as gradebook, alone(course, COMMANDS_LOCK):
        grace = datetime.timedelta(minutes=_grace_minutes(course))
        for student, mine in _by_student(gradebook, students).items():
            left = late_days - sum(math.ceil(each.extension_days) for each in mine)
            for each in sorted(mine, key=lambda each: (each.due or datetime.datetime.max, each.assignment)):
                needed = math.ceil((each.lateness - grace) / ONE_DAY) if each.lateness > grace else 0
                spent = min(needed - math.ceil(each.extension_days), left)
                if spent <= 0:
                    continue
                left -= spent
                days = math.ceil(each.extension_days) + spent
                gradebook.grant_extension(each.assignment, student, days=days)
                done.append(f"{one_line(student)}: {each.assignment}: {spent} late days spent, {left} left")
    return done


def extension_lines(course: Path, assignments: Collection[str], students: Collection[str]) -> list[str]:
    """Who was late or has an extension: a line for each student and lab.

    Raises:
        NoGradebook: `course` is none.
    """
    with opened(course) as gradebook:
        by_student = _by_student(gradebook, students)
    return [
        f"{one_line(student)}: {each.assignment}: {_told(each)}"
        for student, mine in by_student.items()
        for each in mine
        if (each.lateness or each.extension) and (not assignments or each.assignment in assignments)
    ]


def _told(graded: Graded) -> str:
    parts = []
    if graded.timestamp is not None:
        parts.append(f"handed in {graded.timestamp:%Y-%m-%d %H:%M} UTC")
    if graded.lateness:
        parts.append(f"{graded.lateness / ONE_DAY:.2f} days late")
    if graded.extension:
        parts.append(f"extension of {graded.extension_days:g} days")
    return ", ".join(parts)


def _by_student(gradebook: Any, students: Collection[str]) -> dict[str, list[Graded]]:
    found: dict[str, list[Graded]] = {}
    for _, of_assignment in grades(gradebook, (), students):
        for graded in of_assignment:
            found.setdefault(graded.student, []).append(graded)
    return dict(sorted(found.items()))


def _has_handed_in(course: Path, student: str) -> bool:
    return not why_not_recordable(student) and student in {place.student for place in submissions(course)}


def _grace_minutes(course: Path) -> float:
    """What `nbgrader_config.py` says of `c.LatePenalty.grace_minutes`."""
    from traitlets.config import PyFileConfigLoader

    from labstaff.course.plugins import LatePenalty

    config = PyFileConfigLoader(CONFIG_FILE, path=str(course)).load_config()
    return float(LatePenalty(config=config).grace_minutes)
