"""Writes the gradebook of a course to a CSV file, with the columns of a plain table, of Canvas or of Moodle."""

from __future__ import annotations

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
    """The columns of one platform.

    `student` maps a header to a template of a student's `id`, `number` (an id of digits), `login` (any other id),
    `last_name`, `first_name` and `email`. `score` is the header of a lab's score: a template of `label`, `number` and
    `title`. `most` begins a row of maximum points.
    """

    student: dict[str, str]
    score: str
    most: str = ""


COLUMNS = {
    "table": Columns(
        {"student_id": "{id}", "last_name": "{last_name}", "first_name": "{first_name}", "email": "{email}"},
        "{label}",
        most="maximum",
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
    """Write a row for each student and a column for each lab to `to`, both sorted; late penalties are taken off.

    A lab that a student did not submit is blank. No cell is a formula for a spreadsheet.

    Args:
        course: the course's folder.
        to: the file.
        platform: one of `COLUMNS`.
        assignments: whose grades; of all when empty.

    Returns:
        Lines for the instructor.

    Raises:
        NoGradebook: `course` is none.
    """
    columns, remarks = COLUMNS[platform], []
    header = [*columns.student]
    most = [columns.most, *[""] * (len(columns.student) - 1)]
    with opened(course) as gradebook, to.open("w", encoding="utf-8", newline="") as file:
        students = sorted(gradebook.students, key=lambda student: student.id)
        rows = {student.id: _of_student(student, columns) for student in students}
        for assignment in sorted(gradebook.assignments, key=lambda each: each.name):
            if assignments and assignment.name not in assignments:
                continue
            header.append(columns.score.format_map(_names(assignment.name)))
            most.append(_number(assignment.max_score))
            submissions = {each.student_id: each for each in assignment.submissions if _is_recorded(each)}
            for student in students:
                found = submissions.get(student.id)
                rows[student.id].append(_number(found.score - (found.late_submission_penalty or 0.0)) if found else "")
            if n_waiting := sum(each.needs_manual_grade for each in submissions.values()):
                remarks.append(
                    f"{assignment.name}: answers of {n_waiting} students wait to be graded by hand: 0 so far"
                )
        table = csv.writer(file)
        table.writerow(map(cell, header))
        if columns.most:
            table.writerow(most)
        table.writerows(rows.values())
    return [*remarks, f"wrote {len(students)} students to {to}"]


def _is_recorded(submission: Any) -> bool:
    """Whether it was graded; an extension before anything is submitted makes an empty one."""
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    return any(grade.auto_score is not None or grade.manual_score is not None for grade in grades)


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


def _number(points: float) -> str:
    return f"{max(0.0, round(points, 2)):g}"
