"""Runs a lab's suite in this process, without pytest's output, and returns the results."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import tomllib
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

from labkit.labs.manifest import Lab
from labkit.suite.limits import Exceeded, Limit, cpu_seconds_now
from labkit.suite.plugin import LAB_LINES
from labkit.suite.results import Ended, How, Listener, Place, SuiteRun, TestResult

NOT_NEEDED = (
    *("cacheprovider", "doctest", "legacypath", "logging", "pastebin"),
    *("recwarn", "setuponly", "setupplan", "stepwise", "subtests", "unittest"),
)
"""Plugins of pytest's that cost time in each run."""


def run_suite(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    listener: Listener | None = None,
    show_prints: bool = False,
    cpu_seconds: float | None = None,
    file: Path | None = None,
) -> SuiteRun:
    """Run `lab`'s suite with pytest's `options`.

    Args:
        tests: which tests, as `TestClass` or `TestClass::test_name`; all when empty.
        listener: is called before and after each test.
        show_prints: let what the code prints, and a debugger that it opens, have the terminal.
        cpu_seconds: begin no further test when this run, its worker included, has used so much CPU time.
        file: a file of tests in the lab's folder instead of its suite.
    """
    file = file or lab.suite_file
    recorder = ResultCollector(lab, listener or Listener(), sys.stdout if show_prints else None, cpu_seconds)
    settings = lab.folder.parent.parent / "pyproject.toml"
    arguments = [f"{file}::{test}" for test in tests] or [str(file)]
    arguments += [*options, "-q", "--disable-plugin-autoload", *(f"-pno:{name}" for name in NOT_NEEDED)]
    arguments += ["-c", str(settings)]
    if show_prints:
        arguments.append("-s")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[recorder, *_plugins(settings)])
    run = recorder.run
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and run.ended.how is How.FINISHED:
        run.ended = Ended(How.FAILED, detail=output.getvalue().strip() or f"pytest ended with {status!r}")
    return run


class NoDebugger(Exception):
    """A debugger was opened without a terminal; the message names the command that allows it."""


class ResultCollector:
    """A pytest plugin that collects the results which labkit's plugin makes: see `run_suite`."""

    def __init__(self, lab: Lab, listener: Listener, terminal: TextIO | None, cpu_seconds: float | None) -> None:
        self.run = SuiteRun()
        self._lab, self._listener, self._terminal = lab, listener, terminal
        self._cpu_seconds, self._cpu_began = cpu_seconds, cpu_seconds_now()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Remove the plugin that writes unread lines, and let prints through if they are shown."""
        if session.config.pluginmanager.hasplugin(LAB_LINES):
            session.config.pluginmanager.unregister(name=LAB_LINES)
        if self._terminal is not None:  # pytest's reporter exists by now, and keeps the stream it was given
            sys.stdout = self._terminal

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what will run."""
        self.run.n_collected = len(session.items)
        for item in session.items:
            self.run.collected.setdefault(self._task_name(item), []).append(item.name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Report that a test begins."""
        self._listener.on_start(self._task_name(item), item.name, self.run)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Without a terminal, open no debugger."""
        if self._terminal is not None:
            return (yield)
        usual = sys.breakpointhook
        sys.breakpointhook = self._no_debugger
        try:
            return (yield)
        finally:
            sys.breakpointhook = usual

    def pytest_enter_pdb(self) -> None:
        """As `pytest_runtest_call`, for pytest's own way into a debugger."""
        if self._terminal is None:
            self._no_debugger()

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Begin no further test when the time is up."""
        if self._cpu_seconds is None or nextitem is None or cpu_seconds_now() - self._cpu_began < self._cpu_seconds:
            return
        self.run.ended = Ended(How.OUT_OF_TIME, Exceeded(Limit.CPU_TIME, self._cpu_seconds))
        item.session.shouldstop = How.OUT_OF_TIME

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a result, and report it."""
        for name, value in report.user_properties:
            if name == "result" and isinstance(value, TestResult) and value not in self.run.results[-1:]:
                self.run.results.append(value)
                self._listener.on_result(value, self.run)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record what ended the run: `pytest.exit`, or Ctrl-C, and in which line of the student's file that came."""
        if isinstance(excinfo.value, pytest.exit.Exception):
            self.run.ended = Ended(How.STOPPED, detail=str(excinfo.value))
        if type(excinfo.value) is not KeyboardInterrupt:  # shouldstop is a KeyboardInterrupt too
            return
        name = self._lab.student_file.name
        own = [entry for entry in excinfo.traceback if Path(entry.path).name == name]
        place = Place(name, own[-1].lineno + 1, str(own[-1].statement).strip(), own[0].name) if own else None
        self.run.ended = Ended(How.INTERRUPTED, place=place)

    def _task_name(self, item: pytest.Item) -> str:
        test_class = item.getparent(pytest.Class)
        task = self._lab.task_of(test_class.name) if test_class else None
        return task.name if task else ""

    def _no_debugger(self, *_args: object, **_kwargs: object) -> None:
        raise NoDebugger(f"a debugger needs a terminal: uv run lab check {self._lab.number} -s")


@functools.cache
def _plugins(settings: Path) -> tuple[ModuleType, ...]:
    """The plugins that `settings` names, imported here, since pytest would search all installed packages for a name."""
    options = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]["addopts"]
    names = [option.removeprefix("-p") for option in options if option.startswith("-p")]
    return tuple(importlib.import_module(name) for name in names if not name.startswith("no:"))
