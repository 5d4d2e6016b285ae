"""The pytest plugin: which code a suite tests, its fixtures, limits and results, and what the terminal shows."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from importlib.abc import Loader
from pathlib import Path
from typing import Any

import pytest

from labkit.labs.catalog import ROOT, find_labs, lab_at
from labkit.labs.manifest import Lab, ManifestError
from labkit.suite import limits
from labkit.suite.finder import LabFinder, Source, student_source
from labkit.suite.library_work import library_lines
from labkit.suite.limits import Exceeded, Limit, NotBegun, TookTooLong, time_limit
from labkit.suite.messages import explain, failure_lines, run_lines
from labkit.suite.results import Failure, Kind, State, TestResult, store_whole_tasks

LAB_LINES = "lab_lines"
"""The name under which pytest knows the plugin that shows each task's results."""
GPU_SECONDS = 120.0
"""For a test that has another process start CUDA and compile kernels: its CPU time, and how long it may only wait."""
MAX_SLOW_TESTS = 3
"""After so many tests of a task have taken too long, the rest of that task is not begun."""
EXPLAINED = pytest.StashKey[tuple[State, Failure]]()


for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # arrays are small here, and limits count the CPU time of all threads


class HookSpecs:
    """Hooks by which other plugins change a run."""

    @pytest.hookspec(firstresult=True)
    def pytest_lab_source(self, config: pytest.Config, lab: Lab) -> Source | None:
        """The file to test instead of the student's; None leaves it to the next plugin."""

    @pytest.hookspec(firstresult=True)
    def pytest_lab_loader(self, config: pytest.Config, labs: list[Lab]) -> Callable[[Source], Loader] | None:
        """Makes loaders for code that runs in other processes; None to run it in this one."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks above."""
    pluginmanager.add_hookspecs(HookSpecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose the code, and its inputs."""
    group = parser.getgroup("attention labs")
    group.addoption("--src", type=Path, metavar="DIR", help="test the modules in DIR instead of labs/*/src")
    group.addoption(
        "--lab", default="", metavar="LAB", help="the label of the lab of tests that are in no lab's folder"
    )
    group.addoption("--seed", type=int, default=0, help="draw the tests' random inputs from another seed")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the manifests, install the import finder, and register the mark of basic tests and the run's plugins."""
    config.addinivalue_line("markers", "basic: its failure is more general than what later tests of its class look for")
    try:
        labs = find_labs(ROOT)
    except ManifestError as error:
        raise pytest.UsageError(str(error)) from None
    results = LabResults(config, labs)
    config.pluginmanager.register(results)
    if _shows_lab_lines(config, labs):
        config.option.no_header = config.option.verbose < 1
        if reporter := config.pluginmanager.getplugin("terminalreporter"):
            reporter.reportchars = ""  # no list of failures and no warnings: the lab's lines have what matters
        config.pluginmanager.register(LabLines(results), LAB_LINES)


@pytest.fixture
def rng(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A NumPy random generator seeded for this test, the same on every run with the same --seed."""
    import numpy as np

    return np.random.default_rng([request.config.option.seed, zlib.crc32(request.node.nodeid.encode())])


class LabResults:
    """Follows a run: limits each test of a lab, makes a `TestResult` of it, and stores the student's own."""

    def __init__(self, config: pytest.Config, labs: list[Lab]) -> None:
        self.labs = labs
        self.results: dict[str, list[TestResult]] = {}
        """By the lab's label."""
        self.whole_suites: dict[str, dict[str, set[str]]] = {}
        """By the lab's label, the names of all tests of each task."""
        self.not_stored = ""
        self.n_gpu_left_out = 0
        self._labs_at: dict[Path, Lab | None] = {}
        self._library_lines: dict[str, dict[str, str]] = {}
        """By the lab's label: see `_borrowed`."""
        self._timed_out: Counter[str] = Counter()
        """How many tests of a class have taken too long."""
        self._basic_failures: set[tuple[str, bool]] = set()
        """The classes in which a basic test has failed, and whether by NaN, which has other causes."""
        self._resume_clocks: Callable[[], None] | None = None
        sources = [_source(config, lab) for lab in labs]
        self.sources = {source.lab.label: source for source in sources}
        loader = config.hook.pytest_lab_loader(config=config, labs=labs)
        self.in_worker = loader is not None
        self._finder = LabFinder(sources, loader)
        self._finder.install()

    @pytest.fixture
    def memory_limit(self, request: pytest.FixtureRequest) -> Callable[..., object]:
        """Calls a function that may need at most the MiB of the test's mark, without its arguments: `stays_within`."""
        from labkit.testing.memory_limit import stays_within

        lab = self._lab(request.node)
        task = _task_name(request.node, lab) if lab else ""
        return partial(stays_within, task, request.node.get_closest_marker("memory_limit").kwargs["mib"])

    def pytest_unconfigure(self) -> None:
        """Restore the import system."""
        self._finder.remove()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Give failures short texts, sort tests, and leave out and count those that need a missing GPU."""
        if config.getoption("tbstyle", "auto") == "auto":
            for item in items:
                if lab := self._lab(item):
                    # pytest's traceback with source costs more time than the tests themselves
                    item.repr_failure = partial(self._short_failure, item, lab)  # type: ignore[method-assign]
        self._sort(items)
        gpu = [item for item in items if item.get_closest_marker("gpu")]
        if gpu and (self.in_worker or not _has_cuda()):  # a sandbox has no device
            self.n_gpu_left_out = len(gpu)
            items[:] = [item for item in items if item not in gpu]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Give each test of a lab a time limit of its own, and begin none after `MAX_SLOW_TESTS`."""
        lab = self._lab(item)
        if lab is None:
            return (yield)
        if line := self._borrowed(lab).get(_task_name(item, lab)):
            from labkit.testing.compare import BorrowedWork

            raise BorrowedWork(line)
        test_class = _class_name(item)
        if self._timed_out[test_class] >= MAX_SLOW_TESTS:
            raise NotBegun(Exceeded(Limit.SLOW_TESTS, MAX_SLOW_TESTS))
        try:
            with time_limit(_seconds(item, lab), _wall_seconds(item)):
                return (yield)
        except TookTooLong:
            self._timed_out[test_class] += 1
            raise

    def pytest_enter_pdb(self) -> None:
        """Suspend the limits while somebody is using a debugger."""
        self._resume_clocks = limits.stop_clocks()

    def pytest_leave_pdb(self) -> None:
        """Let the limits count again."""
        if self._resume_clocks:
            self._resume_clocks()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make a `TestResult` of a lab's test, and attach it to pytest's report."""
        report = yield
        lab = self._lab(item)
        if lab is None or report.skipped or (report.when != "call" and not report.failed):
            return report
        error = call.excinfo.value if report.failed and call.excinfo else None
        state, failure = self._explained(item, lab, error) if error is not None else (State.PASSED, Failure())
        properties: dict[str, Any] = dict(item.user_properties)
        result = TestResult(
            item.name,
            _task_name(item, lab),
            state,
            failure,
            drawn="rng" in getattr(item, "fixturenames", ()),
            kind=_failed_kind(item, error),
            n_printed=0 if report.passed else report.capstdout.count("\n"),
            memory_limit=item.get_closest_marker("memory_limit") is not None,
            counts=properties.get("counts", {}),
        )
        self.results.setdefault(lab.label, []).append(result)
        report.user_properties.append(("result", result))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store the results of the student's own file, task by task, where every test of a task was run."""
        are_shown = session.config.pluginmanager.hasplugin(LAB_LINES)
        for lab in self.labs:
            results = self.results.get(lab.label)
            is_own = self.sources[lab.label] == student_source(lab) and not self.in_worker
            if not results or not (are_shown or is_own):
                continue
            whole = self.whole_suites[lab.label] = self._whole_suite(session, lab)
            if is_own:
                try:
                    store_whole_tasks(lab, results, whole)
                except OSError as error:
                    self.not_stored = f"the results of {lab.label} could not be stored: {error.strerror}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report how many tests need a GPU and were not run."""
        if self.n_gpu_left_out:
            terminalreporter.write_line(f"gpu: {self.n_gpu_left_out} tests need a CUDA device and were not run")
        if self.not_stored:
            terminalreporter.write_line(self.not_stored)

    def _lab(self, item: pytest.Item) -> Lab | None:
        """The lab of a test; looked for once for all tests of a file."""
        if item.path not in self._labs_at:
            named = next((lab for lab in self.labs if lab.label == item.config.option.lab), None)
            self._labs_at[item.path] = lab_at(item.path, self.labs) or named
        return self._labs_at[item.path]

    def _sort(self, items: list[pytest.Item]) -> None:
        """Within each class of a lab, put ordinary inputs first: their failures explain most, degenerate ones least."""
        classes = {_class_of(item): n for n, item in reversed(list(enumerate(items)))}
        kinds = list(Kind)

        def place(item: pytest.Item) -> tuple[int, int, bool]:
            is_of_lab = self._lab(item) is not None
            kind = kinds.index(_kind(item)) if is_of_lab else 0
            return classes[_class_of(item)], kind, is_of_lab and item.name.startswith("test_worked_example")

        items.sort(key=place)

    def _borrowed(self, lab: Lab) -> dict[str, str]:
        """The line of the student's own file in which a library does a task's work, by the task.

        Other files are read by their grader.
        """
        if lab.label not in self._library_lines:
            is_own = self.sources[lab.label] == student_source(lab) and not self.in_worker
            self._library_lines[lab.label] = library_lines(lab) if is_own else {}
        return self._library_lines[lab.label]

    def _short_failure(
        self, item: pytest.Item, lab: Lab, excinfo: pytest.ExceptionInfo[BaseException], *_: object, **__: object
    ) -> str:
        return "\n".join(failure_lines(*self._explained(item, lab, excinfo.value)))

    def _explained(self, item: pytest.Item, lab: Lab, error: BaseException) -> tuple[State, Failure]:
        if EXPLAINED not in item.stash:
            self._drop_hint(item, error)
            item.stash[EXPLAINED] = explain(error, [self.sources[lab.label].file])
        return item.stash[EXPLAINED]

    def _drop_hint(self, item: pytest.Item, error: BaseException) -> None:
        """Remove a test's own hint from its message if a basic test of the task failed: the cause is more general."""
        from labkit.testing.compare import WrongValue

        test_class = _class_of(item)
        own_hint, is_nan = getattr(error, "own_hint", ""), getattr(error, "is_nan", False)
        if own_hint and (test_class, is_nan) in self._basic_failures:
            error.args = (str(error).replace(f"\n{own_hint}", ""),)
        if _kind(item) is Kind.EXACT and item.get_closest_marker("basic") and not own_hint:
            self._basic_failures.add((test_class, is_nan))
            if not isinstance(
                error, WrongValue
            ):  # an exception: neither a wrong value nor NaN would have its own cause
                self._basic_failures.add((test_class, not is_nan))

    def _whole_suite(self, session: pytest.Session, lab: Lab) -> dict[str, set[str]]:
        """The names of all tests of each task of which some were run.

        Their class is collected again, by itself: -k, --lf and `::test` have no effect on that.
        """
        classes = {item.getparent(pytest.Class) for item in session.items if self._lab(item) == lab}
        whole = {}
        for each in classes:
            if each is not None and (task := lab.task_of(each.name)):
                items = [item for item in each.collect() if isinstance(item, pytest.Item)]
                if self.n_gpu_left_out:
                    items = [item for item in items if not item.get_closest_marker("gpu")]
                whole[task.name] = {item.name for item in items}
        return whole


class LabLines:
    """Shows each task's results on pytest's terminal instead of tracebacks."""

    def __init__(self, results: LabResults) -> None:
        self._run = results

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Write the lines, and remove the failures from pytest's own summary, but not from its count."""
        for lab in self._run.labs:
            if results := self._run.results.get(lab.label):
                whole = self._run.whole_suites.get(lab.label)
                terminalreporter.write_line("")
                everything = terminalreporter.verbosity > 0
                details = terminalreporter.config.getoption("solutions", False)
                for line in run_lines(lab, results, everything=everything, details=details, whole_suite=whole):
                    terminalreporter.write_line(line, **({line.style: True} if line.style else {}))
        failed = terminalreporter.stats.pop("failed", [])
        try:
            return (yield)
        finally:
            if failed:
                terminalreporter.stats["failed"] = failed


def _shows_lab_lines(config: pytest.Config, labs: list[Lab]) -> bool:
    """Whether all requested tests are in labs, and no other style of traceback was requested.

    All of a student's tree is: it has no tests but those of labs.
    """
    paths = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    whole = {lab.folder.parent for lab in labs}
    whole |= {root for root in (folder.parent for folder in whole) if not (root / "tests").is_dir()}
    inside = [lab_at(path, labs) or path in whole for path in paths]
    return bool(paths) and all(inside) and config.getoption("tbstyle", "auto") == "auto"


def _source(config: pytest.Config, lab: Lab) -> Source:
    if config.option.src:
        return Source(lab, config.option.src.resolve() / f"{lab.module}.py")
    return config.hook.pytest_lab_source(config=config, lab=lab) or student_source(lab)


def _seconds(item: pytest.Item, lab: Lab) -> float:
    """CPU seconds that a test may take: its mark's, or its lab's."""
    marker = item.get_closest_marker("seconds")
    if marker:
        seconds = marker.args[0]
    else:
        seconds = GPU_SECONDS if item.get_closest_marker("gpu") else lab.test_seconds
    return min(seconds, limits.MAX_TEST_SECONDS)


def _wall_seconds(item: pytest.Item) -> float:
    """Seconds by the clock that a test may wait for what uses no CPU time of its own."""
    return GPU_SECONDS if item.get_closest_marker("gpu") else limits.WALL_SECONDS


def _class_of(item: pytest.Item) -> str:
    """The node that a test is in: its class or its file."""
    return item.nodeid.rpartition("::")[0]


def _class_name(item: pytest.Item) -> str:
    return item.cls.__name__ if isinstance(item, pytest.Function) and item.cls else ""


def _task_name(item: pytest.Item, lab: Lab) -> str:
    task = lab.task_of(_class_name(item))
    return task.name if task else ""


def _kind(item: pytest.Item) -> Kind:
    return next((kind for kind in Kind if item.get_closest_marker(kind)), Kind.EXACT)


def _failed_kind(item: pytest.Item, error: BaseException | None) -> Kind:
    """What kind a test becomes by what it found; without an error the one that it is marked with."""
    from labkit.testing.compare import BorrowedWork, ChangedArgument
    from labkit.testing.memory_limit import NeedsMoreMemory

    found = {BorrowedWork: Kind.BORROWED, ChangedArgument: Kind.UNCHANGED, NeedsMoreMemory: Kind.MEMORY}
    return next((kind for error_class, kind in found.items() if isinstance(error, error_class)), _kind(item))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
