"""A pytest plugin: a run of a suite on a mistake ends once the mistake is found, in the words that were asked for.

What is collected are the tests that find it. The run ends when one fails and says `--says`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from labkit.suite.results import TestResult


def pytest_addoption(parser: pytest.Parser) -> None:
    """What must be said."""
    group = parser.getgroup("attention labs, mistakes")
    group.addoption("--says", default="", help="what a message must have said before the run ends")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the run with the test that says it, once labkit's plugin has made a result of it."""
    report = yield
    for name, result in report.user_properties:
        failed = name == "result" and isinstance(result, TestResult) and not result.passed
        if failed and item.config.option.says in "\n".join(result.lines):
            item.session.shouldfail = "the mistake is found"
    return report
