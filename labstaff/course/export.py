"""Writes the gradebook of a course to a CSV file, with the columns of a plain table, of Canvas or of Moodle."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path
from typing import Any

from labkit.labs.catalog import UnknownLab, find_lab
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.penalties import update_penalties
from labstaff.grader.plain_text import cell

COLUMNS = {
    "table": {"student_id": "{id}", "last_name": "{last_name}", "first_name": "{first_name}", "email": "{email}"},
    "canvas": {
        "Student": "{last_name}, {first_name}",
        "ID": "{number}",
        "SIS User ID": "",
        "SIS Login ID": "{login}",
        "Section": "",
    },
    "moodle": {
        "Username": "{id}",
        "First name": "{first_name}",
        "Last name": "{last_name}",
        "Email address": "{email}",
    },
}
"""By platform: each column's header, and a template of a student's `id`, `number` (an id of digits), `login` (any other
id), `last_name`, `first_name` and `email`. A column for each lab follows.
"""

MAXIMUM = {"table": "maximum", "canvas": "    Points Possible"}
"""How a row of maximum points begins, where a platform has one."""


def export_grades(course: Path, to: Path, platform: str = "table") -> list[str]:
    """Write a row for each student and a column for each lab to `to`, both sorted; late penalties are taken off.

    Penalties are those of the present scores. A lab that a student did not submit is blank. No cell is a formula for a
    spreadsheet.

    Args:
        course: the course's folder.
        to: the file.
        platform: one of `COLUMNS`.

    Returns:
        Lines for the instructor.

    Raises:
        NoGradebook: `course` is none.
    """
    columns, remarks = COLUMNS[platform], []
    update_penalties(course)
    header = [*columns]
    most = [MAXIMUM.get(platform, ""), *[""] * (len(columns) - 1)]
    with opened_gradebook(course) as gradebook:
        students = sorted(gradebook.students, key=lambda student: student.id)
        rows = {student.id: _of_student(student, columns.values()) for student in students}
        for assignment in sorted(gradebook.assignments, key=lambda each: each.name):
            header.append(_title(assignment.name))
            most.append(f"{assignment.max_score:g}")
            graded = {each.student_id: each for each in assignment.submissions if _is_graded(each)}
            for student in students:
                rows[student.id].append(_points(graded[student.id]) if student.id in graded else "")
            if n_waiting := sum(each.needs_manual_grade for each in graded.values()):
                remarks.append(
                    f"{assignment.name}: answers of {n_waiting} students wait to be graded by hand: 0 so far"
                )
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(map(cell, header))
        if platform in MAXIMUM:
            table.writerow(most)
        table.writerows(rows.values())
    return [*remarks, f"wrote {len(rows)} students to {to}"]


def _is_graded(submission: Any) -> bool:
    """An extension before anything is submitted makes an empty submission."""
    return any(grade.auto_score is not None for notebook in submission.notebooks for grade in notebook.grades)


def _of_student(student: Any, templates: Collection[str]) -> list[str]:
    names = {name: getattr(student, name) or "" for name in ("id", "last_name", "first_name", "email")}
    is_number = student.id.isdecimal()
    names |= {"number": student.id if is_number else "", "login": "" if is_number else student.id}
    return [cell(template.format_map(names).strip(", ")) for template in templates]


def _title(assignment: str) -> str:
    try:
        lab = find_lab(assignment)
    except UnknownLab:  # an assignment of the instructor's own
        return assignment
    return f"Lab {lab.number}: {lab.title}"


def _points(submission: Any) -> str:
    return f"{max(0.0, round(submission.score - (submission.late_submission_penalty or 0.0), 2)):g}"
