"""Reads one `lab.toml` and says exactly what is wrong with it when it is malformed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_NAME = "lab.toml"
FOLDER_PATTERN = re.compile(r"lab(\d\d)_[a-z0-9_]+")


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, key and what was expected there."""


@dataclass(frozen=True)
class Task:
    """One thing a student writes: a function or a class of the lab's module."""

    name: str
    signature: str
    tests: str
    points: float
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """One written answer or figure of the lab's report, graded by hand."""

    id: str
    title: str
    points: float


@dataclass(frozen=True)
class Lab:
    """One lab as its manifest describes it."""

    folder: Path
    title: str
    summary: str
    module: str
    hours: float
    requires: tuple[str, ...]
    read: tuple[str, ...]
    tasks: tuple[Task, ...]
    questions: tuple[Question, ...]

    @property
    def number(self) -> str:
        """Two digits, as in the folder's name."""
        return self.folder.name[3:5]

    @property
    def label(self) -> str:
        """The short name a student types and reads: `lab01`."""
        return f"lab{self.number}"

    @property
    def answer_file(self) -> Path:
        """The file a student fills in."""
        return self.folder / "src" / f"{self.module}.py"

    @property
    def suite_file(self) -> Path:
        """The lab's one test module."""
        return self.folder / "tests" / f"test_{self.module}.py"

    @property
    def points(self) -> float:
        """Points for the tasks, judged by the suite; the report's come on top."""
        return sum(task.points for task in self.tasks)

    def task_of(self, test_class: str) -> Task | None:
        """The task that the tests of `test_class` judge."""
        return next((task for task in self.tasks if task.tests == test_class), None)


def read_manifest(path: Path) -> Lab:
    """Read and validate `path`, a lab's `lab.toml`.

    Raises:
        ManifestError: naming the file, the key and what was expected.
    """
    if not FOLDER_PATTERN.fullmatch(path.parent.name):
        raise ManifestError(f"{path}: the folder must be named labNN_name, not {path.parent.name!r}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from None
    top = _Table(path, "", data)
    lab = Lab(
        folder=path.parent,
        title=top.take("title", _text),
        summary=top.take("summary", _text),
        module=top.take("module", _identifier),
        hours=top.take("hours", _positive),
        requires=top.take("requires", _texts, default=()),
        read=top.take("read", _texts, default=()),
        tasks=tuple(_task(table) for table in top.tables("tasks")),
        questions=tuple(_question(table) for table in top.tables("questions", required=False)),
    )
    top.done()
    for kind, names in (
        ("tasks", [task.name for task in lab.tasks]),
        ("tasks", [task.tests for task in lab.tasks]),
        ("questions", [question.id for question in lab.questions]),
    ):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ManifestError(f"{path}: {kind}: expected every name once, found twice: {', '.join(sorted(twice))}")
    return lab


def _task(table: _Table) -> Task:
    task = Task(
        name=table.take("name", _identifier),
        signature=table.take("signature", _text),
        tests=table.take("tests", _identifier),
        points=table.take("points", _positive),
        hints=table.take("hints", _texts),
    )
    table.done()
    if not re.match(rf"{task.name}[.(]", task.signature):
        table.fail("signature", f"a call of {task.name}, like {task.name}(Q, K)", task.signature)
    if not task.hints:
        table.fail("hints", "at least one hint", [])
    return task


def _question(table: _Table) -> Question:
    question = Question(table.take("id", _identifier), table.take("title", _text), table.take("points", _positive))
    table.done()
    return question


@dataclass
class _Table:
    """A TOML table being read: every key is taken once, and what is left over is an error."""

    path: Path
    prefix: str
    data: dict[str, Any]

    def take(self, key: str, convert: Callable[[Any], Any], **default: Any) -> Any:
        if key not in self.data:
            if "default" in default:
                return default["default"]
            raise ManifestError(f"{self.path}: {self.prefix}{key}: missing, expected {convert.__doc__}")
        value = self.data.pop(key)
        converted = convert(value)
        if converted is None:
            self.fail(key, convert.__doc__ or "", value)
        return converted

    def tables(self, key: str, required: bool = True) -> list[_Table]:
        found = self.data.pop(key, None)
        if found is None and not required:
            return []
        if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
            self.fail(key, f"one or more [[{key}]] tables", found)
        return [_Table(self.path, f"{key}[{i}].", dict(item)) for i, item in enumerate(found)]

    def done(self) -> None:
        if self.data:
            raise ManifestError(f"{self.path}: {self.prefix}{sorted(self.data)[0]}: not a key of a lab's manifest")

    def fail(self, key: str, expected: str, found: Any) -> None:
        raise ManifestError(f"{self.path}: {self.prefix}{key}: expected {expected}, found {found!r}")


def _text(value: Any) -> str | None:
    """a non-empty text"""
    return value.strip() if isinstance(value, str) and value.strip() else None


def _identifier(value: Any) -> str | None:
    """a Python name"""
    return value if isinstance(value, str) and value.isidentifier() else None


def _positive(value: Any) -> float | None:
    """a number above 0"""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _texts(value: Any) -> tuple[str, ...] | None:
    """a list of non-empty texts"""
    if not isinstance(value, list) or not all(_text(item) for item in value):
        return None
    return tuple(item.strip() for item in value)
