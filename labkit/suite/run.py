"""Runs a lab's suite inside this process, without a word of pytest's on the terminal, and returns the verdicts."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import tomllib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

from labkit.labs.manifest import Lab
from labkit.suite.limits import cpu_seconds_now
from labkit.suite.reporter import LAB_LINES
from labkit.suite.verdict import Verdict

OVERTIME = "the run did not end"
"""How `problem` begins for a run that was stopped when its time was over."""

QUICK = (
    "-q",
    "--disable-plugin-autoload",
    *(
        f"-pno:{name}"
        for name in (
            *("cacheprovider", "doctest", "junitxml", "legacypath", "logging", "pastebin"),
            *("recwarn", "setuponly", "setupplan", "stepwise", "subtests", "unittest"),
        )
    ),
)


@dataclass
class SuiteRun:
    """What one run of a suite gave.

    `problem` is set when the suite could not be run at all, or not to its end; `died` when the process of the run has
    ended before it, and says how; `interrupted` at Ctrl-C, and says where. `collected` are the tests by task.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    n_collected: int = 0
    problem: str = ""
    died: str = ""
    interrupted: str = ""
    collected: dict[str, list[str]] = field(default_factory=dict)


def run_suite(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    on_start: Callable[[str, str, SuiteRun], None] = lambda task, test, run: None,
    on_verdict: Callable[[Verdict, int], None] = lambda verdict, n_collected: None,
    show_prints: bool = False,
    cpu_seconds: float | None = None,
    plugins: Sequence[object] = (),
) -> SuiteRun:
    """Run `lab`'s suite with pytest's `options`.

    Args:
        tests: which tests, as `TestClass` or `TestClass::test_name`; all when empty.
        on_start: called before each test with its task, its name, and the run so far.
        on_verdict: called after each test with its verdict and the number of tests collected.
        show_prints: let what the answer prints, and a debugger that it opens, have the terminal.
        cpu_seconds: begin no further test when this run, its answer's processes included, has used so much CPU time;
            `problem` then begins with `OVERTIME`.
        plugins: of pytest's, beside those that pyproject.toml names.
    """
    recorder = Recorder(lab, on_verdict, sys.stdout if show_prints else None, cpu_seconds, on_start)
    targets = [f"{lab.suite_file}::{test}" for test in tests] or [str(lab.suite_file)]
    arguments = [*targets, *options, *QUICK, "-c", str(_house(lab) / "pyproject.toml")]
    said = io.StringIO()
    together = [recorder, *plugins, *_plugins(_house(lab) / "pyproject.toml")]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main([*arguments, "-s"] if show_prints else arguments, plugins=together)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        recorder.run.problem = recorder.overtime or said.getvalue().strip() or f"pytest ended with {status!r}"
    return recorder.run


class NoDebugger(Exception):
    """A debugger was opened where nobody could type into it; the message says where somebody can."""


class Recorder:
    """A pytest plugin that keeps the verdicts which labkit's plugin reached: see `run_suite`."""

    def __init__(
        self,
        lab: Lab,
        on_verdict: Callable[[Verdict, int], None],
        terminal: TextIO | None,
        cpu_seconds: float | None,
        on_start: Callable[[str, str, SuiteRun], None] = lambda task, test, run: None,
    ) -> None:
        self.run = SuiteRun()
        self._on_start = on_start
        self.overtime = ""
        self._lab, self._on_verdict, self._terminal = lab, on_verdict, terminal
        self._cpu_seconds, self._cpu_began = cpu_seconds, cpu_seconds_now()

    def begin(self, on_verdict: Callable[[Verdict, int], None], cpu_seconds: float | None) -> None:
        """Record a run of what was collected, from now on."""
        self._on_verdict = on_verdict
        self._cpu_seconds, self._cpu_began = cpu_seconds, cpu_seconds_now()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take out the words that nobody reads here; where prints are shown, let them through."""
        if session.config.pluginmanager.hasplugin(LAB_LINES):
            session.config.pluginmanager.unregister(name=LAB_LINES)
        if self._terminal is not None:  # pytest's reporter has been made by now, and keeps what it was given
            sys.stdout = self._terminal

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what will run."""
        self.run.n_collected = len(session.items)
        for item in session.items:
            self.run.collected.setdefault(self._task_name(item), []).append(item.name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Report that a test begins."""
        self._on_start(self._task_name(item), item.name, self.run)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Where nobody sits at a terminal, open no debugger."""
        if self._terminal is not None:
            return (yield)
        usual = sys.breakpointhook
        sys.breakpointhook = self._no_debugger
        try:
            return (yield)
        finally:
            sys.breakpointhook = usual

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Begin no further test when the time is over."""
        if self._cpu_seconds is None or nextitem is None or cpu_seconds_now() - self._cpu_began < self._cpu_seconds:
            return
        self.overtime = item.session.shouldstop = f"{OVERTIME} within {self._cpu_seconds:g} s of CPU time"

    def pytest_enter_pdb(self) -> None:
        """As for `pytest_runtest_call`: pytest's own way into a debugger."""
        if self._terminal is None:
            self._no_debugger()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a verdict, and tell of it."""
        for name, value in report.user_properties:
            if name == "verdict" and isinstance(value, Verdict) and value not in self.run.verdicts[-1:]:
                self.run.verdicts.append(value)
                self._on_verdict(value, self.run.n_collected)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep which line of the answer's file Ctrl-C has interrupted."""
        own = [entry for entry in excinfo.traceback if Path(entry.path).name == self._lab.answer_file.name]
        code = f": {str(own[-1].statement).strip()}" if own else ""
        self.run.interrupted = (
            f"at {Path(own[-1].path).name}:{own[-1].lineno + 1}{code}" if own else "outside your code"
        )

    def _task_name(self, item: pytest.Item) -> str:
        test_class = item.getparent(pytest.Class)
        task = self._lab.task_of(test_class.name) if test_class else None
        return task.name if task else ""

    def _no_debugger(self, *_args: object, **_kwargs: object) -> None:
        raise NoDebugger(f"a debugger needs a terminal of its own: uv run lab check {self._lab.number} -s")


def _house(lab: Lab) -> Path:
    return lab.folder.parent.parent


@functools.cache
def _plugins(settings: Path) -> tuple[ModuleType, ...]:
    """The plugins that `settings` names, imported: for their names pytest would search all that is installed."""
    options = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]["addopts"]
    names = [option.removeprefix("-p") for option in options if option.startswith("-p")]
    return tuple(importlib.import_module(name) for name in names if not name.startswith("no:"))
