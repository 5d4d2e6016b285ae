"""Which students have handed in nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.paths import SUBMITTED
from labstaff.course.roster import listed
from labstaff.grading.submitted import find_submissions


def missing_lines(course: Path, gradebook: Any, labs: Sequence[Lab]) -> list[str]:
    """A line for each lab of which anything was handed in: who of the gradebook's students has not.

    Points from a submission whose folder is gone count as handed in.
    """
    folders = {(each.student, each.lab.folder.name) for each in find_submissions(course / SUBMITTED, labs)}
    names = {assignment for _, assignment in folders}
    students = sorted(student.id for student in gradebook.students)
    lines = []
    for assignment in sorted(gradebook.assignments, key=lambda each: each.name):
        there = {each.student_id for each in assignment.submissions if is_graded(each)}
        there |= {student for student, name in folders if name == assignment.name}
        missing = [student for student in students if student not in there]
        if missing and assignment.name in names:
            count = f"{len(missing)} of {len(students)} students"
            lines.append(f"nothing handed in: {assignment.name}: {count}: {listed(missing)}")
    return lines


def is_graded(submission: Any) -> bool:
    """Whether it has points; an extension before anything is submitted makes an empty submission."""
    return any(grade.auto_score is not None for notebook in submission.notebooks for grade in notebook.grades)
