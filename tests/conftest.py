"""Has labs' suites run beside the course's tests, hands out their results, and says where the time went."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import typing
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # suites run beside the tests: torch's threads would wait for one another

import judging
import pytest

from labkit.labs.catalog import ROOT
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import verdict_from
from labstaff.judge.sandbox import SandboxMissing, require_bubblewrap

LONGEST_WAIT = 900.0


@dataclass(frozen=True)
class Job:
    """One run of a lab's suite: which code it judges, and which of its tests run."""

    lab: str
    options: tuple[str, ...]
    tests: tuple[str, ...] = ()


class Judges:
    """A process that runs all jobs from now on, while other tests run here; see judging.py."""

    def __init__(self, jobs: list[Job], sandboxed: bool) -> None:
        self.jobs = jobs
        self.seconds: dict[Job, float] = {}
        self._runs: dict[Job, SuiteRun] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="judging-")
        asked, self._results = Path(self._folder.name, "jobs.json"), Path(self._folder.name, "results")
        asked.write_text(json.dumps([asdict(job) for job in jobs]), encoding="utf-8")
        self._results.touch()
        command = [sys.executable, judging.__file__, str(asked), str(self._results), "bubblewrap" if sandboxed else ""]
        beside = [str(ROOT), str(Path(__file__).parent)]  # this house, none installed; and a plugin that runs name
        path = os.pathsep.join([*beside, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "PYTHONPATH": path})
        self._n_read = 0

    def __call__(self, job: Job) -> SuiteRun:
        """The result of `job`, waited for."""
        give_up = time.monotonic() + LONGEST_WAIT
        while job not in self._runs:
            self._read()
            if job not in self._runs:
                assert self._process.poll() is None, "the process that runs the suites has ended"
                assert time.monotonic() < give_up, f"no result of {job} within {LONGEST_WAIT:g} s"
                time.sleep(0.02)
        return self._runs[job]

    def close(self) -> None:
        """End the process and all that it has started."""
        self._read()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _read(self) -> None:
        with self._results.open(encoding="utf-8") as file:
            file.seek(self._n_read)
            while (line := file.readline()).endswith("\n"):
                self._n_read = file.tell()
                told = json.loads(line)
                run, job = told["run"], self.jobs[told["number"]]
                verdicts = [verdict_from(verdict) for verdict in run["verdicts"]]
                self._runs[job] = SuiteRun(verdicts, run["n_collected"], run["problem"])
                self.seconds[job] = told["seconds"]


@pytest.fixture(scope="session", autouse=True)
def judges(request: pytest.FixtureRequest) -> Iterator[Judges | None]:
    """Results of all the jobs that the collected tests are parametrised with; begun before the first test."""
    jobs = [item.callspec.params["job"] for item in request.session.items if "job" in _params(item)]
    if not jobs:
        yield None
        return
    judges = Judges(list(dict.fromkeys(jobs)), sandboxed=request.config.option.sandboxed)
    request.config.stash[SECONDS] = judges.seconds
    yield judges
    judges.close()


@pytest.fixture(autouse=True)
def python_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graded answer's process changes for good is as before after a test that loads an answer in this one."""
    for holder, name in ((copy, "_reconstruct"), (typing.ForwardRef, "_evaluate")):
        monkeypatch.setattr(holder, name, getattr(holder, name))


@pytest.hookimpl(trylast=True)  # after -k and -m, so that only what was asked for is counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and let the tests that wait for the suites' results come last."""
    sandboxed = [item for item in items if item.get_closest_marker("sandbox")]
    if sandboxed and (problem := _sandbox_problem()):
        config.stash[LEFT_OUT] = f"sandbox: {len(sandboxed)} tests need a sandbox and were not run: {problem}"
        items[:] = [item for item in items if item not in sandboxed]
    items.sort(key=lambda item: "job" in _params(item))


def _sandbox_problem() -> str:
    """Why there is no sandbox on this machine, in one line; nothing where there is one."""
    try:
        require_bubblewrap()
    except SandboxMissing as error:
        return str(error).partition("\n")[0]
    return ""


LEFT_OUT = pytest.StashKey[str]()
SECONDS = pytest.StashKey[dict[Job, float]]()
FILE_SECONDS: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up where the time goes."""
    FILE_SECONDS[Path(report.location[0]).name] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and where the time went: by file, and by lab for the runs of labs' suites."""
    if left_out := config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(left_out)
    by_file = sorted(FILE_SECONDS.items(), key=lambda item: -item[1])
    terminalreporter.section("where the time went")
    terminalreporter.write_line("  ".join(f"{name} {seconds:.1f} s" for name, seconds in by_file if seconds >= 0.05))
    runs: dict[str, list[float]] = defaultdict(list)
    for job, seconds in config.stash.get(SECONDS, {}).items():
        runs[job.lab].append(seconds)
    for lab, each in sorted(runs.items()):
        terminalreporter.write_line(
            f"{lab}: {len(each)} runs of its suite, {sum(each):.1f} s on {judging.N_RUNNERS} runners, "
            f"longest {max(each):.1f} s"
        )


def _params(item: pytest.Item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}
