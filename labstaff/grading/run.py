"""Grades a folder of submissions: shows progress, prints a summary, writes the files that were asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path

from rich.progress import track

from labkit.labs.manifest import Lab
from labstaff.grader.course_state import course_state, keep_looked_at, keep_results_at, results_of
from labstaff.grader.submission import read_submission
from labstaff.grading.gradescope import Export
from labstaff.grading.parallel import Outcome, grade_all
from labstaff.grading.submitted import find_submissions
from labstaff.grading.summary import summary_lines, write_table


class NothingToGrade(Exception):
    """There is no submission in the folder; the message names it."""


def grade_submitted(
    submitted: Path,
    labs: list[Lab],
    results: Path | None = None,
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    table: Path | None = None,
    export: Export | None = None,
    force: bool = False,
    looked_at: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Grade every submission in `submitted` (see `find_submissions`) and print a summary of each lab.

    Args:
        submitted: the folder.
        labs: the labs whose submissions are graded.
        results: the folder of results, from now on also for later runs and for nbgrader's autograde; when None, the
            same as before, or `results` next to `submitted`.
        workers, scheduler, unsafe, force: as in `grade_all`.
        table: a CSV file to be written.
        export: what is written for Gradescope.
        looked_at: students whose submissions, as they are now, the instructor has looked at: nothing is withheld from
            them from now on.
        say: prints a line.

    Raises:
        NothingToGrade: there are no submissions, or none of a student who was looked at.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
        CannotExport: `export` names one file, and there are more submissions.
    """
    if not submitted.is_dir():
        raise NothingToGrade(f"there is no folder {submitted}")
    found = find_submissions(submitted, labs)
    if not found:
        names = ", ".join(lab.folder.name for lab in labs)
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder for {names}")
    if missing := set(looked_at) - {each.student for each in found}:
        raise NothingToGrade(f"--looked-at: {submitted} holds no submission of {', '.join(sorted(missing))}")
    if export:
        export.require(len(found))
    course = submitted.parent
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)  # an error here leaves the setting as it was
        keep_results_at(course, results.resolve())
    keep_looked_at(course, [read_submission(e.lab, e.path).key for e in found if e.student in looked_at])
    settings = course_state(course)
    grading = grade_all(
        found,
        results_of(course),
        seed=settings.seed,
        workers=workers,
        scheduler=scheduler,
        unsafe=unsafe,
        force=force,
        looked_at=settings.looked_at,
    )
    outcomes = list(track(grading, "grading", len(found), transient=True, disable=not sys.stdout.isatty()))
    n_stored = sum(outcome.is_stored for outcome in outcomes)
    say(f"{len(outcomes)} submissions: {len(outcomes) - n_stored} graded now, {n_stored} were graded before")
    if n_outdated := sum(outcome.was_outdated for outcome in outcomes):
        say(f"{n_outdated} results were of another version of the course: graded again")
    outcomes.sort(key=lambda outcome: (outcome.submitted.lab.number, outcome.submitted.student))
    for lab in labs:
        if of_lab := [outcome for outcome in outcomes if outcome.submitted.lab == lab]:
            for line in summary_lines(lab, of_lab):
                say(line)
    if table:
        write_table(table, outcomes)
        say(f"wrote {table}")
    if export:
        say(f"wrote {len(export.write(outcomes))} results to {export.path}")
    return outcomes
