"""A grader that takes no time: a comment in a submission says what it is worth."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.labs.catalog import find_lab
from labstaff.course.grade import grade
from labstaff.grader.results import GradedSubmission

LAB = find_lab("01")
WORTH = re.compile(rb"# points: (\d+)")


def answer(points: int) -> str:
    """Code that `graded_by_comment` gives so many points of the first task's."""
    return f"# points: {points}\n"


def graded_by_comment(self, submission, seed, findings=()):
    """Replaces `Grader.grade`; where there are findings, half of the points are withheld."""
    del self, seed
    first, *others = LAB.tasks
    found = WORTH.search(submission.source)
    status, reason = ("refused", submission.problem) if submission.problem else ("graded", "")
    tasks = {first.name: float(found[1]) if found else 0.0, **{task.name: 0.0 for task in others}}
    tests = {f"{task.tests}::test_it": "passed" if tasks[task.name] else "failed" for task in LAB.tasks}
    return GradedSubmission(
        LAB.folder.name,
        submission.key,
        status,
        reason,
        tests=tests,
        tasks=tasks,
        findings=[str(each) for each in findings],
        withheld={first.name: tasks[first.name] / 2} if findings else {},
    )


def answer_file(course: Path, student: str) -> Path:
    """The path of a student's code in a course."""
    return course / "submitted" / student / LAB.folder.name / "src" / f"{LAB.module}.py"


def hand_in(course: Path, student: str, points: int) -> Path:
    """Hand in the released notebook and code worth `points`; returns the submission's folder."""
    file = answer_file(course, student)
    file.parent.mkdir(parents=True, exist_ok=True)
    released = course / "release" / LAB.folder.name / "report.ipynb"
    (file.parents[1] / "report.ipynb").write_bytes(released.read_bytes())
    file.write_text(answer(points), encoding="utf-8")
    return file.parents[1]


def graded(course: Path, status: int = 0, **options) -> list[str]:
    """Grade, and return the printed lines."""
    printed: list[str] = []
    assert grade(course / "submitted", [LAB], unsafe=True, say=printed.append, **options) == status, "\n".join(printed)
    return printed
