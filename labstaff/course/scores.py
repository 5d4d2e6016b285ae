"""Reads the scores and comments that were typed into a file of answers, and writes them into nbgrader's gradebook.

Nothing is overwritten unseen. A row is refused where the answer, the score or the comment in the gradebook is no longer
what it was when the file was written.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.answers import DIGITS, AnswersError, number, present_score
from labstaff.course.grade import only_one
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import REPORT
from labstaff.course.penalties import update_penalties
from labstaff.course.spreadsheet import SpreadsheetError, read_rows
from labstaff.course.update import require_current
from labstaff.grader.plain_text import cell, long_cell, one_line

NEEDED = ("student", "score_before", "comment_before", "score", "comment", "version")
SCORE = re.compile(r"\d+(?:[.,]\d+)?", re.ASCII)
LONGEST_SHOWN = 60
TRAIL = "regrades.csv"
"""In the course's folder: a row for each score and comment that was read from a file, the newest last."""
TRAIL_COLUMNS = ("when", "who", "student", "lab", "question", "from", "to", "comment", "why")


class RowError(ValueError):
    """Why a row is refused."""


@dataclass(frozen=True)
class Change:
    """What a row changes in the gradebook, from the score `before`; a score or comment that is None stays."""

    student: str
    question: str
    before: float | None
    score: float | None
    comment: str | None

    def __str__(self) -> str:
        """For a person, in one line."""
        parts = [f"{one_line(self.student)}: {self.question}"]
        if self.score is not None:
            parts.append(f"{number(self.before) or 'no score'} → {number(self.score)}")
        if self.comment is not None:
            parts.append(f"comment “{one_line(self.comment, LONGEST_SHOWN)}”")
        return ": ".join(parts)


@dataclass(frozen=True)
class Scores:
    """A file's typed scores against the gradebook: what they change, and a line for each row that is refused."""

    changes: list[Change]
    refused: list[str]


def read_scores(course: Path, lab: Lab, file: Path) -> Scores:
    """What the scores and comments in `file` would change; an empty cell changes nothing. Nothing is written.

    Raises:
        AnswersError: the file cannot be read, or is none that `lab answers` wrote.
        NoGradebook: `course` is none.
        OutOfDate: it has other questions or points than the lab.
    """
    require_current(course, [lab])
    with opened_gradebook(course) as gradebook:
        return _compared(gradebook, lab, _typed_rows(file))


def write_scores(
    course: Path, lab: Lab, file: Path, shown: Scores, *, who: str, why: str, say: Callable[[str], None]
) -> Scores:
    """Write those changes of `file` that were `shown` into the gradebook, and a row for each into `regrades.csv`.

    File and gradebook are compared again first: while a person looked at the changes, another may have written. Late
    penalties are computed again.

    Args:
        course: the course's folder.
        lab: the lab.
        file: what `shown` was read from.
        shown: what `read_scores` returned.
        who: the person who gave the scores, for the trail.
        why: the reason, for the trail.
        say: prints a line.

    Returns:
        What was written, and the rows that were refused.

    Raises:
        AnswersError: as `read_scores`, or the trail cannot be written; the gradebook is as it was.
        NoGradebook: as `read_scores`, or it cannot be written.
    """
    from sqlalchemy import text

    rows = _typed_rows(file)
    with only_one(course, say):
        with opened_gradebook(course) as gradebook:
            gradebook.db.execute(text("BEGIN IMMEDIATE"))  # formgrader writes before this or after the commit
            now = _compared(gradebook, lab, rows)
            written = [change for change in now.changes if change in shown.changes]
            for change in written:
                _apply(gradebook, lab, change)
            try:
                with (course / TRAIL).open("a", encoding="utf-8", newline="") as trail:
                    gradebook.db.commit()
                    _append(csv.writer(trail), trail.tell() == 0, lab, written, who, why)
            except OSError as error:
                raise AnswersError(f"{course / TRAIL} cannot be written: {error.strerror}") from None
        update_penalties(course)
    return Scores(written, now.refused)


def _typed_rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows in which something was typed, each with its number in a spreadsheet; cells by column."""
    try:
        header, *rows = read_rows(file) or [[]]
    except SpreadsheetError as error:
        raise AnswersError(str(error)) from None
    names = [name.strip().lower() for name in header]
    if missing := [name for name in NEEDED if name not in names]:
        raise AnswersError(f"{file}: no column {', '.join(missing)}: expected a file that lab answers wrote")
    empty = dict.fromkeys(NEEDED, "")
    found = [(at, empty | dict(zip(names, map(_plain, row), strict=False))) for at, row in enumerate(rows, 2)]
    return [(at, cells) for at, cells in found if cells["score"] or cells["comment"]]


def _compared(gradebook: Any, lab: Lab, rows: Sequence[tuple[int, dict[str, str]]]) -> Scores:
    students = {long_cell(student.id): student.id for student in gradebook.students}
    found, seen = Scores([], []), set()
    for at, cells in rows:
        try:
            if cells["version"] in seen:
                raise RowError("this answer is in the file twice")
            seen.add(cells["version"])
            if change := _change(gradebook, lab, students, cells):
                found.changes.append(change)
        except RowError as error:
            found.refused.append(f"REFUSED: row {at}: {cell(cells['student'])}: {error}")
    return found


def _change(gradebook: Any, lab: Lab, students: dict[str, str], cells: dict[str, str]) -> Change | None:
    """What a row changes; None where the gradebook has it already.

    Raises:
        RowError: it cannot be used, or would overwrite what its writer has not seen.
    """
    from nbgrader.api import MissingEntry

    from labstaff.course.preprocessors import GradedText

    label, question, student, digest = _parts(cells["version"])
    if label != lab.label:
        raise RowError(f"it is an answer of {label}, and this is {lab.label}")
    if cells["student"].lstrip("0") != student.lstrip("0"):  # spreadsheets take zeros off a number
        raise RowError(f"this row's version is that of {student}: was one column sorted without the others?")
    names = (question, REPORT, lab.folder.name, students.get(student, student))
    try:
        grade, comment = gradebook.find_grade(*names), gradebook.find_comment(*names)
    except MissingEntry:
        raise RowError("the gradebook has no such answer") from None
    score, typed = _score(cells["score"], grade.max_score), cells["comment"] or None
    present, comment_now = present_score(grade), comment.manual_comment or ""
    if score == present and not grade.needs_manual_grade:
        score = None
    if typed == _plain(comment_now):
        typed = None
    if score is None and typed is None:
        return None
    graded = gradebook.db.get(GradedText, grade.id)
    if graded is None or graded.digest[:DIGITS] != digest:
        raise RowError("the student has handed in another answer since this file was written")
    if score not in (None, present) and not _is(present, cells["score_before"]):
        now, before = number(present) or "none", cells["score_before"] or "none"
        raise RowError(f"the score is {now} now, and was {before} when this file was written")
    if typed is not None and _plain(long_cell(comment_now)) != cells["comment_before"]:
        raise RowError("the comment is another one than when this file was written")
    return Change(names[-1], question, present, score, typed)


def _parts(version: str) -> list[str]:
    """Lab, question, student, and the first digits of the answer's hash."""
    parts = version.split("/")
    if len(parts) != 4:
        raise RowError(f"expected the version that lab answers wrote, found {version!r}")
    return parts


def _score(typed: str, most: float) -> float | None:
    """The number in a cell; None for an empty one."""
    if not typed:
        return None
    found = float(typed.replace(",", ".")) if SCORE.fullmatch(typed) else None
    if found is None or found > most:
        raise RowError(f"score: expected a number from 0 to {number(most)}, found {one_line(typed)!r}")
    return found


def _is(score: float | None, cell: str) -> bool:
    """Whether a cell has this score, with a point or a comma."""
    found = float(cell.replace(",", ".")) if SCORE.fullmatch(cell) else None
    return number(score) == (cell and number(found))


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _apply(gradebook: Any, lab: Lab, change: Change) -> None:
    """As formgrader saves it."""
    names = (change.question, REPORT, lab.folder.name, change.student)
    if change.score is not None:
        grade = gradebook.find_grade(*names)
        grade.manual_score, grade.needs_manual_grade = change.score, False
    if change.comment is not None:
        gradebook.find_comment(*names).manual_comment = change.comment


def _append(table: Any, is_new: bool, lab: Lab, changes: Sequence[Change], who: str, why: str) -> None:
    if is_new:
        table.writerow(TRAIL_COLUMNS)
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    for change in changes:
        scores = (number(change.before), number(change.score if change.score is not None else change.before))
        row = (when, who, change.student, lab.label, change.question, *scores, change.comment or "", why)
        table.writerow(map(long_cell, row))
