"""A pytest plugin that ends a suite's run on a mistake once it is found with the required words.

What is collected are the tests that find it. The run ends when one fails and says `--says`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from labkit.suite.messages import result_lines
from labkit.suite.results import TestResult


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the required words."""
    group = parser.getgroup("attention labs, mistakes")
    group.addoption("--says", default="", help="what a message must have said before the run ends")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the run after the test that reports them, once labkit's plugin has made its result."""
    report = yield
    for name, result in report.user_properties:
        failed = name == "result" and isinstance(result, TestResult) and not result.passed
        if failed and item.config.option.says in "\n".join(result_lines(result)):
            item.session.shouldfail = "the mistake is found"
    return report
