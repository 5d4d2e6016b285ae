"""Grades many submissions in parallel, on this machine or on a Dask cluster, and stores each result."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab
from labstaff.grader.grade import Grader, grade_now, hidden_seed, kept_at, of_submission
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, judged_otherwise, load, save
from labstaff.grader.submission import Submission, read_submission
from labstaff.grader.version import version_of
from labstaff.grading.submitted import Submitted


@dataclass(frozen=True)
class Outcome:
    """The result of one submission, or the problem that prevented one.

    `is_stored`: graded by an earlier run. `was_outdated`: the stored result was of another version of the course.
    """

    submitted: Submitted
    result: GradedSubmission | None
    problem: str = ""
    is_stored: bool = False
    was_outdated: bool = False


class NoScheduler(Exception):
    """The address is not that of a Dask scheduler; the message shows one."""


def grade_all(
    submissions: Sequence[Submitted],
    results: Path,
    *,
    seed: int | None = None,
    workers: int = 2,
    scheduler: str = "",
    unsafe: bool = False,
    force: bool = False,
    looked_at: Collection[str] = (),
) -> Iterator[Outcome]:
    """The outcome of each submission, in the order of completion; its result is in `results` by then.

    Submissions with the same content are graded once. Those with a result in `results` are not graded again, so a run
    that was killed continues where it ended.

    Args:
        submissions: see `find_submissions`.
        results: the folder of results.
        seed: of the random inputs; that of the course that holds `results` when None.
        workers: how many submissions are graded at once on this machine.
        scheduler: the address of a Dask scheduler, whose workers grade instead; each needs this course installed.
        unsafe: grade without bubblewrap.
        force: grade again what was graded before.
        looked_at: keys of submissions from which nothing is withheld.

    Raises:
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
        NoScheduler: no scheduler can have this address.
    """
    seed = hidden_seed(results.parent) if seed is None else seed
    waiting: dict[Path, list[tuple[Submitted, Submission]]] = {}
    for each in submissions:
        submission = read_submission(each.lab, each.path)
        for other in each.others:
            submission.flag(f"{other.name} was not graded: {each.path.name} was submitted too")
        path = kept_at(results, submission, seed)
        stored = None if force else load(path)
        if stored is not None:
            yield Outcome(each, of_submission(stored, submission, looked_at), is_stored=True)
        else:
            waiting.setdefault(path, []).append((each, submission))
    if not waiting:
        return
    n_workers = min(workers, len(waiting))
    labs = [each.lab for of_path in waiting.values() for each, _ in of_path]
    graders = _on_cluster(scheduler, seed, unsafe) if scheduler else _on_this_machine(n_workers, labs, seed, unsafe)
    with graders as (grade, n_threads), ThreadPoolExecutor(n_threads, initializer=_block_ctrl_c) as pool:

        def grade_and_store(path: Path, submission: Submission) -> GradedSubmission:
            result = grade(submission)
            if result.version != version_of(submission.lab, seed):
                raise RuntimeError("a worker has another version of the course or of its libraries")
            save(path, result)
            return result

        futures = {pool.submit(grade_and_store, path, of_path[0][1]): path for path, of_path in waiting.items()}
        try:
            for future in as_completed(futures):
                path = futures[future]
                for each, submission in waiting[path]:
                    if error := future.exception():
                        yield Outcome(each, None, one_line(f"{type(error).__name__}: {error}"))
                    else:
                        result = of_submission(future.result(), submission, looked_at)
                        yield Outcome(each, result, was_outdated=judged_otherwise(path))
        finally:  # Ctrl-C: what is being graded is finished and stored, the rest is not begun
            pool.shutdown(cancel_futures=True)


Graders = Iterator[tuple[Callable[[Submission], GradedSubmission], int]]
"""A function that grades one submission, to be called from so many threads at once."""


@contextlib.contextmanager
def _on_this_machine(workers: int, labs: Sequence[Lab], seed: int, unsafe: bool) -> Graders:
    """Each thread's submissions are graded in a sandbox of its own."""
    idle: queue.Queue[Grader] = queue.Queue()

    def grade(submission: Submission) -> GradedSubmission:
        grader = idle.get()
        try:
            return grade_now(grader, submission, seed)
        finally:
            idle.put(grader)

    with contextlib.ExitStack() as graders:
        for _ in range(workers):
            idle.put(graders.enter_context(Grader(labs, unsafe=unsafe)))
        yield grade, workers


@contextlib.contextmanager
def _on_cluster(address: str, seed: int, unsafe: bool) -> Graders:
    """A submission is sent as text to a worker of the cluster."""
    from distributed import Client

    def grade(submission: Submission) -> GradedSubmission:
        arguments = (submission.lab.folder.name, submission.source, submission.problem, seed, unsafe)
        return client.submit(grade_on_worker, *arguments, pure=False, retries=1).result()

    try:
        client = Client(address, timeout="30s")
    except (ValueError, TypeError) as error:
        raise NoScheduler(f"--scheduler {address}: {error}; like tcp://FIRST:8786") from None
    with client:
        yield grade, 2 * max(1, sum(client.nthreads().values()))


def grade_on_worker(lab: str, source: bytes, problem: str, seed: int, unsafe: bool) -> GradedSubmission:
    """On a worker of the cluster: grade one submission with this thread's grader."""
    if not hasattr(_thread, "grader"):
        _thread.grader = Grader(unsafe=unsafe)
    return grade_now(_thread.grader, Submission(find_lab(lab), source, problem), seed)


_thread = threading.local()


def _block_ctrl_c() -> None:
    """The main thread handles Ctrl-C; processes that a thread starts inherit what it blocks."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
