"""Fixtures for the course's tests; reports the tests left out, and the time by file."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # suites run at the same time: torch's threads would wait for one another
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes start here: each would compile torch again

import pytest

from labkit.labs.catalog import find_lab
from labkit.suite import forked
from labstaff.grader.sandbox import SandboxMissing, require_sandbox
from tests.suite_runs import N_RUNNERS, PRELOADED, Job, SuiteRuns

if TYPE_CHECKING:
    from playwright.sync_api import Browser


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands that tests start must receive Ctrl-C

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session", autouse=True)
def started_first(request: pytest.FixtureRequest) -> None:
    """Start the runs before the first test; with `-n`, only in the process that gets the tests which need them."""
    if not hasattr(request.config, "workerinput") and any("job" in _params(item) for item in request.session.items):
        request.getfixturevalue("suite_runs")


@pytest.fixture(scope="session")
def suite_runs(request: pytest.FixtureRequest) -> Iterator[SuiteRuns]:
    """The runs of all jobs in the collected tests' parameters."""
    jobs = [item.callspec.params["job"] for item in request.session.items if "job" in _params(item)]
    runs = SuiteRuns(list(dict.fromkeys(jobs)), sandboxed=request.config.option.sandboxed)
    request.config.stash[SECONDS] = runs.seconds
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium, for all tests of a file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def made_course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of Lab 01 made by `lab course`, for tests to copy."""
    from labstaff.course.make import make_course

    course = tmp_path_factory.mktemp("made") / "course"
    make_course([find_lab("01")], course)
    return course


def pytest_configure() -> None:
    """Write bytecode from here on: this process too compiles torch once and for all."""
    sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, keep a file's tests together: they share slow fixtures.

    In `addopts` the switch would be unknown wherever plugins are not loaded: in every run of a lab's suite.
    """
    if getattr(config.option, "dist", "") == "no" and config.option.numprocesses:
        config.option.dist = "loadfile"


@pytest.hookimpl(trylast=True)  # after -k and -m, so that only what was asked for is counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are slow or cannot run here; run tests that wait for suites last."""
    left_out = config.stash[LEFT_OUT] = []
    for marker, reason in REASONS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (why := reason(config)):
            left_out.append(f"{marker}: {len(marked)} tests were not run: {why}")
            items[:] = [item for item in items if item not in marked]
    items.sort(key=lambda item: "job" in _params(item))
    gc.freeze()  # meters collect garbage, which would go through all that was imported, each time


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where slow tests run, have the fork server import what suites import, whichever test starts it.

    A process has one fork server. Started for a lab without torch, it would leave the import to each later run.
    """
    if any(item.get_closest_marker("slow") for item in session.items):
        forked.ALWAYS = (*forked.ALWAYS, *PRELOADED)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the tests that a pytest-xdist worker left out to the process that writes the summary."""
    gc.unfreeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: typing.Any) -> None:
    """Receive the tests left out: the same in all workers."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", [])


def _slow_problem(config: pytest.Config) -> str:
    """The command that runs the slow tests; "" where `-m`, `-k` or the name of a file asks for them."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if config.option.markexpr or config.option.keyword or any(path.is_file() for path in paths):
        return ""
    return "uv run pytest -m slow -n 2 runs them"


def _browser_problem(_config: pytest.Config) -> str:
    return "" if CHROMIUM else "there is no Chromium; Debian's package is called chromium"


def _sandbox_problem(_config: pytest.Config) -> str:
    try:
        require_sandbox()
    except SandboxMissing as error:
        return str(error).partition("\n")[0]
    return ""


REASONS = {"slow": _slow_problem, "browser": _browser_problem, "sandbox": _sandbox_problem}
"""By marker: why its tests are not run now, in one line; "" where they are."""

LEFT_OUT = pytest.StashKey[list[str]]()
SECONDS = pytest.StashKey[dict[Job, float]]()
FILE_SECONDS: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of tests."""
    FILE_SECONDS[Path(report.location[0]).name] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the tests left out, and the time by file, or by lab for runs of labs' suites."""
    for line in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line)
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
