"""Runs the judge on many submissions: on this machine's cores, or on a Dask cluster; what is judged stays judged."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import FOLDER_PATTERN, Lab
from labstaff.judge.judging import Judge, hidden_seed, with_flags
from labstaff.judge.results import JudgedSubmission, load, path_of, save
from labstaff.judge.submission import Submission, read_submission


@dataclass(frozen=True)
class HandedIn:
    """Where one student's submission for one lab lies: a folder, or a zip archive."""

    student: str
    lab: Lab
    place: Path


@dataclass(frozen=True)
class Outcome:
    """What became of one submission: a result, or why the judge came to none."""

    handed_in: HandedIn
    judged: JudgedSubmission | None
    problem: str = ""
    was_kept: bool = False


def find_submissions(submitted: Path, labs: list[Lab]) -> list[HandedIn]:
    """The submissions in a folder, by student: nbgrader's layout, or archives.

    `submitted/STUDENT/labNN_name/…`, `submitted/STUDENT/labNN_name.zip`, and where a single lab is asked for also
    `submitted/STUDENT.zip`. Links are passed over: a submission cannot stand for another one.
    """
    by_name = {lab.folder.name: lab for lab in labs}
    found = []
    for student in sorted(submitted.iterdir()):
        if student.is_symlink() or student.name.startswith("."):
            continue
        if student.is_dir():
            for place in sorted(student.iterdir()):
                name = place.name.removesuffix(".zip")
                if not place.is_symlink() and FOLDER_PATTERN.fullmatch(name) and name in by_name:
                    found.append(HandedIn(student.name, by_name[name], place))
        elif student.suffix == ".zip" and len(labs) == 1:
            found.append(HandedIn(student.stem, labs[0], student))
    return found


def judge_all(
    submissions: list[HandedIn], results: Path, *, workers: int = 2, scheduler: str = "", unsafe: bool = False
) -> Iterator[Outcome]:
    """The outcome of each submission, as it comes; each is kept in `results` before it is given out.

    Submissions with the same content are judged once. Those that `results` holds already are not judged again, so that
    a run that was killed goes on where it ended.

    Args:
        workers: how many to judge at once on this machine.
        scheduler: the address of a Dask scheduler, whose workers then judge; each needs this course installed.
        unsafe: judge without bubblewrap.

    Raises:
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """
    seed = hidden_seed(results)
    waiting: dict[Path, list[tuple[HandedIn, Submission]]] = {}
    to_judge: dict[Path, Submission] = {}
    for handed_in in submissions:
        submission = read_submission(handed_in.lab, handed_in.place)
        path = path_of(results, handed_in.lab.folder.name, submission.key)
        kept = load(path)
        if kept is not None:
            yield Outcome(handed_in, with_flags(kept, submission), was_kept=True)
            continue
        waiting.setdefault(path, []).append((handed_in, submission))
        to_judge[path] = submission
    if not to_judge:
        return
    engine = on_dask(scheduler, unsafe) if scheduler else on_this_machine(min(workers, len(to_judge)), unsafe)
    for path, result in engine(to_judge, seed):
        if isinstance(result, JudgedSubmission):
            save(path, result)
        for handed_in, submission in waiting[path]:
            if isinstance(result, JudgedSubmission):
                yield Outcome(handed_in, with_flags(result, submission))
            else:
                yield Outcome(handed_in, None, problem=f"{type(result).__name__}: {result}")


Engine = Callable[[dict[Path, Submission], int], Iterator[tuple[Path, JudgedSubmission | Exception]]]


def on_this_machine(workers: int, unsafe: bool) -> Engine:
    """Judges here, `workers` at a time, each with a sandbox of its own."""

    def engine(to_judge: dict[Path, Submission], seed: int) -> Iterator[tuple[Path, JudgedSubmission | Exception]]:
        idle: queue.Queue[Judge] = queue.Queue()

        def one(submission: Submission) -> JudgedSubmission:
            judge = idle.get()
            try:
                return judge.judge(submission, seed)
            finally:
                idle.put(judge)

        with ExitStack() as judges, ThreadPoolExecutor(workers) as pool:
            for _ in range(workers):
                idle.put(judges.enter_context(Judge(unsafe=unsafe)))
            futures = {pool.submit(one, submission): path for path, submission in to_judge.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], _result(future)
            finally:
                for future in futures:
                    future.cancel()

    return engine


def on_dask(address: str, unsafe: bool) -> Engine:
    """Judges on the workers of a Dask cluster: a submission travels as its text, and comes back as plain data."""

    def engine(to_judge: dict[Path, Submission], seed: int) -> Iterator[tuple[Path, JudgedSubmission | Exception]]:
        from distributed import Client
        from distributed import as_completed as as_they_come

        with Client(address, timeout="30s") as client:
            futures = {}
            for path, submission in to_judge.items():
                told = {"lab": submission.lab.folder.name, "source": submission.source}
                told |= {"problem": submission.problem, "flags": submission.flags}
                futures[client.submit(judge_here, told, seed, unsafe, pure=False, retries=1)] = path
            for future in as_they_come(list(futures)):
                yield futures[future], _result(future)

    return engine


_judge: Judge | None = None


def judge_here(told: dict[str, Any], seed: int, unsafe: bool) -> JudgedSubmission:
    """On a worker: judge one submission with the judge that this process keeps warm."""
    global _judge
    if _judge is None:
        _judge = Judge(unsafe=unsafe)
    return _judge.judge(Submission(find_lab(told["lab"]), told["source"], told["problem"], told["flags"]), seed)


def _result(future: Future | Any) -> JudgedSubmission | Exception:
    try:
        return future.result()
    except Exception as error:
        return error
