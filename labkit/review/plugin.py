"""A pytest plugin for runs of a review: chooses a task's tests, seeds, limits imports, and says where a test failed."""

from __future__ import annotations

import linecache
import random
import re
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from labkit.review.file import task_of
from labkit.suite.finder import IMPORT_SECONDS
from labkit.suite.limits import time_limit
from labkit.suite.results import Failure, Place, State, TestResult

MAX_FRAMES = 3
LONGEST_VALUE = 60
LONGEST_MESSAGE = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses a task's tests."""
    group = parser.getgroup("attention labs, review")
    group.addoption("--review-task", default="", help="run the tests of this task only")
    group.addoption("--review-tasks", default="", help="the names of the lab's tasks, with commas")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tasks."""
    names = config.option.review_tasks.split(",")
    items[:] = [item for item in items if task_of(names, item.name) == config.option.review_task]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Bound the time that importing the file takes."""
    with time_limit(IMPORT_SECONDS):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what draws at random, so that a run can be repeated."""
    seed = item.config.option.seed
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)  # a course's hidden seed has more digits
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed % 2**32)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Describe a failure by the lines of the review itself: the version's own lines are not shown."""
    report = yield
    for number, (name, result) in enumerate(report.user_properties):
        if name == "result" and isinstance(result, TestResult):
            described = replace(result, task=item.config.option.review_task)
            if call.excinfo is not None and not result.passed:
                described = replace(described, failure=_failure(item, call.excinfo, result))
            report.user_properties[number] = (name, described)
    return report


def _failure(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], result: TestResult) -> Failure:
    """The exception's text, and the lines of the review that it passed through with what they were given."""
    frames = [entry for entry in excinfo.traceback if entry.path == item.path]
    notes = []
    for entry in frames[:MAX_FRAMES]:
        # not entry.statement: to find the file's text it searches all modules, a third of a short run's time
        line = linecache.getline(str(item.path), entry.lineno + 1).strip()
        inputs = _inputs(line, entry.frame.f_locals)
        notes.append(f"{item.path.name}:{entry.lineno + 1}: {line}" + (f"   with {inputs}" if inputs else ""))
    is_assertion = isinstance(excinfo.value, AssertionError)
    place = Place(item.path.name, frames[-1].lineno + 1, "", frames[0].name) if frames else None
    text = str(excinfo.value)[:LONGEST_MESSAGE]
    if result.state in (State.NOT_STARTED, State.UNUSABLE, State.MISSING):
        return Failure(result.failure.message, notes=tuple(notes), place=result.failure.place)
    return Failure(text, notes=tuple(notes), place=place, error="" if is_assertion else type(excinfo.value).__name__)


def _inputs(line: str, variables: dict[str, Any]) -> str:
    """The variables that a line names, with their values or their shapes."""
    found = {}
    for name in dict.fromkeys(re.findall(r"[^\W\d]\w*", line)):
        if name in variables and (text := _described(variables[name])):
            found[name] = text
    return ", ".join(f"{name} = {text}" for name, text in found.items())


def _described(value: object) -> str:
    """A tensor or an array by its dtype and shape, a plain value as it is written; "" for everything else."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    if isinstance(value, bool | int | float | str | tuple | list | dict | None):
        text = repr(value)
        return text if len(text) <= LONGEST_VALUE else ""
    return ""
