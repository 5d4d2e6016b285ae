"""A judge that needs no time: an answer says itself what it is worth. For tests of what happens around judging."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.labs.catalog import find_lab
from labstaff.grader.results import JudgedSubmission

LAB = find_lab("01")
WORTH = re.compile(rb"# points: (\d+)")


def answer(points: int) -> str:
    """An answer that `judge_by_its_word` gives so many points of the first task's."""
    return f"# points: {points}\n"


def judge_by_its_word(self, submission, seed, findings=()):
    """In the place of `Judge.judge`; what has findings has half of its points withheld."""
    del self, seed
    first, *others = LAB.tasks
    said = WORTH.search(submission.source)
    tasks = {first.name: float(said[1]) if said else 0.0, **{task.name: 0.0 for task in others}}
    tests = {f"{task.tests}::test_it": "passed" if tasks[task.name] else "failed" for task in LAB.tasks}
    return JudgedSubmission(
        LAB.folder.name,
        submission.key,
        "judged",
        tests=tests,
        tasks=tasks,
        findings=[str(each) for each in findings],
        withheld={first.name: tasks[first.name] / 2} if findings else {},
    )


def answer_file(course: Path, student: str) -> Path:
    """Where a student's answer lies in a course."""
    return course / "submitted" / student / LAB.folder.name / "src" / f"{LAB.module}.py"


def hand_in(course: Path, student: str, points: int) -> Path:
    """Hand in the released notebook and an answer worth `points`; returns the submission's folder."""
    file = answer_file(course, student)
    file.parent.mkdir(parents=True, exist_ok=True)
    released = course / "release" / LAB.folder.name / "report.ipynb"
    (file.parents[1] / "report.ipynb").write_bytes(released.read_bytes())
    file.write_text(answer(points), encoding="utf-8")
    return file.parents[1]
