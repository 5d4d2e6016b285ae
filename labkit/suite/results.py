"""What is known of a student's progress: verdicts added up per task, and kept between runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.labs.manifest import Lab, Task
from labkit.suite.verdict import State, Verdict


@dataclass(frozen=True)
class TaskResult:
    """How many of a task's tests passed."""

    task: str
    passed: int
    total: int
    started: bool

    @property
    def done(self) -> bool:
        """Whether every test of the task passed."""
        return 0 < self.total == self.passed

    def points(self, task: Task) -> float:
        """The share of the tests that pass, of the task's points."""
        return task.points * self.passed / self.total if self.total else 0.0


@dataclass(frozen=True)
class StoredResult(TaskResult):
    """A task's result as it was, and the text of the file that it was for."""

    source: str


def add_up(lab: Lab, verdicts: Iterable[Verdict]) -> dict[str, TaskResult]:
    """The results by task, in the manifest's order, of the tasks that `verdicts` speak of."""
    by_task: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_task.setdefault(verdict.task, []).append(verdict)
    return {
        task.name: TaskResult(
            task.name,
            passed=sum(v.passed for v in by_task[task.name]),
            total=len(by_task[task.name]),
            started=any(v.state is not State.NOT_STARTED for v in by_task[task.name]),
        )
        for task in lab.tasks
        if task.name in by_task
    }


def lab_points(lab: Lab, results: Mapping[str, TaskResult]) -> float:
    """The points that `results` earn."""
    return sum(results[task.name].points(task) for task in lab.tasks if task.name in results)


def next_task(lab: Lab, results: Mapping[str, TaskResult]) -> Task | None:
    """The first task that is not done."""
    return next((task for task in lab.tasks if task.name not in results or not results[task.name].done), None)


def fingerprint(lab: Lab) -> str:
    """Changes when the student's file changes."""
    return hashlib.sha256(lab.answer_file.read_bytes()).hexdigest()[:16] if lab.answer_file.exists() else ""


def store(lab: Lab, results: Mapping[str, TaskResult]) -> None:
    """Keep `results`, in place of what was known of the same tasks."""
    known: dict[str, TaskResult] = dict(load(lab))
    source = fingerprint(lab)
    known |= {name: StoredResult(**asdict(result), source=source) for name, result in results.items()}
    path = _path(lab)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(result) for result in known.values()], indent=1), encoding="utf-8")


def load(lab: Lab) -> dict[str, StoredResult]:
    """What is known of the lab's tasks; empty before the first run or when the file cannot be read."""
    try:
        entries = json.loads(_path(lab).read_text(encoding="utf-8"))
        stored = [StoredResult(**entry) for entry in entries]
    except (OSError, ValueError, TypeError):
        return {}
    return {result.task: result for result in stored}


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}.json"
