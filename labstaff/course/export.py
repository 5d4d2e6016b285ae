"""Writes the grades of a course to one CSV file, with the columns of a spreadsheet, of Canvas or of Moodle."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.labs.catalog import UnknownLab, find_lab
from labstaff.course.gradebook import opened
from labstaff.grader.plain_text import cell


@dataclass(frozen=True)
class Columns:
    """What a platform calls what the gradebook knows.

    `student` maps a header to a template of a student's `id`, `number` (an id of digits), `login` (any other id),
    `last_name`, `first_name` and `email`. `score` is the header of a lab's score: a template of `label`, `number` and
    `title`. `with_parts` adds a column for each task, question and late penalty. `most` begins a row of maximum points.
    """

    student: dict[str, str]
    score: str
    with_parts: bool = False
    most: str = ""


COLUMNS = {
    "table": Columns(
        {"student_id": "{id}", "last_name": "{last_name}", "first_name": "{first_name}", "email": "{email}"},
        "{label} score",
        with_parts=True,
        most="most points",
    ),
    "canvas": Columns(
        {
            "Student": "{last_name}, {first_name}",
            "ID": "{number}",
            "SIS User ID": "",
            "SIS Login ID": "{login}",
            "Section": "",
        },
        "Lab {number}: {title}",
        most="    Points Possible",
    ),
    "moodle": Columns(
        {"Username": "{id}", "First name": "{first_name}", "Last name": "{last_name}", "Email address": "{email}"},
        "Lab {number}: {title}",
    ),
}


def export_grades(course: Path, to: Path, platform: str = "table", assignments: Collection[str] = ()) -> list[str]:
    """Write the course's grades to `to`: a row for each student and a column for each lab, both sorted.

    A lab that a student did not hand in is blank. No cell is a formula for a spreadsheet.

    Args:
        platform: one of `COLUMNS`.
        assignments: whose grades; of all when empty.

    Returns:
        What an instructor should know of it, a line each.

    Raises:
        NoGradebook: `course` is none.
    """
    columns = COLUMNS[platform]
    remarks = []
    headers = list(columns.student)
    most = [columns.most, *[""] * (len(columns.student) - 1)]
    with opened(course) as gradebook, to.open("w", encoding="utf-8", newline="") as file:
        students = sorted(gradebook.students, key=lambda student: student.id)
        rows = {student.id: _of_student(student, columns) for student in students}
        for assignment in sorted(gradebook.assignments, key=lambda each: each.name):
            if assignments and assignment.name not in assignments:
                continue
            points = _points(assignment)
            names = _names(assignment.name)
            parts = [f"{names['label']} {part}" for part in (*points, "late penalty")] if columns.with_parts else []
            headers += [*parts, columns.score.format_map(names)]
            most += [_number(each) for each in ([*points.values(), 0.0] if parts else [])]
            most.append(_number(assignment.max_score))
            n_waiting = 0
            for student in students:
                found = _submission(gradebook, assignment.name, student.id)
                if found is None:
                    rows[student.id] += [""] * (len(parts) + 1)
                    continue
                grades = {grade.name: grade for notebook in found.notebooks for grade in notebook.grades}
                penalty = found.late_submission_penalty or 0.0
                n_waiting += any(grade.needs_manual_grade for grade in grades.values())
                earned = [_number(grades[part].score) if part in grades else "" for part in points] if parts else []
                rows[student.id] += [*earned, *([_number(penalty)] if parts else [])]
                rows[student.id].append(_number(max(0.0, found.score - penalty)))
            if n_waiting:
                remarks.append(f"{assignment.name}: answers of {n_waiting} students still wait for a person: 0 so far")
        table = csv.writer(file)
        table.writerow(map(cell, headers))
        if columns.most:
            table.writerow(most)
        table.writerows(rows.values())
    return [*remarks, f"wrote {len(students)} students to {to}"]


def _submission(gradebook: Any, assignment: str, student: str) -> Any:
    """The recorded submission; None where nothing was handed in, though an extension may have been granted."""
    from nbgrader.api import MissingEntry

    try:
        found = gradebook.find_submission(assignment, student)
    except MissingEntry:
        return None
    given = [grade for notebook in found.notebooks for grade in notebook.grades]
    return found if any(grade.auto_score is not None or grade.manual_score is not None for grade in given) else None


def _of_student(student: Any, columns: Columns) -> list[str]:
    names = {name: getattr(student, name) or "" for name in ("id", "last_name", "first_name", "email")}
    is_number = student.id.isdecimal()
    names |= {"number": student.id if is_number else "", "login": "" if is_number else student.id}
    return [cell(template.format_map(names).strip(", ")) for template in columns.student.values()]


def _names(assignment: str) -> dict[str, Any]:
    try:
        lab = find_lab(assignment)
    except UnknownLab:  # an assignment of the instructor's own
        return dict.fromkeys(("label", "number", "title"), assignment)
    return {"label": lab.label, "number": lab.number, "title": lab.title}


def _points(assignment: Any) -> dict[str, float]:
    """The points of each task and question, in the manifest's order."""
    points = {cell.name: float(cell.max_score) for notebook in assignment.notebooks for cell in notebook.grade_cells}
    ordered = sorted(points)
    with contextlib.suppress(UnknownLab):
        lab = find_lab(assignment.name)
        ordered = [*(task.name for task in lab.tasks), *(question.id for question in lab.questions)]
    return {name: points[name] for name in ordered if name in points}


def _number(points: float) -> str:
    return f"{round(points, 2):.2f}".rstrip("0").rstrip(".")
