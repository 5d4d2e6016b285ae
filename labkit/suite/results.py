"""Results of tests and of runs as data, their points task by task, and the results stored between runs.

`labkit.suite.messages` makes the text of them; nothing reads that text again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import msgspec

from labkit.labs.manifest import Lab, Task
from labkit.suite.limits import Exceeded


class State(StrEnum):
    """The outcome of one test.

    `UNUSABLE` is a file that cannot be run at all, `MISSING` one without the task, `NOT_RUN` a test that was left out.
    """

    PASSED = "passed"
    NOT_STARTED = "not started"
    UNUSABLE = "unusable"
    MISSING = "missing"
    CRASHED = "crashed"
    TOO_SLOW = "too slow"
    WRONG = "wrong"
    NOT_RUN = "not run"


class Kind(StrEnum):
    """What a test requires; `task_share` defines its effect on a task's points.

    A suite marks its tests, `@pytest.mark.robust`; one without a mark is `EXACT`.
    """

    EXACT = "exact"
    """The right result for ordinary inputs."""
    ROBUST = "robust"
    """The right result for extreme inputs: large logits, rows without a key, half precision, nothing at all."""
    COST = "cost"
    """Memory, traffic or work within its bound."""
    MEMORY = "memory"
    """Memory within a limit that the kernel sets when graded. No test is marked so: one of cost becomes this kind when
    the limit is what it exceeds."""
    UNCHANGED = "unchanged"
    """The arguments as they were. No test is marked so: it becomes this kind when it finds one changed."""
    REFUSES = "refuses"
    """An error that reports what is wrong with the arguments."""
    BORROWED = "borrowed"
    """The code does the work itself. No test is marked so: it becomes this kind when it finds that a library did it."""


MAX_SHARE = {
    Kind.EXACT: 0.5,
    Kind.ROBUST: 0.75,
    Kind.COST: 0.75,
    Kind.UNCHANGED: 0.75,
    Kind.REFUSES: 1.0,
    Kind.BORROWED: 0.0,
}
"""The most that a task can earn, as a share of its points, while a test of this kind fails; see `max_share`."""


@dataclass(frozen=True)
class Place:
    """A line of the student's file, and the function of that file that was called first."""

    file: str
    line: int
    code: str
    function: str

    def __str__(self) -> str:
        """As an editor jumps to it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Failure:
    """Why a test failed.

    Attributes:
        message: what the failed comparison or the exception says; nothing decides by it.
        cause: the cause that was recognised, or the usual one.
        recognised: the known mistake whose values came out, where a test knows it.
        excluded: the known mistakes whose values the test compared, where none of them came out.
        notes: what was added to the exception.
        place: where in the student's file the exception came from; None where it passed through none of its lines.
        error: the exception's class, where it was no failed comparison.
        code: the line of the test that failed, where no other text says what it was.
        exceeded: the limit that was exceeded.
        details: for authors, of a comparison that failed: the line of the test, the case, what was compared with what,
            and how its limit was computed. Failures that differ in nothing else are the same.
    """

    message: str = ""
    cause: str = ""
    recognised: str = ""
    excluded: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = ()
    place: Place | None = None
    error: str = ""
    code: str = ""
    exceeded: Exceeded | None = None
    details: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class TestResult:
    """The result of one test.

    Attributes:
        test: its name, with parameters.
        task: the name of the task that it belongs to.
        failure: why it failed, where it did.
        drawn: whether its inputs are drawn at random, so that another seed gives others.
        n_printed: how many lines the code printed that were not shown.
        memory_limit: whether memory is measured by the operating system: see `labkit.testing.memory_limit`.
        counts: what a test that passed has recorded as "counts" with pytest's fixture `record_property`, by name.
    """

    __test__: ClassVar[bool] = False  # pytest collects classes whose names begin with Test

    test: str
    task: str
    state: State
    failure: Failure = Failure()
    drawn: bool = False
    kind: Kind = Kind.EXACT
    n_printed: int = 0
    memory_limit: bool = False
    counts: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.state is State.PASSED


class How(StrEnum):
    """How a run of a suite ended."""

    FINISHED = "finished"
    OUT_OF_TIME = "out of time"
    DIED = "its process ended"
    INTERRUPTED = "interrupted by Ctrl-C"
    STOPPED = "stopped by pytest.exit: what runs the code is broken"
    FAILED = "pytest could not run it"


@dataclass(frozen=True)
class Ended:
    """How a run of a suite ended, and why.

    Attributes:
        exceeded: the limit, where it was out of time.
        status: its process's exit status, where that ended before the run did, or was killed.
        imported: the file that was imported when the process ended, before any test.
        place: where Ctrl-C came; None outside the student's file.
        detail: what pytest said; nothing decides by it.
    """

    how: How = How.FINISHED
    exceeded: Exceeded | None = None
    status: int = 0
    imported: str = ""
    place: Place | None = None
    detail: str = ""

    @property
    def is_no_verdict(self) -> bool:
        """Whether the suite could not be run, whatever the code under test is."""
        return self.how in (How.STOPPED, How.FAILED)


@dataclass
class SuiteRun:
    """One run of a suite: see `labkit.suite.run`.

    Attributes:
        results: of the tests that were run, in their order.
        n_collected: how many tests there were to run.
        ended: how it ended, and why.
        collected: the names of the tests by task.
    """

    results: list[TestResult] = field(default_factory=list)
    n_collected: int = 0
    ended: Ended = field(default_factory=Ended)
    collected: dict[str, list[str]] = field(default_factory=dict)


class Listener:
    """Receives events while a suite runs."""

    def on_start(self, task: str, test: str, run: SuiteRun) -> None:
        """A test begins; `run` is the run so far."""

    def on_result(self, result: TestResult, run: SuiteRun) -> None:
        """A test has ended."""


@dataclass(frozen=True)
class TaskResult:
    """How many of a task's tests passed, and the largest share of its points that the failed ones leave."""

    task: str
    passed: int
    total: int
    started: bool
    most_share: float = 1.0

    @property
    def done(self) -> bool:
        """Whether every test of the task passed."""
        return 0 < self.total == self.passed

    @property
    def share(self) -> float:
        """The share of the task's points that is earned, from 0 to 1: see `task_share`."""
        return min(self.passed / self.total, self.most_share) if self.total else 0.0

    def points(self, task: Task) -> float:
        """The points earned."""
        return round(task.points * self.share, 4)


@dataclass(frozen=True)
class StoredResult(TaskResult):
    """A stored result of a task, with the fingerprint of its file."""

    source: str = ""


class Stored(msgspec.Struct):
    """What is stored between runs of a lab: results by task, and the time of the last run of the whole suite."""

    results: list[StoredResult] = []
    suite_seconds: float = 0.0


def max_share(task: Task, kind: Kind) -> float:
    """The most that `task` can earn, as a share of its points, while a test of this kind fails."""
    return task.memory_share if kind is Kind.MEMORY else MAX_SHARE[kind]


def task_share(task: Task, results: Iterable[TestResult]) -> float:
    """The share of a task's points, from 0 to 1, that the results of all its tests earn, for students and when graded.

    A task earns the share of its tests that pass: nothing before a result on inputs drawn at random is right (fixed
    results can be copied from the suite), at most half of its points while a test of ordinary inputs fails, at most
    three quarters while one of extreme cases or of memory and work does, or an argument is changed, at most its
    `memory_share` while it exceeds a test's memory limit, and nothing while a library does the work that it asks for.
    """
    return _task_result(task, list(results)).share


def add_up(lab: Lab, results: Iterable[TestResult]) -> dict[str, TaskResult]:
    """The results by task, in the manifest's order, of the tasks that have any."""
    by_task: dict[str, list[TestResult]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    return {task.name: _task_result(task, by_task[task.name]) for task in lab.tasks if task.name in by_task}


def lab_points(lab: Lab, results: Mapping[str, TaskResult]) -> float:
    """The points that `results` earn."""
    return sum(results[task.name].points(task) for task in lab.tasks if task.name in results)


def next_task(lab: Lab, results: Mapping[str, TaskResult]) -> Task | None:
    """The first task that is not done."""
    return next((task for task in lab.tasks if task.name not in results or not results[task.name].done), None)


def fingerprint(lab: Lab) -> str:
    """A hash of the student's file."""
    return hashlib.sha256(lab.student_file.read_bytes()).hexdigest()[:16] if lab.student_file.exists() else ""


def store_whole_tasks(lab: Lab, results: Sequence[TestResult], whole_suite: Mapping[str, Set[str]]) -> None:
    """Store the results of those tasks of which every test was run, unless the file could not be used at all.

    Args:
        whole_suite: the names of all tests of each task.

    Raises:
        OSError: see `store`.
    """
    if all(result.state is State.UNUSABLE for result in results):
        return  # a syntax error says nothing about the code that was there before
    run = {task: {result.test for result in results if result.task == task} for task in whole_suite}
    whole = {task for task, tests in whole_suite.items() if tests and tests <= run[task]}
    store(lab, {name: result for name, result in add_up(lab, results).items() if name in whole})


def store(lab: Lab, results: Mapping[str, TaskResult], suite_seconds: float = 0.0) -> None:
    """Store `results` instead of earlier ones of the same tasks, and `suite_seconds` unless it is 0.

    Raises:
        OSError: it cannot be written; what was stored before is still there.
    """
    source = fingerprint(lab)
    known = load(lab)
    known |= {name: StoredResult(**asdict(result), source=source) for name, result in results.items()}
    now = Stored(list(known.values()), suite_seconds or stored(lab).suite_seconds)
    write_whole(_path(lab), msgspec.json.format(msgspec.json.encode(now), indent=1))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and its folder; a reader finds the old file or the new one, never a part.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def load(lab: Lab) -> dict[str, StoredResult]:
    """The stored results by task; empty before the first run or when the file cannot be read."""
    return {result.task: result for result in stored(lab).results}


def stored(lab: Lab) -> Stored:
    """Everything stored for `lab`; nothing before the first run or when the file cannot be read."""
    try:
        return _read(lab)
    except (OSError, ValueError):
        return Stored()


def unreadable(lab: Lab) -> str:
    """Why the stored results of `lab` cannot be read; "" when they can, or when there are none yet."""
    name = f".lab/{_path(lab).name}"
    try:
        _read(lab)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    except ValueError:
        return f"{name} holds no results"
    return ""


def _read(lab: Lab) -> Stored:
    return msgspec.json.decode(_path(lab).read_bytes(), type=Stored)


def _task_result(task: Task, results: Sequence[TestResult]) -> TaskResult:
    return TaskResult(
        task.name,
        passed=sum(result.passed for result in results),
        total=len(results),
        started=any(result.state is not State.NOT_STARTED for result in results),
        most_share=_most_share(task, results),
    )


def _most_share(task: Task, results: Sequence[TestResult]) -> float:
    on_random_inputs = [result for result in results if result.drawn and result.kind is Kind.EXACT]
    if on_random_inputs and not any(result.passed for result in on_random_inputs):
        return 0.0
    return min((max_share(task, result.kind) for result in results if not result.passed), default=1.0)


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}.json"
