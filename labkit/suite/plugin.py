"""The pytest plugin: which answer a suite judges, what its tests are given, and what a run says."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_labs, lab_at
from labkit.labs.manifest import Lab, ManifestError
from labkit.suite import hooks
from labkit.suite.finder import Answer, AnswerFinder, student_answer
from labkit.suite.limits import TookTooLong, time_limit
from labkit.suite.reporter import LabReporter, wants_words
from labkit.suite.results import add_up, store
from labkit.suite.verdict import State, Verdict, explain

TEST_SECONDS = float(os.environ.get("ATTENTION_LABS_TEST_SECONDS", "10"))
ANSWERS = pytest.StashKey[dict[str, Answer]]()
LABS = pytest.StashKey[list[Lab]]()
VERDICTS = pytest.StashKey[dict[str, list[Verdict]]]()
FINDER = pytest.StashKey[AnswerFinder]()
STUCK = pytest.StashKey[dict[str, TookTooLong]]()
EXPLAINED = pytest.StashKey[tuple[State, tuple[str, ...]]]()
GPU_LEFT_OUT = pytest.StashKey[int]()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let other plugins say which answers are judged, and where they live."""
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switches that decide which code a suite judges."""
    group = parser.getgroup("attention labs")
    group.addoption("--src", type=Path, metavar="DIR", help="judge the modules in DIR instead of labs/*/src")
    group.addoption("--seed", type=int, default=0, help="draw the tests' random inputs from another seed")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the catalog, put the finder in place, and take over the words for runs of labs."""
    try:
        labs = find_labs(ROOT)
    except ManifestError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[LABS] = labs
    config.stash[VERDICTS] = {}
    config.stash[STUCK] = {}
    answers = [_answer(config, lab) for lab in labs]
    config.stash[ANSWERS] = {answer.lab.label: answer for answer in answers}
    finder = config.stash[FINDER] = AnswerFinder(answers, config.hook.pytest_lab_loader(config=config, labs=labs))
    finder.install()
    if wants_words(config, labs):
        LabReporter.take_over(config, labs, config.stash[VERDICTS])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the import system as it was."""
    if finder := config.stash.get(FINDER, None):
        finder.remove()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spare failures their tracebacks; leave out tests that need a GPU where there is none, and count them."""
    for item in items if config.getoption("tbstyle", "auto") == "auto" else ():
        if lab := _lab(item):
            item.repr_failure = _short_failure(item, lab)  # type: ignore[method-assign]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and (_elsewhere(config) or not _cuda_there()):  # no device is where answers live that run apart
        config.stash[GPU_LEFT_OUT] = len(gpu)
        items[:] = [item for item in items if item not in gpu]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Give each test of a lab a time limit of its own; a task that never ended once is not waited for again."""
    if _lab(item) is None:
        return (yield)
    if compare := sys.modules.get("labkit.testing.compare"):
        compare.changed_elsewhere.clear()
    marker = item.get_closest_marker("seconds")
    stuck = item.config.stash[STUCK]
    if before := stuck.get(_class_name(item)):
        raise before
    try:
        with time_limit(marker.args[0] if marker else TEST_SECONDS):
            return (yield)
    except TookTooLong as error:
        stuck[_class_name(item)] = error
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn what happened in a lab's test into a verdict."""
    report = yield
    lab = _lab(item)
    if lab is None or report.skipped or (report.when != "call" and not report.failed):
        return report
    task = lab.task_of(_class_name(item))
    state: State = State.PASSED
    lines: tuple[str, ...] = ()
    if report.failed and call.excinfo is not None:
        state, lines = _explained(item, lab, call.excinfo.value)
    drawn = "rng" in getattr(item, "fixturenames", ())
    lines = (*lines, *(_printed(report) if lines else ()))
    verdict = Verdict(item.name, task.name if task else "", state, lines, drawn)
    item.config.stash[VERDICTS].setdefault(lab.label, []).append(verdict)
    report.user_properties.append(("verdict", verdict))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remember how the student's own file did, task by task, where whole tasks were judged."""
    config = session.config
    narrowed = config.option.keyword or config.option.markexpr or any(arg.count("::") > 1 for arg in config.args)
    if narrowed or session.shouldstop or _elsewhere(config):
        return
    for lab in config.stash[LABS]:
        own = config.stash[ANSWERS][lab.label] == student_answer(lab)
        if own and (verdicts := config.stash[VERDICTS].get(lab.label)):
            store(lab, add_up(lab, verdicts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests need a GPU and were not run."""
    if n_left_out := config.stash.get(GPU_LEFT_OUT, 0):
        terminalreporter.write_line(f"gpu: {n_left_out} tests need a CUDA device and were not run")


@pytest.fixture
def rng(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A NumPy random generator with a seed of the test's own, the same on every run with the same --seed."""
    import numpy as np

    return np.random.default_rng([request.config.option.seed, zlib.crc32(request.node.nodeid.encode())])


def _answer(config: pytest.Config, lab: Lab) -> Answer:
    if config.option.src:
        return Answer(lab, config.option.src.resolve() / f"{lab.module}.py")
    return config.hook.pytest_lab_answer(config=config, lab=lab) or student_answer(lab)


def _elsewhere(config: pytest.Config) -> bool:
    """Whether answers live in processes of their own."""
    return config.stash[FINDER].loader is not None


def _lab(item: pytest.Item) -> Lab | None:
    return lab_at(item.path, item.config.stash[LABS])


def _short_failure(item: pytest.Item, lab: Lab) -> Callable[..., str]:
    """In place of pytest's traceback with source, which costs more time than the tests themselves."""
    return lambda excinfo, *_args, **_kwargs: "\n".join(_explained(item, lab, excinfo.value)[1])


def _explained(item: pytest.Item, lab: Lab, error: BaseException) -> tuple[State, tuple[str, ...]]:
    if EXPLAINED not in item.stash:
        item.stash[EXPLAINED] = explain(error, [item.config.stash[ANSWERS][lab.label].file])
    return item.stash[EXPLAINED]


def _class_name(item: pytest.Item) -> str:
    return item.cls.__name__ if isinstance(item, pytest.Function) and item.cls else ""


def _printed(report: pytest.TestReport) -> tuple[str, ...]:
    n_lines = report.capstdout.count("\n")
    return (f"(your code printed {n_lines:,} lines: -s shows them)",) if n_lines else ()


def _cuda_there() -> bool:
    import torch

    return torch.cuda.is_available()
