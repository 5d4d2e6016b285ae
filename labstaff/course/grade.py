"""`lab grade`: grades a folder of submissions, and in an nbgrader course has nbgrader record the results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.course.accept import accept_all
from labstaff.course.gradebook import require_readable
from labstaff.course.paths import ACCEPTED, CONFIG_FILE, SUBMITTED
from labstaff.course.record import record
from labstaff.grader.plain_text import one_line
from labstaff.grading.parallel import Outcome
from labstaff.grading.run import NothingToGrade, grade_submitted

ALL_WELL, SOME_NOT_GRADED, SOME_REFUSED, STOPPED = 0, 1, 3, 130
"""Exit statuses: all graded; some not graded or not recorded; all recorded, some hold no code; Ctrl-C."""


def grade(
    submitted: Path,
    labs: list[Lab],
    results: Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = print,
    **options: Any,
) -> int:
    """All of `lab grade`: grade, report, and in an nbgrader course record; returns the exit status.

    Args: as in `grade_submitted`. `force`: grade and record again what was graded and recorded before.

    Raises:
        NoGradebook: the course's gradebook cannot be read.
        NothingToGrade: there are no submissions.
        CannotExport: `export` names one file, and there are more submissions.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    course = submitted.parent
    is_course = (course / CONFIG_FILE).exists() and submitted.is_dir()
    options |= {"force": force, "say": say}
    try:
        with stopped_by_ctrl_c(say):
            if not is_course:
                outcomes, n_not = grade_submitted(submitted, labs, results, **options), 0
            else:
                require_readable(course)
                with _only_one(course, say):
                    outcomes, n_not = _grade_course(course, labs, results, options)
    except KeyboardInterrupt:
        say("lab grade: stopped. What was graded is kept; the same command goes on from there.")
        return STOPPED
    if n_not or any(outcome.result is None for outcome in outcomes):
        say("lab grade: some were not graded: see FAILED and NOT RECORDED above, and run it again")
        return SOME_NOT_GRADED
    if any(outcome.result and outcome.result.status != "graded" for outcome in outcomes):
        say("lab grade: some hold no code that can be graded and have 0 points: see “not graded” above")
        return SOME_REFUSED
    return ALL_WELL


def _grade_course(
    course: Path, labs: list[Lab], results: Path | None, options: dict[str, Any]
) -> tuple[list[Outcome], int]:
    """The outcomes, and how many submissions are not recorded."""
    say = options["say"]
    problems = accept_all(course, labs)
    accepted = [folder for lab in labs for folder in (course / ACCEPTED).glob(f"*/{lab.folder.name}")]
    if not problems and not accepted:
        raise NothingToGrade(f"{course / SUBMITTED} holds no STUDENT/LAB folder")
    outcomes = grade_submitted(course / ACCEPTED, labs, results, **options) if accepted else []
    recorded = record(course, labs, force=options["force"])
    problems |= recorded.problems
    for (student, assignment), problem in sorted(problems.items()):
        say(f"NOT RECORDED: {one_line(student)}: {assignment}: {problem}")
    if n_removed := recorded.n_feedback_removed:
        say(f"feedback of {n_removed} was out of date and is removed: nbgrader generate_feedback makes it again")
    not_recorded = f", {len(problems)} NOT recorded" if problems else ""
    say(f"gradebook.db: {recorded.n_anew} recorded, {recorded.n_unchanged} unchanged{not_recorded}")
    return outcomes, len(problems)


@contextlib.contextmanager
def _only_one(course: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One `lab grade` at a time in a course: two would remove each other's folders.

    nbgrader inherits the lock: it may still be recording when `lab grade` has been killed.
    """
    with (course / ".grading.lock").open("a") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another `lab grade` runs in this course: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def stopped_by_ctrl_c(say: Callable[[str], None] = print) -> Iterator[None]:
    """In the body, Ctrl-C says at once what happens now and raises KeyboardInterrupt; a second one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))
        say("stopping: what is being graded comes to its end and is kept; Ctrl-C again drops it")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
