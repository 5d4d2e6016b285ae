"""Runs labs' suites for the course's tests in a separate process, two at a time, while other tests run.

In the tests' own process they would add to the memory that tests of meters measure.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pkgutil
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import labkit.meters
import labkit.simulated_memory
import labkit.testing
from labkit.meters.kernels.cache import cached_kernels
from labkit.suite.forked import SLOW_IMPORTS, ForkedRunner
from labkit.suite.results import Ended, How, SuiteRun
from labstaff.authoring.mistakes import Mistake
from labstaff.grader.runner import SandboxedRunner

N_RUNNERS = 2
COURSE = (labkit.meters, labkit.simulated_memory, labkit.testing)
PRELOADED = (
    *SLOW_IMPORTS.values(),
    *(module.name for part in COURSE for module in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")),
)
"""What suites import: once for all runs."""
LONGEST_WAIT = 900.0


@dataclass(frozen=True)
class Job:
    """One run of a lab's suite: pytest's options, and which of its tests; all when empty.

    A run on a mistake ends once a test has reported the text that it must.
    """

    lab: str
    options: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    mistake: Mistake | None = None


def session_folder(name: str) -> Path:
    """A folder that is there until the tests have ended."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class SuiteRuns:
    """The runs of `jobs`, started at once. Called with a job, it waits for that job's run."""

    def __init__(self, jobs: Sequence[Job], sandboxed: bool) -> None:
        self.seconds: dict[Job, float] = {}
        self._runs: dict[Job, SuiteRun] = {}
        context = multiprocessing.get_context("spawn")
        self._done = context.Queue()
        self._process = context.Process(target=_run_all, args=(jobs, sandboxed, self._done))
        self._process.start()

    def __call__(self, job: Job) -> SuiteRun:
        """The run of `job`."""
        give_up = time.monotonic() + LONGEST_WAIT
        while job not in self._runs:
            assert time.monotonic() < give_up, f"no run of {job} within {LONGEST_WAIT:g} s"
            try:
                done, self._runs[done], self.seconds[done] = self._done.get(timeout=1)
            except Empty:
                assert self._process.is_alive(), "the process that runs the suites has ended"
        return self._runs[job]

    def close(self) -> None:
        """End the process and its children."""
        if self._process.is_alive() and self._process.pid:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()


def _run_all(jobs: Sequence[Job], sandboxed: bool, done: Any) -> None:
    os.setsid()
    with (
        tempfile.TemporaryDirectory(prefix="suites-") as folder,
        cached_kernels(Path(folder, "kernels")),  # most files' kernels are the solution's
        SandboxedRunner() if sandboxed else ForkedRunner(PRELOADED) as runner,
        ThreadPoolExecutor(N_RUNNERS) as pool,
    ):

        def run(job: Job) -> None:
            began = time.perf_counter()
            options = job.options
            try:
                if job.mistake:
                    source = Path(folder, job.lab, job.mistake.name)
                    job.mistake.write(source)
                    options = ("--src", str(source), "-p", "tests.until_found", "--says", job.mistake.says)
                result = runner.run(job.lab, *options, tests=job.tests)
            except Exception as error:
                result = SuiteRun(ended=Ended(How.FAILED, detail=f"{type(error).__name__}: {error}"))
            done.put((job, result, time.perf_counter() - began))

        list(pool.map(run, jobs))
