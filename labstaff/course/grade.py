"""`lab grade`: grades a folder of submissions, and in an nbgrader course has nbgrader record the results."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.accept import accept_all
from labstaff.course.handed_in import missing_lines
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import ACCEPTED, CONFIG_FILE, SUBMITTED
from labstaff.course.penalties import update_penalties
from labstaff.course.record import Recorder, to_grade_again
from labstaff.course.update import require_current
from labstaff.grader.plain_text import one_line
from labstaff.grader.sandbox import require_sandbox
from labstaff.grading.parallel import Outcome
from labstaff.grading.run import NothingToGrade, announced, grade_submitted, require_submissions
from labstaff.grading.submitted import find_submissions

ALL_WELL, SOME_NOT_GRADED, SOME_REFUSED = 0, 1, 3
"""Exit statuses: all graded; some not graded or not recorded; all recorded, some hold no code."""


def grade(submitted: Path, labs: list[Lab], *, say: Callable[[str], None] = print, **options: Any) -> int:
    """All of `lab grade`: grade, report, and in an nbgrader course record; returns the exit status.

    Args and errors: as in `grade_submitted`. `force` also records again what was recorded before. Nothing is written
    before the arguments are checked.
    """
    course = submitted.parent
    _require_submitted(submitted)
    require_submissions(submitted, labs, **options)
    if not (options.get("unsafe") or options.get("scheduler")):
        require_sandbox()
    if (course / CONFIG_FILE).exists():
        with only_one(course, say):
            outcomes, n_not = _grade_course(submitted, labs, say, options)
    else:
        outcomes, n_not = grade_submitted(submitted, labs, say=say, **options), 0
    if n_not or any(outcome.result is None for outcome in outcomes):
        say("lab grade: some were not graded: see FAILED and NOT RECORDED above, and run it again")
        return SOME_NOT_GRADED
    if any(outcome.result and outcome.result.status != "graded" for outcome in outcomes):
        say("lab grade: some hold no code that can be graded and have 0 points: see “not graded” above")
        return SOME_REFUSED
    return ALL_WELL


def _require_submitted(folder: Path) -> None:
    """Raises `NothingToGrade` for a course's own folders and for the clone, whose subfolders look like students."""
    expected = "expected a folder of STUDENT/LAB folders"
    if (folder / CONFIG_FILE).exists():
        raise NothingToGrade(f"{folder} is the course's folder: {expected}, which is {folder / SUBMITTED}")
    if (folder.parent / CONFIG_FILE).exists() and folder.name != SUBMITTED:
        raise NothingToGrade(f"{folder} is one of the course's own: {expected}, which is {folder.parent / SUBMITTED}")
    if (folder / "pyproject.toml").exists():
        raise NothingToGrade(f"{folder} holds a pyproject.toml: {expected}")


def _grade_course(
    submitted: Path, labs: list[Lab], say: Callable[[str], None], options: dict[str, Any]
) -> tuple[list[Outcome], int]:
    """The outcomes, and how many submissions are not recorded."""
    course = submitted.parent
    require_current(course, labs)
    problems = accept_all(course, labs, say)
    recorder, outcomes = Recorder(course, options.get("force", False)), []

    def record(outcome: Outcome) -> None:
        with announced(f"recording {outcome.submitted.student}'s {outcome.submitted.lab.folder.name}", say):
            recorder.record(outcome)

    if find_submissions(course / ACCEPTED, labs):
        outcomes = grade_submitted(course / ACCEPTED, labs, on_outcome=record, say=say, **options)
    if recorder.n_recorded or recorder.n_unchanged:
        update_penalties(course)
    for assignment, students in recorder.pages_removed.items():
        say(
            f"feedback: {len(students)} pages showed something else and are removed: {', '.join(students)}: "
            f"nbgrader generate_feedback {assignment} makes them again"
        )
    with opened_gradebook(course) as gradebook:
        missing = missing_lines(course, gradebook, labs)
    for line in [*missing, *to_grade_again(course)]:
        say(line)
    problems |= recorder.problems
    for (student, assignment), problem in sorted(problems.items()):
        say(f"NOT RECORDED: {one_line(student)}: {assignment}: {problem}")
    not_recorded = f", {len(problems)} NOT recorded" if problems else ""
    say(f"gradebook.db: {recorder.n_recorded} recorded, {recorder.n_unchanged} unchanged{not_recorded}")
    return outcomes, len(problems)


@contextlib.contextmanager
def only_one(course: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One command that writes at a time in a course: two `lab grade` would remove each other's folders."""
    with (course / ".grading.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another command writes in this course: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
