"""Runs a review on versions of a lab's module, two at a time, each in a process of its own, and stores the verdicts."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.manifest import Lab
from labkit.review.file import Review
from labkit.review.stored import Verdict
from labkit.review.versions import Version, write
from labkit.suite.forked import SLOW_IMPORTS, ForkedRunner, heavy_modules, limit_memory
from labkit.suite.messages import LONGEST_LINE, ending_text, how_it_ended
from labkit.suite.results import How, State, SuiteRun, TestResult

N_AT_ONCE = 2
CPU_SECONDS = 60.0
"""For the tests of a task on one version, after which no further test is begun."""
MAX_LINES = 6
TORCH_METERS = ("labkit.meters.calls", "labkit.meters.steps", "labkit.meters.tensors")
"""Imported once, where the lab needs torch."""


@dataclass(frozen=True)
class Job:
    """The tests of a task, or one of them, to be run on a version."""

    task: str
    version: Version
    test: str = ""


class Runs:
    """Runs the tests of `review` on versions.

    Args:
        lab: the lab.
        review: its file of tests.
        seed: for random inputs.
        known: verdicts by `key`, which are not run again; new ones are added.
        prepare: called in the process of each run first; it can be pickled.
    """

    def __init__(
        self,
        lab: Lab,
        review: Review,
        seed: int = 0,
        known: dict[str, Verdict] | None = None,
        prepare: Callable[[], None] = limit_memory,
    ) -> None:
        self.lab, self.review, self.seed, self._prepare = lab, review, seed, prepare
        self.known = known if known is not None else {}
        self._runner: ForkedRunner | None = None

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all runs in this process so far, of whichever review."""
        return self._runner.cpu_seconds if self._runner else 0.0

    def key(self, job: Job) -> str:
        """Names what a verdict depends on."""
        parts = [self.review.fingerprints[job.task], job.task, job.test, str(self.seed), job.version.source]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def verdicts(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Verdict]]:
        """The verdict of each job, as soon as it is known; Ctrl-C ends what is under way."""
        waiting = []
        for job in jobs:
            if verdict := self.known.get(self.key(job)):
                yield job, verdict
            else:
                waiting.append(job)
        if not waiting:
            return
        runner = self._warm_runner()
        with tempfile.TemporaryDirectory(prefix="review-") as folder, ThreadPoolExecutor(N_AT_ONCE) as pool:
            futures: dict[Future[Verdict], Job] = {}
            try:
                for job in waiting:
                    futures[pool.submit(self._verdict, runner, job, Path(folder))] = job
                for future in as_completed(futures):
                    job = futures[future]
                    self.known[self.key(job)] = future.result()
                    yield job, future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                runner.stop()

    def _warm_runner(self) -> ForkedRunner:
        if self._runner is None:
            modules = heavy_modules(*self.lab.suite_files, self.review.file)
            meters = TORCH_METERS if SLOW_IMPORTS["torch"] in modules else ()
            self._runner = ForkedRunner((*modules, *meters, "labkit.review.plugin"))
        return self._runner

    def _verdict(self, runner: ForkedRunner, job: Job, folder: Path) -> Verdict:
        names = ",".join(task.name for task in self.lab.tasks)
        run = runner.run(
            self.lab.label,
            *(
                "-x",
                "--capture=sys",
                "-plabkit.review.plugin",
                "--lab",
                self.lab.label,
                "--review-task",
                job.task,
                "--review-tasks",
                names,
            ),
            *("--src", str(write(job.version, folder, self.lab)), "--seed", str(self.seed)),
            tests=(job.test,) if job.test else (),
            cpu_seconds=CPU_SECONDS,
            prepare=self._prepare,
            file=self.review.file,
        )
        return verdict_of(run)


def verdict_of(run: SuiteRun) -> Verdict:
    """What a run says about its version. One that cannot be run to its end does not accept it."""
    for result in run.results:
        if not result.passed:
            return Verdict(result.test, _failure_lines(result), result.state is State.NOT_STARTED)
    if run.ended.how is How.FINISHED and run.results:
        return Verdict()
    if run.ended.how is How.DIED:
        return Verdict("its process", (f"the tests ended their process: {how_it_ended(run.ended.status)}",))
    if run.ended.how is How.FAILED:
        return Verdict("review.py", _import_problem(run.ended.detail))
    return Verdict("review.py", (ending_text(run.ended) or "no test of this task was run",))


def _failure_lines(result: TestResult) -> tuple[str, ...]:
    failure = result.failure
    if result.state is State.NOT_STARTED:
        return ("it is not written yet",)
    text = f"{failure.error}: {failure.message}" if failure.error else failure.message or "not true"
    lines = [line for line in text.splitlines() if line.strip() and "Use -v to get" not in line]
    return tuple(line[:LONGEST_LINE] for line in (*failure.notes, *(f"  {line}" for line in lines[:MAX_LINES])))


def _import_problem(output: str) -> tuple[str, ...]:
    """What pytest says of a file that it cannot import: the lines of the exception."""
    lines = [line[1:].strip() for line in output.splitlines() if line.startswith("E ")]
    return tuple(f"it cannot be imported: {line}" for line in lines[:1]) or tuple(output.splitlines()[-3:])
