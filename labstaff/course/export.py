"""Writes the gradebook of a course to a CSV file, with the columns of a plain table, of Canvas or of Moodle."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from labkit.labs.catalog import UnknownLab, find_assignments, find_lab
from labstaff.course.grade import only_one
from labstaff.course.handed_in import is_graded, missing_lines
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import SUBMITTED
from labstaff.course.penalties import update_penalties
from labstaff.course.record import not_recorded, to_grade_again
from labstaff.course.update import require_current
from labstaff.grader.plain_text import cell, one_line
from labstaff.grading.submitted import find_submissions

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
"""By platform: each column's header, and a template of a student's `id`, `number` (an id of digits), `login`
(`lms_user_id` of the gradebook, or any other id), `last_name`, `first_name` and `email`. A column for each lab follows.
"""

MAXIMUM = {"table": "maximum", "canvas": "    Points Possible"}
"""How a row of maximum points begins, where a platform has one."""


def export_grades(course: Path, to: Path, platform: str = "table", say: Callable[[str], None] = print) -> bool:
    """Write a row for each student and a column for each lab to `to`, both sorted; late penalties are taken off.

    Penalties are those of the present scores. A lab that a student did not submit is blank. No cell is a formula for a
    spreadsheet.

    Args:
        course: the course's folder.
        to: the file.
        platform: one of `COLUMNS`.
        say: prints a line.

    Returns:
        Whether every submission is recorded as it is now. A line names each that is not.

    Raises:
        NoGradebook: `course` is none.
        OutOfDate: it has other tasks or points than its labs.
    """
    columns = COLUMNS[platform]
    require_current(course, find_assignments())
    update_penalties(course)
    header = [*columns]
    most = [MAXIMUM.get(platform, ""), *[""] * (len(columns) - 1)]
    with only_one(course, say), opened_gradebook(course) as gradebook:
        assignments = sorted(gradebook.assignments, key=lambda each: each.name)
        students = sorted(gradebook.students, key=lambda student: student.id)
        rows = {student.id: _of_student(student, columns.values()) for student in students}
        labs = [lab for lab in find_assignments() if lab.folder.name in {each.name for each in assignments}]
        problems = not_recorded(course, labs)
        handed_in = {(each.student, each.lab.folder.name) for each in find_submissions(course / SUBMITTED, labs)}
        for assignment in assignments:
            header.append(_title(assignment.name))
            most.append(f"{assignment.max_score:g}")
            graded = {each.student_id: each for each in assignment.submissions if is_graded(each)}
            for student in students:
                points = _points(graded[student.id]) if student.id in graded else ""
                rows[student.id].append(points)
                if points and (student.id, assignment.name) not in handed_in:
                    left = f"nbgrader db student remove {shlex.quote(student.id)} --force"
                    say(
                        f"not in {SUBMITTED}/ any more: {one_line(student.id)}: {assignment.name}: {points} points "
                        f"stay: put the folder back, or if the student has left: {left}"
                    )
            if n_waiting := sum(_waits(each) for each in graded.values()):
                say(f"{assignment.name}: answers of {n_waiting} students wait to be graded by hand: 0 so far")
        missing = missing_lines(course, gradebook, labs)
    for line in [*missing, *to_grade_again(course)]:
        say(line)
    for (name, assignment), problem in sorted(problems.items()):
        say(f"NOT RECORDED: {one_line(name)}: {assignment}: {problem}")
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(map(cell, header))
        if platform in MAXIMUM:
            table.writerow(most)
        table.writerows(rows.values())
    say(f"wrote {len(rows)} students to {to}")
    return not problems


def _waits(submission: Any) -> bool:
    """Whether an answer was never graded by hand."""
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    return any(grade.needs_manual_grade and grade.manual_score is None for grade in grades)


def _of_student(student: Any, templates: Collection[str]) -> list[str]:
    names = {name: getattr(student, name) or "" for name in ("id", "last_name", "first_name", "email")}
    is_number = student.id.isdecimal()
    login = student.lms_user_id or ("" if is_number else student.id)
    names |= {"number": student.id if is_number else "", "login": login}
    return [cell(template.format_map(names).strip(", ")) for template in templates]


def _title(assignment: str) -> str:
    try:
        lab = find_lab(assignment)
    except UnknownLab:  # an assignment of the instructor's own
        return assignment
    return f"Lab {lab.number}: {lab.title}"


def _points(submission: Any) -> str:
    return f"{max(0.0, round(submission.score - (submission.late_submission_penalty or 0.0), 2)):g}"
