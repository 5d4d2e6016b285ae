"""Runs the judge on many submissions: on this machine's cores, or on a Dask cluster; what is judged stays judged."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import FOLDER_PATTERN, Lab
from labstaff.grader.grade import Judge, hidden_seed, judge_now, kept_at, of_submission
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import JudgedSubmission, judged_otherwise, load, save
from labstaff.grader.submission import Submission, read_submission
from labstaff.grader.version import version_of


@dataclass(frozen=True)
class HandedIn:
    """Where one student's submission for one lab lies: a folder, or a zip archive.

    `others` are further places of the same student's for the same lab, which are passed over.
    """

    student: str
    lab: Lab
    place: Path
    others: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of one submission: a result, or why the judge came to none.

    `was_kept`: judged by an earlier run. `was_otherwise`: judged before, by another version of the course. `seconds`:
    how long judging took, now.
    """

    handed_in: HandedIn
    judged: JudgedSubmission | None
    problem: str = ""
    was_kept: bool = False
    was_otherwise: bool = False
    seconds: float = 0.0


@dataclass
class Running:
    """Which submissions are being judged at this moment, by whom they are shown: student and lab."""

    since: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def shows(self, name: str) -> Iterator[None]:
        """`name` is being judged while the body runs."""
        self.since[name] = time.monotonic()
        try:
            yield
        finally:
            self.since.pop(name, None)


def find_submissions(submitted: Path, labs: list[Lab]) -> list[HandedIn]:
    """The submissions in a folder, by student, one for each student and lab: nbgrader's layout, or archives.

    `submitted/STUDENT/labNN_name/…`, `submitted/STUDENT/labNN_name.zip`, and where a single lab is asked for also
    `submitted/STUDENT.zip`. Of several the folder counts, which nbgrader takes too. Links are passed over: a submission
    cannot stand for another one.
    """
    by_name = {lab.folder.name: lab for lab in labs}
    places: dict[tuple[str, str], list[Path]] = {}
    for student in sorted(submitted.iterdir()):
        if student.is_symlink() or student.name.startswith("."):
            continue
        if student.is_dir():
            for place in sorted(student.iterdir()):
                name = place.name.removesuffix(".zip")
                if not place.is_symlink() and FOLDER_PATTERN.fullmatch(name) and name in by_name:
                    places.setdefault((student.name, name), []).append(place)
        elif student.suffix == ".zip" and len(labs) == 1:
            places.setdefault((student.stem, labs[0].folder.name), []).append(student)
    found = []
    for (student_name, name), all_places in sorted(places.items()):
        first, *others = sorted(all_places, key=lambda place: not place.is_dir())
        found.append(HandedIn(student_name, by_name[name], first, tuple(others)))
    return found


def judge_all(
    submissions: list[HandedIn],
    results: Path,
    *,
    seed: int | None = None,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    force: bool = False,
    running: Running | None = None,
    looked_at: Collection[str] = (),
) -> Iterator[Outcome]:
    """The outcome of each submission, as it comes; each is kept in `results` before it is given out.

    Submissions with the same content are judged once. Those that `results` holds already are not judged again, so that
    a run that was killed goes on where it ended.

    Args:
        seed: of the random inputs; that of the course in which `results` lies when None.
        workers: how many to judge at once on this machine.
        scheduler: the address of a Dask scheduler, whose workers then judge; each needs this course installed.
        unsafe: judge without bubblewrap.
        force: judge again what was judged before.
        running: is kept up to date with what is being judged on this machine.
        looked_at: keys of submissions of which nothing is withheld.

    Raises:
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    seed = hidden_seed(results.parent) if seed is None else seed
    waiting: dict[Path, list[tuple[HandedIn, Submission]]] = {}
    to_judge: dict[Path, Job] = {}
    for handed_in in submissions:
        submission = read_submission(handed_in.lab, handed_in.place)
        for other in handed_in.others:
            submission.flag(f"{other.name} is passed over: {handed_in.place.name} was handed in too")
        path = kept_at(results, submission, seed)
        kept = None if force else load(path)
        if kept is not None:
            yield Outcome(handed_in, of_submission(kept, submission, looked_at), was_kept=True)
            continue
        waiting.setdefault(path, []).append((handed_in, submission))
        to_judge[path] = Job(f"{handed_in.lab.label} {one_line(handed_in.student, 40)}", submission, path, seed)
    if not to_judge:
        return
    running = running or Running()
    engine = on_dask(scheduler, unsafe) if scheduler else on_this_machine(min(workers, len(to_judge)), unsafe, running)
    for path, result in engine(list(to_judge.values())):
        for handed_in, submission in waiting[path]:
            if isinstance(result, Judged):
                judged = of_submission(result.judged, submission, looked_at)
                otherwise = judged_otherwise(path)
                yield Outcome(handed_in, judged, was_otherwise=otherwise, seconds=result.seconds)
            else:
                yield Outcome(handed_in, None, problem=one_line(f"{type(result).__name__}: {result}"))


@dataclass(frozen=True)
class Job:
    """One content to be judged: under which name it is shown, and where its result is kept."""

    name: str
    submission: Submission
    path: Path
    seed: int


@dataclass(frozen=True)
class Judged:
    """A result that is kept by now, and how long it took."""

    judged: JudgedSubmission
    seconds: float


Engine = Callable[[list[Job]], Iterator[tuple[Path, Judged | Exception]]]


def on_this_machine(workers: int, unsafe: bool, running: Running) -> Engine:
    """Judges here, `workers` at a time, each with a sandbox of its own.

    Ctrl-C is the main thread's: what is being judged then comes to its end and is kept, the rest is not begun.
    """

    def engine(jobs: list[Job]) -> Iterator[tuple[Path, Judged | Exception]]:
        idle: queue.Queue[Judge] = queue.Queue()

        def one(job: Job) -> Judged:
            judge = idle.get()
            began = time.monotonic()
            try:
                with running.shows(job.name):
                    judged = judge_now(judge, job.submission, job.seed)
                save(job.path, judged)
            finally:
                idle.put(judge)
            return Judged(judged, time.monotonic() - began)

        with ExitStack() as judges, ThreadPoolExecutor(workers, initializer=_leave_ctrl_c_to_the_main_thread) as pool:
            labs = [job.submission.lab for job in jobs]
            for _ in range(workers):
                idle.put(judges.enter_context(Judge(labs, unsafe=unsafe)))
            futures = {pool.submit(one, job): job.path for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], _result(future)
            finally:
                for future in futures:
                    future.cancel()

    return engine


class NoScheduler(Exception):
    """A Dask scheduler's address that names none; the message says how one looks."""


def on_dask(address: str, unsafe: bool) -> Engine:
    """Judges on the workers of a Dask cluster: a submission travels as its text, and comes back as plain data."""

    def engine(jobs: list[Job]) -> Iterator[tuple[Path, Judged | Exception]]:
        from distributed import Client
        from distributed import as_completed as as_they_come

        try:
            scheduler = Client(address, timeout="30s")
        except (ValueError, TypeError) as error:
            raise NoScheduler(f"--scheduler {address}: {error}; like tcp://FIRST:8786") from None
        with scheduler as client:
            futures = {}
            for job in jobs:
                told = {"lab": job.submission.lab.folder.name, "source": job.submission.source}
                told |= {"problem": job.submission.problem}
                futures[client.submit(judge_here, told, job.seed, unsafe, pure=False, retries=1)] = job
            for future in as_they_come(list(futures)):
                yield futures[future].path, _kept(futures[future], _result(future))

    return engine


def judge_here(told: dict[str, Any], seed: int, unsafe: bool) -> Judged:
    """On a worker: judge one submission with the judge that this thread keeps warm."""
    if not hasattr(_mine, "judge"):
        _mine.judge = Judge(unsafe=unsafe)
    began = time.monotonic()
    judged = judge_now(_mine.judge, Submission(find_lab(told["lab"]), told["source"], told["problem"]), seed)
    return Judged(judged, time.monotonic() - began)


_mine = threading.local()


def _kept(job: Job, result: Judged | Exception) -> Judged | Exception:
    """A worker's result, kept here if this version of the course has judged."""
    if not isinstance(result, Judged):
        return result
    if result.judged.version != version_of(job.submission.lab, job.seed):
        return RuntimeError("a worker has another version of the course, or of its libraries: nothing was kept")
    try:
        save(job.path, result.judged)
    except OSError as error:
        return error
    return result


def _result(future: Future | Any) -> Any:
    try:
        return future.result()
    except Exception as error:
        return error


def _leave_ctrl_c_to_the_main_thread() -> None:
    """Processes that a thread starts inherit what it has blocked: they are not interrupted beside it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
