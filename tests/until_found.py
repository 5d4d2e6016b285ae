"""A pytest plugin: a run of a suite on a mistake ends once the mistake is found, in the words that were asked for.

What is collected are the tests that must find it. Each of them, with some parameters or other, must have failed, and
one of them have said `--says`: the parameters that are left could only say it again.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from labkit.suite.results import TestResult

FAILED = pytest.StashKey[set[str]]()
SAID = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What must be said."""
    group = parser.getgroup("attention labs, mistakes")
    group.addoption("--says", default="", help="what a message must have said before the run ends")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing was found yet."""
    config.stash[FAILED], config.stash[SAID] = set(), []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the run with the test that was still missing, once labkit's plugin has made a verdict of it."""
    report = yield
    failed, said = item.config.stash[FAILED], item.config.stash[SAID]
    for name, verdict in report.user_properties:
        if name == "result" and isinstance(verdict, TestResult) and not verdict.passed:
            failed.add(_without_parameters(item))
            said += verdict.lines
    if failed == set(map(_without_parameters, item.session.items)) and item.config.option.says in "\n".join(said):
        item.session.shouldfail = "the mistake is found"
    return report


def _without_parameters(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
