"""`lab grade`: judges what lies in a folder of submissions, tells the summary, and has the points recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from labkit.labs.manifest import Lab
from labstaff.grading.many import Outcome, Running, find_submissions, judge_all
from labstaff.grading.summary import summary_lines, write_table
from labstaff.judge.kept import keep_results_at, kept, results_of
from labstaff.plain_text import one_line

ALL_WELL, SOME_NOT_GRADED, SOME_REFUSED, STOPPED = 0, 1, 3, 130
"""Exit statuses: all graded; some not judged or not recorded; all recorded, some hold nothing to judge; Ctrl-C."""


class NothingToGrade(Exception):
    """There is no submission where one was looked for; the message says where that was."""


def grade(
    submitted: Path,
    labs: list[Lab],
    results: Path | None = None,
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    table: Path | None = None,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """All of `lab grade`: judge, tell, and in an nbgrader course record; returns the exit status.

    Args: as in `grade_submitted`. `force`: judge and record again what was judged and recorded before.

    Raises:
        NothingToGrade: there are no submissions.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    course = submitted.parent
    try:
        with stopped_by_ctrl_c(say):
            is_course = (course / "nbgrader_config.py").exists()
            flags = _made_ready(course, say) if is_course and submitted.is_dir() else {}
            outcomes = grade_submitted(
                submitted,
                labs,
                results,
                workers=workers,
                scheduler=scheduler,
                unsafe=unsafe,
                table=table,
                force=force,
                flags=flags,
                say=say,
            )
            recorded = _recorded(course, labs, outcomes, force=force, say=say) if is_course else True
    except KeyboardInterrupt:
        say("lab grade: stopped. What was judged is kept; the same command goes on from there.")
        return STOPPED
    if not recorded or any(outcome.judged is None for outcome in outcomes):
        say("lab grade: some were not graded: see FAILED and NOT RECORDED above, and run it again")
        return SOME_NOT_GRADED
    if any(outcome.judged and outcome.judged.status != "judged" for outcome in outcomes):
        say("lab grade: some could not be judged and have 0 points: see “not judged” above")
        return SOME_REFUSED
    return ALL_WELL


def grade_submitted(
    submitted: Path,
    labs: list[Lab],
    results: Path | None = None,
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    table: Path | None = None,
    force: bool = False,
    flags: dict[tuple[str, str], list[str]] | None = None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Judge every submission in `submitted` (see `find_submissions`) and tell the summary of each lab.

    Args:
        results: where results are kept from now on, and found by later runs and by nbgrader's autograde; when None,
            where they were kept before, or `judged` beside `submitted`.
        workers, scheduler, unsafe, force: as in `judge_all`.
        table: a CSV file to be written.
        flags: what to say besides of a submission, by student and lab.

    Raises:
        NothingToGrade: there are no submissions.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    if not submitted.is_dir():
        raise NothingToGrade(f"there is no folder {submitted}")
    found = find_submissions(submitted, labs)
    if not found:
        names = ", ".join(lab.folder.name for lab in labs)
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder for {names}")
    course = submitted.parent
    if results is not None:
        keep_results_at(course, results.resolve())
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
    )
    outcomes = list(_shown(judging, len(found), running))
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
    return outcomes


@contextlib.contextmanager
def stopped_by_ctrl_c(say: Callable[[str], None] = print) -> Iterator[None]:
    """In the body, Ctrl-C says at once what happens now and raises KeyboardInterrupt; a second one ends the process.

    Processes that are started in the body do not see it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))
        say("stopping: what is being judged comes to its end and is kept; Ctrl-C again drops it")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _unseen_ctrl_c() -> Iterator[None]:
    """Processes that are started in the body inherit that SIGINT is blocked, as the terminal sends it to all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _made_ready(course: Path, say: Callable[[str], None]) -> dict[tuple[str, str], list[str]]:
    """Make the course's submissions ready; returns what is odd about their times, by student and lab."""
    from labstaff.course.paths import submissions
    from labstaff.course.ready import make_ready, timestamp_flags

    for line in make_ready(course):
        say(line)
    return {(places.student, places.assignment): timestamp_flags(places) for places in submissions(course)}


def _recorded(
    course: Path, labs: list[Lab], outcomes: Sequence[Outcome], *, force: bool, say: Callable[[str], None]
) -> bool:
    """Have nbgrader record all that was judged, and say how many; whether all of it is recorded now."""
    from labstaff.course.nbgrader_process import Nbgrader
    from labstaff.course.record import Recorded, record

    everything: list[Recorded] = []
    with _unseen_ctrl_c():
        started = Nbgrader()
    with started as nbgrader:
        for lab in labs:
            mine = [each.handed_in for each in outcomes if each.judged and each.handed_in.lab == lab]
            if not mine:
                continue
            folders = {each.student for each in mine if each.place.is_dir()}
            done = record(course, lab, nbgrader, folders, force=force, say=say)
            done.problems |= {
                each.student: f"{each.place.name} is an archive: nbgrader records folders (nbgrader zip_collect)"
                for each in mine
                if each.student not in folders
            }
            for student, problem in sorted(done.problems.items()):
                say(f"NOT RECORDED: {one_line(student)}: {lab.label}: {problem}")
            everything.append(done)
    n_anew, n_passed_over = (sum(len(getattr(each, kind)) for each in everything) for kind in ("anew", "passed_over"))
    n_not = sum(len(each.problems) for each in everything)
    n_feedback = sum(len(each.feedback) for each in everything)
    told = [f"{n_anew} recorded", f"{n_passed_over} passed over (recorded before, unchanged)"]
    told += [f"{n_not} NOT recorded"] if n_not else []
    told += [f"feedback of {n_feedback} made again"] if n_feedback else []
    say(f"gradebook.db: {', '.join(told)}")
    return not n_not


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
