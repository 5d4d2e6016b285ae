"""Reads a roster into nbgrader's gradebook: names, e-mail addresses, and extensions for extra time."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labstaff.course.accept import NOT_IN_NAMES
from labstaff.course.extensions import ONE_DAY
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.penalties import update_penalties
from labstaff.course.spreadsheet import SpreadsheetError, read_rows
from labstaff.grader.plain_text import one_line

HEADERS = {
    "id": ("id", "student_id", "student id", "username", "id number"),
    "lms_user_id": ("lms_user_id", "sis login id"),
    "name": ("name", "student", "full name"),
    "first_name": ("first_name", "first name"),
    "last_name": ("last_name", "last name", "surname"),
    "email": ("email", "e-mail", "email address"),
    "extra": ("extra time", "extra_time"),
}
"""The headers of each column, in any case: plain ones, and those of Canvas' gradebook and Moodle's participants."""

GRADEBOOK_FIELDS: tuple[str, ...] = ("first_name", "last_name", "email", "lms_user_id")

NO_STUDENT = "points possible"
"""How Canvas' row of maximum points begins."""

EXTRA = re.compile(r"\+?\s*(\d+(?:[.,]\d+)?)\s*(%|days?)?", re.IGNORECASE)
MAX_DAYS = 3650
MAX_NAMED = 20


class RosterError(ValueError):
    """A roster that cannot be used; the message names the file, the line and what was expected."""


@dataclass(frozen=True)
class Entry:
    """A student of the roster: the `id`, nbgrader's other fields that the file has, and days of extra time."""

    id: str
    fields: dict[str, str] = field(default_factory=dict)
    extra_days: float = 0.0


def read_roster(file: Path, lab_days: float | None = None) -> list[Entry]:
    """The students of a CSV file whose first line names its columns (`HEADERS`); other columns are ignored.

    Without a column of ids, the e-mail address is the id.

    Args:
        file: as a spreadsheet saves it: see `read_rows`.
        lab_days: the days from a lab's release to its due date, of which “+50 %” is a share.

    Raises:
        RosterError: the file cannot be read, a student has no id, or one that is another's.
    """
    try:
        header, *rows = read_rows(file) or [[]]
    except SpreadsheetError as error:
        raise RosterError(str(error)) from None
    columns = _columns([name.strip().lower() for name in header])
    if not {"id", "email"} & set(columns):
        raise RosterError(
            f"{file}: expected a column id or email in the first line, found {one_line(','.join(header))!r}"
        )
    entries: dict[str, Entry] = {}
    for number, row in enumerate(rows, 2):
        cells = {name: row[at].strip() for name, at in columns.items() if at < len(row)}
        if not any(cells.values()) or row[0].strip().lower() == NO_STUDENT:
            continue
        try:
            entry = _entry(cells, lab_days)
            if entry.id in entries:
                raise RosterError(f"the id {one_line(entry.id)!r} is there twice")
        except RosterError as error:
            raise RosterError(f"{file}: line {number}: {error}") from None
        entries[entry.id] = entry
    return list(entries.values())


def _columns(header: Sequence[str]) -> dict[str, int]:
    """Where each field is; of several columns that could be it, the first in `HEADERS`."""
    found = {}
    for name, headers in HEADERS.items():
        places = [header.index(each) for each in headers if each in header]
        if places:
            found[name] = places[0]
    return found


def _entry(cells: dict[str, str], lab_days: float | None) -> Entry:
    student = cells.get("id") or cells.get("email", "")
    if not student:
        raise RosterError("a student without an id")
    if one_line(student) != student or student.startswith(".") or set(student) & {*NOT_IN_NAMES, "/"}:
        raise RosterError(f"the id {one_line(student)!r} cannot be a folder's name for nbgrader")
    known: dict[str, str] = {name: cells[name] for name in GRADEBOOK_FIELDS if name in cells}
    if "name" in cells and "last_name" not in cells:
        known["first_name"], known["last_name"] = _two_names(cells["name"])
    return Entry(student, known, _extra_days(cells.get("extra", ""), lab_days))


def _two_names(name: str) -> tuple[str, str]:
    """First and last name of “Last, First” or “First Last”."""
    last, comma, first = name.partition(",")
    if not comma:
        first, _, last = name.rpartition(" ")
    return first.strip(), last.strip()


def _extra_days(text: str, lab_days: float | None) -> float:
    """The days of “+50 %”, “3 days” or “3”; 0 for an empty cell."""
    if not text:
        return 0.0
    match = EXTRA.fullmatch(text)
    if match is None:
        raise RosterError(f"extra time: expected “+50 %” or days, found {one_line(text)!r}")
    number = float(match[1].replace(",", "."))
    if match[2] == "%":
        if lab_days is None:
            raise RosterError(f"extra time {text!r} is a share of the days that a lab takes: add --lab-days 14")
        number = number * lab_days / 100
    if number > MAX_DAYS:
        raise RosterError(f"extra time: expected at most {MAX_DAYS} days, found {number:g}")
    return number


def apply_roster(course: Path, roster: Sequence[Entry], say: Callable[[str], None] = print) -> None:
    """Write the roster into the gradebook of `course`; `say` prints what is done.

    No student is removed. Extra time moves the due date of each lab that has one, unless it was moved before: an
    extension that a person has granted stays, and a line says so.

    Raises:
        NoGradebook: `course` is none.
    """
    without_due_date = set()
    with opened_gradebook(course) as gradebook:
        before = {student.id for student in gradebook.students}
        for entry in roster:
            gradebook.update_or_create_student(entry.id, **entry.fields)
        new = {entry.id for entry in roster} - before
        say(f"roster: {len(roster)} students, {len(new)} of them new")
        due = {each.name: each.duedate for each in gradebook.assignments}
        for entry in roster:
            for assignment in sorted(due) if entry.extra_days else ():
                if due[assignment] is None:
                    without_due_date.add(assignment)
                elif line := _extend(gradebook, assignment, entry):
                    say(line)
    update_penalties(course)
    if others := sorted(before - {entry.id for entry in roster}):
        say(f"not in the roster, and still in the gradebook: {listed(others)}: nbgrader db student remove ID --force")
    if without_due_date:
        say(
            f"extra time waits for the due dates of {', '.join(sorted(without_due_date))}: nbgrader db assignment add "
            "NAME --duedate …, then read the roster again"
        )


def listed(students: Sequence[str]) -> str:
    """The first `MAX_NAMED` of them, and how many more."""
    more = f" and {len(students) - MAX_NAMED} more" if len(students) > MAX_NAMED else ""
    return ", ".join(map(one_line, students[:MAX_NAMED])) + more


def _extend(gradebook: Any, assignment: str, entry: Entry) -> str:
    """Grant the extra time, and say so; "" where it was granted before."""
    with gradebook.db.no_autoflush:  # nbgrader puts a submission together piece by piece
        submission = gradebook.update_or_create_submission(assignment, entry.id)
    wanted, now = datetime.timedelta(days=entry.extra_days), submission.extension
    if now == wanted:
        return ""
    who = f"{one_line(entry.id)}: {assignment}"
    if now is not None:
        return f"{who}: its extension of {now / ONE_DAY:g} days stays; the roster says {entry.extra_days:g}"
    gradebook.grant_extension(assignment, entry.id, days=entry.extra_days)
    return f"{who}: due {entry.extra_days:g} days later"
