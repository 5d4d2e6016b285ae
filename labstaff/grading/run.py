"""Judges what lies in a folder of submissions, shows progress, and tells the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from labkit.labs.manifest import Lab
from labstaff.grader.kept import keep_looked_at, keep_results_at, kept, results_of
from labstaff.grader.plain_text import one_line
from labstaff.grader.submission import read_submission
from labstaff.grading.gradescope import Export
from labstaff.grading.many import Outcome, Running, find_submissions, judge_all
from labstaff.grading.summary import summary_lines, write_table


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
    export: Export | None = None,
    force: bool = False,
    looked_at: Collection[str] = (),
    flags: dict[tuple[str, str], list[str]] | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Judge every submission in `submitted` (see `find_submissions`) and tell the summary of each lab.

    Args:
        results: where results are kept from now on, and found by later runs and by nbgrader's autograde; when None,
            where they were kept before, or `judged` beside `submitted`.
        workers, scheduler, unsafe, force: as in `judge_all`.
        table: a CSV file to be written.
        export: what Gradescope is to be given.
        looked_at: students at whose submissions, as they are now, the instructor has looked: nothing of them is
            withheld from now on.
        flags: what to say besides of a submission, by student and lab.
        on_outcome: called with each outcome as it comes.

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
    if export:
        export.require(len(found))
    course = submitted.parent
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)  # what is no folder is not remembered as one
        keep_results_at(course, results.resolve())
    if missing := set(looked_at) - {each.student for each in found}:
        raise NothingToGrade(f"--looked-at: {submitted} holds no submission of {', '.join(sorted(missing))}")
    keep_looked_at(course, [read_submission(e.lab, e.place).key for e in found if e.student in looked_at])
    running = Running()
    judging = judge_all(
        found,
        results_of(course),
        seed=kept(course).seed,
        workers=workers,
        scheduler=scheduler,
        unsafe=unsafe,
        force=force,
        running=running,
        looked_at=kept(course).looked_at,
    )
    outcomes = []
    for outcome in _shown(judging, len(found), running):
        outcomes.append(outcome)
        on_outcome(outcome)
    n_kept = sum(outcome.was_kept for outcome in outcomes)
    say(f"{len(outcomes)} submissions: {len(outcomes) - n_kept} judged now, {n_kept} were judged before")
    if n_otherwise := sum(outcome.was_otherwise for outcome in outcomes):
        say(f"{n_otherwise} results were judged by another version of the course: judged again")
    outcomes.sort(key=lambda outcome: (outcome.handed_in.lab.number, outcome.handed_in.student))
    for lab in labs:
        of_lab = [outcome for outcome in outcomes if outcome.handed_in.lab == lab]
        for line in summary_lines(lab, of_lab) if of_lab else ():
            say(line)
        for outcome in of_lab:
            for flag in (flags or {}).get((outcome.handed_in.student, lab.folder.name), []):
                say(f"look at: {one_line(outcome.handed_in.student)}: {flag}")
    if table:
        write_table(table, outcomes)
        say(f"wrote {table}")
    if export:
        say(f"wrote {len(export.write(outcomes))} results to {export.path}")
    return outcomes


def _shown(judging: Iterator[Outcome], n_submissions: int, running: Running) -> Iterator[Outcome]:
    """The outcomes, with a bar on a terminal that says which submission takes longest at the moment."""

    class Longest(ProgressColumn):
        def render(self, task: Task) -> Text:
            since = min(((began, name) for name, began in list(running.since.items())), default=None)
            return Text(f"{since[1]} {time.monotonic() - since[0]:.0f} s" if since else "")

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Longest())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("judging", total=n_submissions)
        for outcome in judging:
            progress.update(bar, advance=1)
            yield outcome
