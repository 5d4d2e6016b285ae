"""The pytest plugin: which answer a suite judges, what its tests are given, and what a run says."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_labs, lab_at
from labkit.labs.manifest import Lab, ManifestError
from labkit.suite import hooks, limits
from labkit.suite.finder import Answer, AnswerFinder, student_answer
from labkit.suite.limits import WALL_FACTOR, WALL_SECONDS, TookTooLong, time_limit
from labkit.suite.reporter import LAB_LINES, use_words, wants_words
from labkit.suite.results import store_whole_tasks
from labkit.suite.verdict import Kind, State, Verdict, explain
from labkit.suite.words import WholeSuite

ANSWERS = pytest.StashKey[dict[str, Answer]]()
LABS = pytest.StashKey[list[Lab]]()
LAB_OF = pytest.StashKey[dict[Path, Lab | None]]()
VERDICTS = pytest.StashKey[dict[str, list[Verdict]]]()
FINDER = pytest.StashKey[AnswerFinder]()
WHOLE = pytest.StashKey[dict[str, WholeSuite]]()
TIMED_OUT = pytest.StashKey[set[str]]()
"""The classes of tests of which one has taken too long."""
GPU_SECONDS = 120.0
"""For a test that starts CUDA and compiles kernels."""
SHORT_SHARE = 0.2
"""The share of its time that a test gets after another one of its task has taken too long."""
RESUME_CLOCKS = pytest.StashKey[Callable[[], None]]()
NOT_STORED = pytest.StashKey[str]()
EXPLAINED = pytest.StashKey[tuple[State, tuple[str, ...]]]()
N_PLAIN = 2
"""How many of a class's tests, its first ones, are plain: they look for nothing in particular."""
GENERAL = pytest.StashKey[set[tuple[str, bool]]]()
"""The classes in which a plain test has failed, and whether by NaN, which has other causes."""
GPU_LEFT_OUT = pytest.StashKey[int]()


for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # arrays are small here, and limits count the CPU time of all threads


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
    config.stash[LAB_OF] = {}
    config.addinivalue_line("markers", "board: counts for the lab's board, under the name of its parameter")
    config.addinivalue_line("markers", "outside(mib): memory is measured from outside, by the fixture of this name")
    config.stash[VERDICTS] = {}
    config.stash[WHOLE] = {}
    config.stash[TIMED_OUT] = set()
    config.stash[GENERAL] = set()
    config.addinivalue_line("markers", f"kind(name): what a test asks of an answer: {', '.join(Kind)}")
    answers = [_answer(config, lab) for lab in labs]
    config.stash[ANSWERS] = {answer.lab.label: answer for answer in answers}
    loader = config.hook.pytest_lab_loader(config=config, labs=labs)
    finder = config.stash[FINDER] = AnswerFinder(answers, loader)
    finder.install()
    if wants_words(config, labs):
        use_words(config, labs, config.stash[VERDICTS], config.stash[WHOLE])


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
    """Give each test of a lab a time limit of its own."""
    lab = _lab(item)
    if lab is None:
        return (yield)
    timed_out, task = item.config.stash[TIMED_OUT], _class_name(item)
    is_short = task in timed_out
    seconds = _seconds(item, lab) * (SHORT_SHARE if is_short else 1)
    wall_seconds = max(WALL_SECONDS, WALL_FACTOR * seconds) * (SHORT_SHARE if is_short else 1)
    try:
        with time_limit(seconds, wall_seconds):
            return (yield)
    except TookTooLong as error:
        timed_out.add(task)
        if is_short:
            error.why_less = "Another test of this task took too long, so this one got a fifth of the time"
        raise


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Somebody is at a debugger's prompt: no limit counts that."""
    config.stash[RESUME_CLOCKS] = limits.stop_clocks()


def pytest_leave_pdb(config: pytest.Config) -> None:
    """The code goes on, and so do its limits."""
    config.stash.get(RESUME_CLOCKS, lambda: None)()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn what happened in a lab's test into a verdict."""
    report = yield
    lab = _lab(item)
    if lab is None or report.skipped or (report.when != "call" and not report.failed):
        return report
    state: State = State.PASSED
    lines: tuple[str, ...] = ()
    if report.failed and call.excinfo is not None:
        state, lines = _explained(item, lab, call.excinfo.value)
    drawn = "rng" in getattr(item, "fixturenames", ())
    n_printed = 0 if report.passed else report.capstdout.count("\n")
    outside = item.get_closest_marker("outside") is not None
    kind = (_kind_of_failure(call.excinfo.value) if report.failed and call.excinfo else None) or _kind(item)
    counts = _counts(item) if state is State.PASSED else {}
    verdict = Verdict(item.name, _task_name(item), state, lines, drawn, kind, n_printed, outside, counts)
    item.config.stash[VERDICTS].setdefault(lab.label, []).append(verdict)
    report.user_properties.append(("verdict", verdict))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remember how the student's own file did, task by task, where every test of a task was run."""
    config = session.config
    told = config.pluginmanager.hasplugin(LAB_LINES)
    for lab in config.stash[LABS]:
        if verdicts := config.stash[VERDICTS].get(lab.label):
            own = config.stash[ANSWERS][lab.label] == student_answer(lab) and not _elsewhere(config)
            if told or own:
                whole = config.stash[WHOLE][lab.label] = _whole_suite(session, lab)
            if own:
                try:
                    store_whole_tasks(lab, verdicts, whole)
                except OSError as error:
                    config.stash[NOT_STORED] = f"the results of {lab.label} could not be kept: {error.strerror}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests need a GPU and were not run."""
    if n_left_out := config.stash.get(GPU_LEFT_OUT, 0):
        terminalreporter.write_line(f"gpu: {n_left_out} tests need a CUDA device and were not run")
    if problem := config.stash.get(NOT_STORED, ""):
        terminalreporter.write_line(problem)


@pytest.fixture
def rng(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A NumPy random generator with a seed of the test's own, the same on every run with the same --seed."""
    import numpy as np

    return np.random.default_rng([request.config.option.seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Callable[[Mapping[str, int]], None]:
    """Takes what a test that is marked `board` has counted, by name; it stands on the lab's board if the test passes.

    Raises ValueError for anything but whole numbers, and when it is called again.
    """

    def record(counts: Mapping[str, int]) -> None:
        if not all(type(count) is int for count in counts.values()) or _counts(request.node):
            raise ValueError(f"a board takes whole numbers, and once from a test: {dict(counts)!r}")
        request.node.user_properties.append(("counts", dict(counts)))

    return record


@pytest.fixture
def outside(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Calls a function that may need so many MiB over its arguments as the test's mark says: see `stays_within`."""
    from labkit.testing.outside import stays_within

    return partial(stays_within, request.node.get_closest_marker("outside").kwargs["mib"])


def _answer(config: pytest.Config, lab: Lab) -> Answer:
    if config.option.src:
        return Answer(lab, config.option.src.resolve() / f"{lab.module}.py")
    return config.hook.pytest_lab_answer(config=config, lab=lab) or student_answer(lab)


def _elsewhere(config: pytest.Config) -> bool:
    """Whether answers live in processes of their own."""
    return config.stash[FINDER].loader is not None


def _lab(item: pytest.Item) -> Lab | None:
    """The lab of a test; found once for all tests of a file, since it is asked for several times in each."""
    found = item.config.stash[LAB_OF]
    if item.path not in found:
        found[item.path] = lab_at(item.path, item.config.stash[LABS])
    return found[item.path]


def _short_failure(item: pytest.Item, lab: Lab) -> Callable[..., str]:
    """In place of pytest's traceback with source, which costs more time than the tests themselves."""
    return lambda excinfo, *_args, **_kwargs: "\n".join(_explained(item, lab, excinfo.value)[1])


def _explained(item: pytest.Item, lab: Lab, error: BaseException) -> tuple[State, tuple[str, ...]]:
    if EXPLAINED not in item.stash:
        _drop_hint(item, error)
        item.stash[EXPLAINED] = explain(error, [item.config.stash[ANSWERS][lab.label].file])
    return item.stash[EXPLAINED]


def _drop_hint(item: pytest.Item, error: BaseException) -> None:
    """Leave a test's own hint out of its message once a plain test of the task has failed: the cause is general."""
    from labkit.testing.compare import WrongValue

    general, task = item.config.stash[GENERAL], _class_id(item)
    own_hint, is_nan = getattr(error, "own_hint", ""), " is NaN" in str(error)
    if own_hint and (task, is_nan) in general:
        error.args = (str(error).replace(f"\n{own_hint}", ""),)
    worked_example = item.name.startswith("test_worked_example")
    plain = isinstance(item, pytest.Function) and item.originalname in _plain_tests(item.cls)
    if _kind(item) is Kind.EXACT and plain and (worked_example or not own_hint):
        both = () if isinstance(error, WrongValue) else ((task, not is_nan),)
        general.update([(task, is_nan), *both])


def _plain_tests(cls: type | None) -> list[str]:
    """The first tests of a class, whichever of them run now. pytest takes those of base classes first."""
    classes = reversed(cls.__mro__) if cls else ()
    return list(dict.fromkeys(name for each in classes for name in vars(each) if name.startswith("test")))[:N_PLAIN]


def _seconds(item: pytest.Item, lab: Lab) -> float:
    """CPU seconds that a test may take: its mark's, or its lab's."""
    marker = item.get_closest_marker("seconds")
    usual = GPU_SECONDS if item.get_closest_marker("gpu") else lab.test_seconds
    return min(marker.args[0] if marker else usual, limits.GIVEN_SECONDS)


def _class_id(item: pytest.Item) -> str:
    return item.nodeid.rpartition("::")[0]


def _class_name(item: pytest.Item) -> str:
    return item.cls.__name__ if isinstance(item, pytest.Function) and item.cls else ""


def _task_name(item: pytest.Item) -> str:
    lab = _lab(item)
    task = lab.task_of(_class_name(item)) if lab else None
    return task.name if task else ""


def _kind(item: pytest.Item) -> Kind:
    marker = item.get_closest_marker("kind")
    return Kind(marker.args[0]) if marker else Kind.EXACT


def _kind_of_failure(error: BaseException) -> Kind | None:
    """The kind that a test becomes by what it found, whatever it is marked as."""
    from labkit.testing.compare import BorrowedWork

    return Kind.OWN if isinstance(error, BorrowedWork) else None


def _counts(item: pytest.Item) -> dict[str, int]:
    """What the test has recorded for the lab's board, by the fixture `board`."""
    return dict(*(value for name, value in item.user_properties if name == "counts"))


def _whole_suite(session: pytest.Session, lab: Lab) -> dict[str, set[str]]:
    """The names of all tests of each task that was judged, whatever a run was narrowed to.

    Its class is collected again, by itself: -k, --lf and `::test` have no say there.
    """
    classes = {item.getparent(pytest.Class) for item in session.items if _lab(item) == lab}
    whole = {}
    for each in classes:
        if each is not None and (task := lab.task_of(each.name)):
            items = [item for item in each.collect() if isinstance(item, pytest.Item)]
            left_out = session.config.stash.get(GPU_LEFT_OUT, 0)
            whole[task.name] = {item.name for item in items if not (left_out and item.get_closest_marker("gpu"))}
    return whole


def _cuda_there() -> bool:
    import torch

    return torch.cuda.is_available()
