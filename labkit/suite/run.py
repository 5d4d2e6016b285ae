"""Runs a lab's suite inside this process, without a word on the terminal, and returns the verdicts."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labkit.labs.manifest import Lab
from labkit.suite.verdict import Verdict

QUICK = (
    "-q",
    *(f"-pno:{name}" for name in ("cacheprovider", "doctest", "junitxml", "pastebin", "setupplan", "stepwise")),
)


@dataclass
class SuiteRun:
    """What one run of a suite gave."""

    verdicts: list[Verdict] = field(default_factory=list)
    n_collected: int = 0
    problem: str = ""


def run_suite(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    on_verdict: Callable[[Verdict, int], None] = lambda verdict, n_collected: None,
) -> SuiteRun:
    """Run `lab`'s suite with pytest's `options`.

    Args:
        tests: which tests, as `TestClass` or `TestClass::test_name`; all when empty.
        on_verdict: called after each test with its verdict and the number of tests collected.

    `problem` of the result is set when the suite could not be run at all.
    """
    recorder = _Recorder(on_verdict)
    targets = [f"{lab.suite_file}::{test}" for test in tests] or [str(lab.suite_file)]
    arguments = [*targets, *options, *QUICK, "-c", str(_house(lab) / "pyproject.toml")]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main(arguments, plugins=[recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        recorder.run.problem = said.getvalue().strip() or f"pytest ended with {status!r}"
    return recorder.run


class _Recorder:
    """A pytest plugin that keeps the verdicts which labkit's plugin reached."""

    def __init__(self, on_verdict: Callable[[Verdict, int], None]) -> None:
        self.run = SuiteRun()
        self._on_verdict = on_verdict

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.run.n_collected = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "verdict" and isinstance(value, Verdict) and value not in self.run.verdicts[-1:]:
                self.run.verdicts.append(value)
                self._on_verdict(value, self.run.n_collected)


def _house(lab: Lab) -> Path:
    return lab.folder.parent.parent
