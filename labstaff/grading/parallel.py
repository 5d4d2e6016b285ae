"""Grades many submissions at once, over any `concurrent.futures` executor, and stores each result."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab
from labstaff.grader.course_state import seed_of
from labstaff.grader.grade import Grader, grade_now, kept_at, with_flags_of
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, load, save
from labstaff.grader.submission import Submission, read_submission
from labstaff.grading.submitted import Submitted


@dataclass(frozen=True)
class Outcome:
    """The result of one submission, or the problem that prevented one. `is_stored`: graded by an earlier run."""

    submitted: Submitted
    result: GradedSubmission | None
    problem: str = ""
    is_stored: bool = False


class NoScheduler(Exception):
    """The address is not that of a Dask scheduler; the message shows one."""


def grade_all(
    submissions: Sequence[Submitted],
    results: Path,
    secret: bytes,
    *,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    force: bool = False,
    on_wait: Callable[[list[UnderWay]], None] = lambda _under_way: None,
) -> Iterator[Outcome]:
    """The outcome of each submission, in the order of completion; its result is in `results` by then.

    Submissions with the same content are graded once. Those with a result in `results` are not graded again, so a run
    that was killed continues where it ended.

    Args:
        submissions: see `find_submissions`.
        results: the folder of results.
        secret: of the course, which decides the random inputs.
        workers: how many submissions are graded at once on this machine.
        scheduler: the address of a Dask scheduler, whose workers grade instead; each needs this course installed.
        unsafe: grade without bubblewrap.
        force: grade again what was graded before.
        on_wait: called about once a second, with those that are graded now.

    Raises:
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
        NoScheduler: no scheduler can have this address.
    """
    waiting: dict[Path, list[tuple[Submitted, Submission]]] = {}
    for each in submissions:
        submission = read_submission(each.lab, each.path)
        path = kept_at(results, submission, seed_of(secret, submission.key))
        stored = None if force else load(path)
        if stored is not None:
            yield Outcome(each, with_flags_of(submission, stored), is_stored=True)
        else:
            waiting.setdefault(path, []).append((each, submission))
    if not waiting:
        return
    labs = [each.lab for same in waiting.values() for each, _ in same]
    graders = _cluster(scheduler, unsafe) if scheduler else _this_machine(min(workers, len(waiting)), labs, unsafe)
    with graders as (executor, grade):
        futures, began = {}, dict[Future[GradedSubmission], float]()
        for path, ((_, submission), *_) in waiting.items():
            arguments = (submission.lab.folder.name, submission.source, submission.problem)
            futures[executor.submit(grade, *arguments, seed_of(secret, submission.key))] = path
        for future in _as_they_end(futures, began, lambda: on_wait(_under_way(futures, began, waiting))):
            path = futures[future]
            try:
                result = future.result()
                if path.stem != f"{result.key}-{result.version}":
                    raise RuntimeError("a worker has another version of the course or of its libraries")
                save(path, result)
            except Exception as error:
                problem = one_line(f"{type(error).__name__}: {error}")
                yield from (Outcome(each, None, problem) for each, _ in waiting[path])
            else:
                for each, submission in waiting[path]:
                    yield Outcome(each, with_flags_of(submission, result))


class UnderWay(NamedTuple):
    """A submission that is graded now, and for how many seconds so far."""

    submitted: Submitted
    seconds: float


def _as_they_end(
    futures: Collection[Future[GradedSubmission]],
    began: dict[Future[GradedSubmission], float],
    on_wait: Callable[[], None],
) -> Iterator[Future[GradedSubmission]]:
    """The futures in the order of their ends; `began` gets when each was seen running first."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
        now = time.monotonic()
        for future in pending:
            if future.running():
                began.setdefault(future, now)
        yield from done
        on_wait()


def _under_way(
    futures: dict[Future[GradedSubmission], Path],
    began: dict[Future[GradedSubmission], float],
    waiting: dict[Path, list[tuple[Submitted, Submission]]],
) -> list[UnderWay]:
    now = time.monotonic()
    running = [future for future in futures if future.running()]
    return [UnderWay(waiting[futures[each]][0][0], now - began.get(each, now)) for each in running]


Graders = Iterator[tuple[Executor, Callable[..., GradedSubmission]]]
"""An executor, and the function that grades one submission there, which is sent as text."""


@contextlib.contextmanager
def _this_machine(workers: int, labs: Sequence[Lab], unsafe: bool) -> Graders:
    """Threads, which wait for the grader's processes: each submission has a sandbox of its own."""
    with Grader(labs, unsafe=unsafe) as grader, ThreadPoolExecutor(workers, initializer=_block_ctrl_c) as pool:
        yield pool, functools.partial(_grade, grader)


@contextlib.contextmanager
def _cluster(address: str, unsafe: bool) -> Graders:
    """The workers of a Dask cluster."""
    from distributed import Client

    try:
        client = Client(address, timeout="30s")
    except (ValueError, TypeError) as error:
        raise NoScheduler(f"--scheduler {address}: {error}; like tcp://FIRST:8786") from None
    with client:
        yield client.get_executor(pure=False, retries=1), functools.partial(grade_on_worker, unsafe)


def _grade(grader: Grader, lab: str, source: bytes, problem: str, seed: int) -> GradedSubmission:
    return grade_now(grader, Submission(find_lab(lab), source, problem), seed)


def grade_on_worker(unsafe: bool, *submission: Any) -> GradedSubmission:
    """On a worker of the cluster, whose threads share a grader."""
    return _grade(_grader_of_process(unsafe), *submission)


@functools.cache
def _grader_of_process(unsafe: bool) -> Grader:
    return Grader(unsafe=unsafe)


def _block_ctrl_c() -> None:
    """Processes that a thread starts inherit what it blocks: Ctrl-C is for `lab grade` alone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
