"""What is known of a student's progress: verdicts added up per task, and kept between runs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from labkit.labs.manifest import Lab, Task
from labkit.suite.verdict import Kind, State, Verdict

MOST_SHARE = {Kind.EXACT: 0.5, Kind.ROBUST: 0.75, Kind.SMALL: 0.75, Kind.REFUSES: 1.0, Kind.OWN: 0.0}
"""The most that a task can earn, as a share of its points, while a test of this kind fails."""


def task_points(task: Task, verdicts: Iterable[Verdict]) -> float:
    """The points that `verdicts`, all of them of `task` and none missing, earn: the one rule, wherever points are told.

    A task earns the share of its tests that pass: nothing before a result on inputs drawn at random is right (what
    stands in the suite to be read, anybody can write down), at most half of its points while a result on ordinary
    inputs is wrong, at most three quarters while one on extreme inputs is, or memory or work exceeds its bound, and
    nothing while a library does the work that the task asks for.
    """
    return _task_result(task.name, list(verdicts)).points(task)


@dataclass(frozen=True)
class TaskResult:
    """How many of a task's tests passed, and the largest share of its points that those which failed leave."""

    task: str
    passed: int
    total: int
    started: bool
    most_share: float = 1.0

    @property
    def done(self) -> bool:
        """Whether every test of the task passed."""
        return 0 < self.total == self.passed

    def points(self, task: Task) -> float:
        """The points earned: see `task_points`."""
        share = min(self.passed / self.total, self.most_share) if self.total else 0.0
        return round(task.points * share, 4)


@dataclass(frozen=True)
class StoredResult(TaskResult):
    """A task's result as it was, and the text of the file that it was for."""

    source: str = ""


class Stored(msgspec.Struct):
    """What is kept of a lab between runs: results by task, and how long the last run of the whole suite took."""

    results: list[StoredResult] = []
    suite_seconds: float = 0.0


def add_up(lab: Lab, verdicts: Iterable[Verdict]) -> dict[str, TaskResult]:
    """The results by task, in the manifest's order, of the tasks that `verdicts` speak of."""
    by_task: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_task.setdefault(verdict.task, []).append(verdict)
    return {task.name: _task_result(task.name, by_task[task.name]) for task in lab.tasks if task.name in by_task}


def lab_points(lab: Lab, results: Mapping[str, TaskResult]) -> float:
    """The points that `results` earn."""
    return sum(results[task.name].points(task) for task in lab.tasks if task.name in results)


def next_task(lab: Lab, results: Mapping[str, TaskResult]) -> Task | None:
    """The first task that is not done."""
    return next((task for task in lab.tasks if task.name not in results or not results[task.name].done), None)


def fingerprint(lab: Lab) -> str:
    """Changes when the student's file changes."""
    return hashlib.sha256(lab.answer_file.read_bytes()).hexdigest()[:16] if lab.answer_file.exists() else ""


def store_whole_tasks(lab: Lab, verdicts: Sequence[Verdict], whole_suite: Mapping[str, Set[str]]) -> None:
    """Keep the results of those tasks of which every test was run, and which could be judged at all.

    Args:
        whole_suite: the names of all tests of a task.

    Raises:
        OSError: see `store`.
    """
    if all(verdict.state is State.UNUSABLE for verdict in verdicts):
        return  # a syntax error says nothing about what was there before it
    run = {task: {verdict.test for verdict in verdicts if verdict.task == task} for task in whole_suite}
    whole = {task for task, tests in whole_suite.items() if tests and tests <= run[task]}
    store(lab, {name: result for name, result in add_up(lab, verdicts).items() if name in whole})


def store(lab: Lab, results: Mapping[str, TaskResult], suite_seconds: float = 0.0) -> None:
    """Keep `results`, in place of what was known of the same tasks, and `suite_seconds` unless it is 0.

    Raises:
        OSError: it cannot be written; what was kept before is still there.
    """
    source = fingerprint(lab)
    known: dict[str, StoredResult] = load(lab)
    known |= {name: StoredResult(**asdict(result), source=source) for name, result in results.items()}
    kept = Stored(list(known.values()), suite_seconds or stored(lab).suite_seconds)
    write_json(_path(lab), kept)


def write_json(path: Path, kept: msgspec.Struct) -> None:
    """Write what is kept between runs, whole or not at all.

    Raises:
        OSError: it cannot be written; what was kept before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def load(lab: Lab) -> dict[str, StoredResult]:
    """What is known of the lab's tasks; empty before the first run or when the file cannot be read."""
    return {result.task: result for result in stored(lab).results}


def stored(lab: Lab) -> Stored:
    """All that is kept of `lab`; nothing before the first run or when the file cannot be read."""
    try:
        return msgspec.json.decode(_path(lab).read_bytes(), type=Stored)
    except (OSError, ValueError):
        return Stored()


def unreadable(lab: Lab) -> str:
    """Why what is kept of `lab` cannot be read; nothing when it can, or when there is nothing yet."""
    path = _path(lab)
    try:
        msgspec.json.decode(path.read_bytes(), type=Stored)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f".lab/{path.name} cannot be read: {error.strerror}"
    except ValueError:
        return f".lab/{path.name} holds no results"
    return ""


def _task_result(name: str, verdicts: Sequence[Verdict]) -> TaskResult:
    return TaskResult(
        name,
        passed=sum(verdict.passed for verdict in verdicts),
        total=len(verdicts),
        started=any(verdict.state is not State.NOT_STARTED for verdict in verdicts),
        most_share=_most_share(verdicts),
    )


def _most_share(verdicts: Sequence[Verdict]) -> float:
    telling = [verdict for verdict in verdicts if verdict.drawn and verdict.kind is Kind.EXACT]
    if telling and not any(verdict.passed for verdict in telling):
        return 0.0
    return min((MOST_SHARE[verdict.kind] for verdict in verdicts if not verdict.passed), default=1.0)


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}.json"
