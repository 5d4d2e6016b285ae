"""Grades a folder of submissions: shows progress, prints a summary, writes the files that were asked for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import track

from labkit.labs.manifest import Lab
from labstaff.grader.course_state import FILE, course_secret
from labstaff.grader.plain_text import one_line
from labstaff.grading.classroom50 import write_result
from labstaff.grading.gradescope import write_results
from labstaff.grading.parallel import Outcome, UnderWay, grade_all
from labstaff.grading.submitted import Submitted, find_submissions
from labstaff.grading.summary import summary_lines, write_table

RESULTS = "results"
"""The folder of results, next to that of submissions."""

WAIT_SECONDS = 10.0
"""How often it is said how far grading is."""

STEP_SECONDS = 4.0
"""After so long it is said what is under way."""


class NothingToGrade(Exception):
    """There is no submission of the kind that was asked for; the message says where."""


@contextlib.contextmanager
def announced(step: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say which step the body is, if it takes more than `STEP_SECONDS`."""
    timer = threading.Timer(STEP_SECONDS, say, [f"{one_line(step)} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Progress:
    """Says now and then how many of `n` submissions have ended, and about how long the rest may take."""

    def __init__(self, n: int, say: Callable[[str], None]) -> None:
        self._n, self._say = n, say
        self._began = self._said = time.monotonic()

    def show(self, outcomes: list[Outcome], more: str = "") -> None:
        """Say it, with `more`, unless it was said a moment ago."""
        now = time.monotonic()
        if now - self._said >= WAIT_SECONDS:
            self._said = now
            n_now = sum(not outcome.is_stored for outcome in outcomes) or len(outcomes)
            left = (now - self._began) / n_now * (self._n - len(outcomes)) / 60 if n_now else 0
            self._say(f"{len(outcomes)} of {self._n} graded{f', about {left:.0f} min left' if left >= 1 else ''}{more}")


def require_submissions(
    submitted: Path,
    labs: list[Lab],
    table: Path | None = None,
    gradescope: Path | None = None,
    classroom50: Path | None = None,
    **_: object,
) -> list[Submitted]:
    """The submissions in a folder, found before anything is written.

    Raises:
        NothingToGrade: there are none, or several for a platform's file, or a file could not be written.
    """
    found = find_submissions(submitted, labs) if submitted.is_dir() else []
    if not found:
        wanted = labs[0].folder.name if len(labs) == 1 else f"{labs[0].folder.name}, …"
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder (LAB: {wanted}) and no STUDENT/LAB.zip")
    if (gradescope or classroom50) and len(found) > 1:
        raise NothingToGrade(f"a platform's file takes a single submission, and there are {len(found)}")
    for file in (table, gradescope, classroom50):
        if file and not file.absolute().parent.is_dir():
            raise NothingToGrade(f"{file} cannot be written: there is no folder {file.parent}")
    return found


def grade_submitted(
    submitted: Path,
    labs: list[Lab],
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    force: bool = False,
    table: Path | None = None,
    gradescope: Path | None = None,
    classroom50: Path | None = None,
    visibility: str = "after_published",
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Grade every submission in `submitted` (see `find_submissions`) and print a summary of each lab.

    Results are stored next to `submitted`, in `results`.

    Args:
        submitted: the folder.
        labs: the labs whose submissions are graded.
        workers, scheduler, unsafe, force: as in `grade_all`.
        table: a CSV file to be written.
        gradescope, classroom50: a file to be written for that platform, of a single submission.
        visibility: when Gradescope shows it to the student.
        on_outcome: called with each outcome, while others are graded.
        say: prints a line.

    Raises:
        NothingToGrade: see `require_submissions`.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    found = require_submissions(submitted, labs, table, gradescope, classroom50)
    course = submitted.parent

    outcomes: list[Outcome] = []
    progress = _Progress(len(found), say)

    def show_under_way(under_way: list[UnderWay]) -> None:
        names = [
            f"{one_line(each.submitted.student)} {each.submitted.lab.label} ({each.seconds:.0f} s)"
            for each in under_way
        ]
        progress.show(outcomes, f"; under way: {', '.join(names)}")

    grading = grade_all(
        found,
        course / RESULTS,
        course_secret(course),
        workers=workers,
        scheduler=scheduler,
        unsafe=unsafe,
        force=force,
        on_wait=show_under_way,
    )
    for outcome in track(grading, "grading", len(found), transient=True, disable=not sys.stdout.isatty()):
        on_outcome(outcome)
        outcomes.append(outcome)
        if not sys.stdout.isatty():
            progress.show(outcomes)
    n_stored = sum(outcome.is_stored for outcome in outcomes)
    say(f"{len(outcomes)} submissions: {len(outcomes) - n_stored} graded now, {n_stored} were graded before")
    outcomes.sort(key=lambda outcome: (outcome.submitted.lab.number, outcome.submitted.student))
    for lab in labs:
        if of_lab := [outcome for outcome in outcomes if outcome.submitted.lab == lab]:
            for line in summary_lines(lab, of_lab):
                say(line)
    say(f"results are in {course / RESULTS}, the secret of the hidden inputs in {course / FILE}")
    if table:
        write_table(table, outcomes)
        say(f"wrote {table}")
    if gradescope and (result := outcomes[0].result):
        write_results(gradescope, found[0].lab, result, visibility)
        say(f"wrote {gradescope}")
    if classroom50 and (result := outcomes[0].result):
        write_result(classroom50, found[0].lab, result, os.environ)
        say(f"wrote {classroom50}")
    return outcomes
