"""Runs labs' suites for the course's tests: two at a time, each in a child forked from a warm parent."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.suite import SuiteRun
from labkit.warm import WarmRunner

N_RUNNERS = 2
HEAVY = ("labkit.warm_torch", "matplotlib.pyplot")


@dataclass(frozen=True)
class Job:
    """One run of a lab's suite: which code it judges, and which of its tests run."""

    lab: str
    options: tuple[str, ...]
    tests: tuple[str, ...] = ()


class Judges:
    """Takes jobs all at once, so that both cores work while the first test waits for the first result."""

    def __init__(self, jobs: list[Job]) -> None:
        self._idle: queue.Queue[WarmRunner] = queue.Queue()
        self._runners = [WarmRunner(HEAVY) for _ in range(min(N_RUNNERS, len(jobs)))]
        for runner in self._runners:
            self._idle.put(runner)
        self._pool = ThreadPoolExecutor(N_RUNNERS)
        self._runs: dict[Job, Future[SuiteRun]] = {job: self._pool.submit(self._judge, job) for job in jobs}
        self.seconds: dict[Job, float] = {}

    def __call__(self, job: Job) -> SuiteRun:
        """The result of `job`."""
        return self._runs[job].result()

    def close(self) -> None:
        """Drop what has not begun, and end the parents."""
        self._pool.shutdown(cancel_futures=True)
        for runner in self._runners:
            runner.close()

    def _judge(self, job: Job) -> SuiteRun:
        runner = self._idle.get()
        began = time.perf_counter()
        try:
            return runner.run(job.lab, *job.options, tests=job.tests)
        finally:
            self.seconds[job] = time.perf_counter() - began
            self._idle.put(runner)


@pytest.fixture(scope="session")
def judges(request: pytest.FixtureRequest):
    """Results of all the jobs that the collected tests are parametrised with.

    Begun by the first test that asks and done before the last: its threads must not run while others weigh arrays.
    """
    jobs = [item.callspec.params["job"] for item in request.session.items if "job" in _params(item)]
    judges = Judges(list(dict.fromkeys(jobs)))
    request.config.stash[SECONDS] = judges.seconds
    yield judges
    judges.close()


SECONDS = pytest.StashKey[dict[Job, float]]()
FILE_SECONDS: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up where the time goes."""
    FILE_SECONDS[Path(report.location[0]).name] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where the time went: by file, and by lab for the runs of labs' suites."""
    by_file = sorted(FILE_SECONDS.items(), key=lambda item: -item[1])
    terminalreporter.section("where the time went")
    terminalreporter.write_line("  ".join(f"{name} {seconds:.1f} s" for name, seconds in by_file if seconds >= 0.05))
    runs: dict[str, list[float]] = defaultdict(list)
    for job, seconds in config.stash.get(SECONDS, {}).items():
        runs[job.lab].append(seconds)
    for lab, each in sorted(runs.items()):
        terminalreporter.write_line(
            f"{lab}: {len(each)} runs of its suite, {sum(each):.1f} s on {N_RUNNERS} runners, longest {max(each):.1f} s"
        )


def _params(item: pytest.Item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}
