"""A class' board as a table: what the suite has counted of each answer, from judged results alone."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from labkit.labs.manifest import Lab
from labkit.suite.counts import COLUMNS, Counts, read_board, trace_of
from labstaff.grading.many import HandedIn, find_submissions
from labstaff.grading.run import NothingToGrade
from labstaff.judge.judging import hidden_seed, kept_at
from labstaff.judge.kept import results_of
from labstaff.judge.plain_text import cell
from labstaff.judge.results import JudgedSubmission, load
from labstaff.judge.submission import read_submission

NOT_JUDGED = "not judged"
REFUSED = "refused"
NOTHING_COUNTED = "nothing counted"
COUNTED = "counted"


@dataclass(frozen=True)
class Standing:
    """One student on one trace of a lab's board: the counts, and where there are none, why."""

    student: str
    lab: Lab
    trace: str
    status: str
    counts: Counts = field(default_factory=dict)


def class_board(submitted: Path, labs: Sequence[Lab]) -> list[Standing]:
    """What the judge has counted of the submissions in `submitted`; nothing is judged here, and nothing else is read.

    "not judged" is who has no result of the course as it is now (`lab grade` makes one), "refused" whose file could not
    be judged, "nothing counted" whose answer broke what the suite asks while it served the trace.

    Raises:
        NothingToGrade: there are no submissions of these labs.
        NoBoard: a lab has no board.
    """
    traces = {lab.folder.name: list(read_board(lab).traces) for lab in labs}
    found = find_submissions(submitted, list(labs)) if submitted.is_dir() else []
    if not found:
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder for {', '.join(lab.label for lab in labs)}")
    results, seed = results_of(submitted.parent), hidden_seed(submitted.parent)
    told = []
    for each in found:
        judged = load(kept_at(results, read_submission(each.lab, each.place), seed))
        told += [_standing(each, trace, judged) for trace in traces[each.lab.folder.name]]
    return told


def write_csv(path: Path, board: Sequence[Standing]) -> None:
    """A CSV file with a line for each student and trace: the board's columns, then what else was counted."""
    shown = {column.counted for column in COLUMNS if not column.over}
    others = list(dict.fromkeys(name for row in board for name in row.counts if name not in shown))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "lab", "trace", "status", *(column.name for column in COLUMNS), *others])
        for row in board:
            values = [_number(column.of(row.counts)) for column in COLUMNS]
            more = [row.counts.get(name, "") for name in others]
            table.writerow([cell(row.student), row.lab.folder.name, row.trace, row.status, *values, *more])


def _standing(each: HandedIn, trace: str, judged: JudgedSubmission | None) -> Standing:
    if judged is None:
        return Standing(each.student, each.lab, trace, NOT_JUDGED)
    if judged.status != "judged":
        return Standing(each.student, each.lab, trace, REFUSED)
    counts = next((counts for test, counts in judged.counts.items() if trace_of(test) == trace), {})
    return Standing(each.student, each.lab, trace, COUNTED if counts else NOTHING_COUNTED, counts)


def _number(value: Fraction | None) -> int | float | str:
    if value is None:
        return ""
    return int(value) if value.denominator == 1 else round(float(value), 3)
