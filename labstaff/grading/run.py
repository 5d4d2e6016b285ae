"""`lab grade`: judges what lies in a folder of submissions, shows progress, and tells the summary."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit.labs.manifest import Lab
from labstaff.grading.many import Outcome, find_submissions, judge_all
from labstaff.grading.summary import summary_lines, write_table

RESULTS = "judged"


class NothingToGrade(Exception):
    """There is no submission where one was looked for; the message says where that was."""


def grade_submitted(
    submitted: Path,
    labs: list[Lab],
    results: Path | None = None,
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    table: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Judge every submission in `submitted` (see `find_submissions`) and tell the summary of each lab.

    Args:
        results: where results are kept, and found by a later run and by nbgrader's autograde; `judged` beside
            `submitted` when None.
        workers, scheduler, unsafe: as in `judge_all`.
        table: a CSV file to be written.

    Raises:
        NothingToGrade: there are no submissions.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    found = find_submissions(submitted, labs)
    if not found:
        names = ", ".join(lab.folder.name for lab in labs)
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder for {names}")
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("judging", total=len(found))
        judging = judge_all(
            found,
            results or submitted.parent / RESULTS,
            workers=workers,
            scheduler=scheduler,
            unsafe=unsafe,
        )
        for outcome in judging:
            outcomes.append(outcome)
            progress.update(bar, advance=1, description=f"{outcome.handed_in.lab.label} {outcome.handed_in.student}")
    n_kept = sum(outcome.was_kept for outcome in outcomes)
    say(f"{len(outcomes)} submissions: {len(outcomes) - n_kept} judged now, {n_kept} were judged before")
    outcomes.sort(key=lambda outcome: (outcome.handed_in.lab.number, outcome.handed_in.student))
    for lab in labs:
        of_lab = [outcome for outcome in outcomes if outcome.handed_in.lab == lab]
        for line in summary_lines(lab, of_lab) if of_lab else ():
            say(line)
    if table:
        write_table(table, outcomes)
        say(f"wrote {table}")
    return outcomes
