"""`lab grade`: judges a folder of submissions, and in an nbgrader course has nbgrader record what was judged."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType

from labkit.labs.manifest import Lab
from labstaff.course.gradebook import require_readable
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.paths import CONFIG_FILE, submissions
from labstaff.course.ready import make_ready, timestamp_flags
from labstaff.course.record import Recorded
from labstaff.course.recorder import Recorder
from labstaff.grader.plain_text import one_line
from labstaff.grading.gradescope import Export
from labstaff.grading.many import Outcome
from labstaff.grading.run import grade_submitted

ALL_WELL, SOME_NOT_GRADED, SOME_REFUSED, STOPPED = 0, 1, 3, 130
"""Exit statuses: all graded; some not judged or not recorded; all recorded, some hold nothing to judge; Ctrl-C."""


def grade(
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
) -> int:
    """All of `lab grade`: judge, tell, and in an nbgrader course record; returns the exit status.

    Args: as in `grade_submitted`. `force`: judge and record again what was judged and recorded before.

    Raises:
        NoGradebook: the course's gradebook cannot be read.
        NothingToGrade: there are no submissions.
        CannotExport: `export` names one file, and there are more submissions.
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    course = submitted.parent
    try:
        with stopped_by_ctrl_c(say):
            is_course = (course / CONFIG_FILE).exists()
            if is_course:
                require_readable(course)
            flags = _made_ready(course, say) if is_course and submitted.is_dir() else {}
            judge = partial(
                grade_submitted,
                submitted,
                labs,
                results,
                workers=workers,
                scheduler=scheduler,
                unsafe=unsafe,
                table=table,
                export=export,
                force=force,
                looked_at=looked_at,
                flags=flags,
                say=say,
            )
            recorded = True
            if not is_course:
                outcomes = judge()
            else:
                with Recorder(course, _nbgrader, force=force, say=say) as recorder:
                    outcomes = judge(on_outcome=recorder.judged)
                    recorded = _recorded(outcomes, recorder.finish(outcomes), say)
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


def _nbgrader() -> AbstractContextManager[Nbgrader]:
    """nbgrader in a process that has SIGINT blocked from its start, as the terminal sends it to all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return Nbgrader()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _made_ready(course: Path, say: Callable[[str], None]) -> dict[tuple[str, str], list[str]]:
    """Make the course's submissions ready; returns what is odd about their times, by student and lab."""
    for line in make_ready(course):
        say(line)
    return {(places.student, places.assignment): timestamp_flags(places) for places in submissions(course)}


def _recorded(outcomes: Sequence[Outcome], done: dict[Lab, Recorded], say: Callable[[str], None]) -> bool:
    """Say how many were recorded, and who was not; whether all that was judged is recorded now."""
    n_not = 0
    for lab in dict.fromkeys(each.handed_in.lab for each in outcomes):
        mine = [each.handed_in for each in outcomes if each.judged and each.handed_in.lab == lab]
        problems = dict(done[lab].problems) if lab in done else {}
        problems |= {
            each.student: f"{each.place.name} is an archive: nbgrader records folders (nbgrader zip_collect)"
            for each in mine
            if not each.place.is_dir()
        }
        for student, problem in sorted(problems.items()):
            say(f"NOT RECORDED: {one_line(student)}: {lab.label}: {problem}")
        n_not += len(problems)
    n_anew, n_passed_over, n_feedback = (
        sum(len(getattr(each, kind)) for each in done.values()) for kind in ("anew", "passed_over", "feedback")
    )
    told = [f"{n_anew} recorded", f"{n_passed_over} passed over (recorded before, unchanged)"]
    told += [f"{n_not} NOT recorded"] if n_not else []
    told += [f"feedback of {n_feedback} made again"] if n_feedback else []
    say(f"gradebook.db: {', '.join(told)}")
    return not n_not
