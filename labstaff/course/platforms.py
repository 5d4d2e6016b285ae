"""Writes the course's grades as a learning platform reads them: a line a student, under the platform's own names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from labkit.labs.catalog import UnknownLab, find_lab
from labstaff.course.gradebook import Graded, cells_of, grades, opened
from labstaff.course.mapping import OF_STUDENT, Mapping, MappingError, read_roster
from labstaff.grader.plain_text import cell, one_line


@dataclass
class Exported:
    """What came of an export: of how many students, and what an instructor should know of it, a line each."""

    n_students: int = 0
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Column:
    """A column of one lab's: the score, the penalty, or the points of a task or question; `points` reads it."""

    header: str
    assignment: str
    most: float
    points: Callable[[Graded], float]

    def of(self, mine: dict[str, Graded], missing: str) -> str:
        graded = mine.get(self.assignment)
        return _number(self.points(graded)) if graded is not None and graded.recorded else missing


def export_grades(
    course: Path, mapping: Mapping, to: Path, *, roster: Path | None = None, assignments: Collection[str] = ()
) -> Exported:
    """Write the grades of the course in the folder `course` to the CSV file `to`.

    Args:
        roster: a CSV file that the platform has exported: its students are written, in its order, each with what it
            says of them. Without one, all that nbgrader knows.
        assignments: whose grades; of all when empty.

    Raises:
        MappingError: the roster cannot be used with this mapping, or the mapping not with this course.
        NoGradebook: `course` is none.
    """
    listed = read_roster(roster, mapping.key) if roster else None
    columns: list[_Column] = []
    by_student: dict[str, dict[str, Graded]] = {}
    done = Exported()
    with opened(course) as gradebook:
        if strangers := mapping.labs.keys() - {assignment.name for assignment in gradebook.assignments}:
            raise MappingError(f"[labs]: the course has no {', '.join(sorted(strangers))}")
        for assignment, all_graded in grades(gradebook, assignments):
            columns += _columns(assignment, mapping)
            for graded in all_graded:
                by_student.setdefault(graded.student, {})[graded.assignment] = graded
            if n_waiting := sum(graded.waiting > 0 for graded in all_graded):
                done.remarks.append(
                    f"{assignment.name}: answers of {n_waiting} students still wait for a person; they count as 0"
                )
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow([cell(header) for header in (*mapping.columns, *(column.header for column in columns))])
        if mapping.max_row:
            begins = [cell(mapping.max_row.get(header, "")) for header in mapping.columns]
            table.writerow([*begins, *(_number(column.most) for column in columns)])
        for mine, row in _lines(by_student, listed, mapping, done):
            texts = _of_student(mine, row, mapping)
            table.writerow([*map(cell, texts), *(column.of(mine, mapping.missing) for column in columns)])
            done.n_students += 1
    return done


def _columns(assignment: Any, mapping: Mapping) -> Iterator[_Column]:
    try:
        lab = find_lab(assignment.name)
        names = {"folder": lab.folder.name, "label": lab.label, "number": lab.number, "title": lab.title}
    except UnknownLab:  # an assignment of the instructor's own
        names = dict.fromkeys(("folder", "label", "number", "title"), assignment.name)
    if mapping.cell:
        for name, points in cells_of(assignment).items():
            header = mapping.cell.format_map({**names, "name": name})
            yield _Column(header, assignment.name, points, partial(_points_of, name))
    if mapping.penalty:
        header = mapping.penalty.format_map({**names, "name": ""})
        yield _Column(header, assignment.name, 0.0, lambda graded: graded.penalty)
    if mapping.score:
        header = mapping.labs.get(assignment.name) or mapping.score.format_map({**names, "name": ""})
        yield _Column(header, assignment.name, float(assignment.max_score), lambda graded: graded.score)


def _points_of(name: str, graded: Graded) -> float:
    return graded.cells[name]


def _lines(
    by_student: dict[str, dict[str, Graded]],
    listed: dict[str, dict[str, str]] | None,
    mapping: Mapping,
    done: Exported,
) -> Iterator[tuple[dict[str, Graded], dict[str, str]]]:
    """Of each line that is to be written the student's grades, and what the roster says."""
    if listed is None:
        yield from ((mine, {}) for mine in by_student.values())
        return
    called = {mapping.students.get(student, student).casefold(): student for student in by_student}
    for name, row in listed.items():
        yield by_student.get(called.pop(name.casefold(), ""), {}), row
    if called:
        names = ", ".join(one_line(student) for student in called.values())
        done.remarks.append(f"not in the roster, and not written: {names}")


def _of_student(mine: dict[str, Graded], row: dict[str, str], mapping: Mapping) -> Iterator[str]:
    known = next(iter(mine.values()), None)
    names = dict.fromkeys(OF_STUDENT, "")
    if known is not None:
        names = {"last_name": known.last_name, "first_name": known.first_name, "email": known.email}
        names["student_id"] = mapping.students.get(known.student, known.student)
    for header, template in mapping.columns.items():
        yield row[header] if header in row else template.format_map(names).strip(", ")


def _number(points: float) -> str:
    return f"{round(points, 2):.2f}".rstrip("0").rstrip(".")
