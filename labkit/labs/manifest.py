"""Reads and validates a lab's manifest, `lab.toml`."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

MANIFEST_NAME = "lab.toml"
FOLDER_PATTERN = re.compile(r"lab(\d\d)_[a-z0-9_]+")
MISSING = re.compile(r"Object (?:missing required|contains unknown) field `(\w+)`")

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*$")]
Setting = Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]*=")]
Library = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]+(\.[a-z_]+)*(>=\d+(\.\d+)*)?$")]
MEASURABLE = "choose|compare|compute|count|derive|find|measure|merge|predict|reproduce|write"
Outcome = Annotated[str, msgspec.Meta(pattern=rf"^({MEASURABLE}) .*[^.;]$")]
Positive = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names the file, the key and what was expected."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing a student writes: a function or a class of the lab's module.

    Unless it is its `own_work`, a library's attention may do it. `memory_share` is the most that it earns, as a share
    of its points, while it exceeds a test's memory limit: less than other costs where memory is what the task is about.
    """

    name: Identifier
    signature: Text
    tests: Identifier
    points: Positive
    hints: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    own_work: bool = True
    memory_share: Annotated[float, msgspec.Meta(gt=0, le=0.75)] = 0.75


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One written answer or figure of the lab's report, graded by hand."""

    id: Identifier
    title: Text
    points: Positive


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of the file."""

    title: Text
    summary: Text
    outcomes: Annotated[tuple[Outcome, ...], msgspec.Meta(min_length=3, max_length=4)]
    module: Identifier
    hours: Positive
    draft: bool = False
    platform: Literal["", "linux"] = ""
    libraries: tuple[Library, ...] = ()
    ordinary: tuple[Text, ...] = ()
    environment: tuple[Setting, ...] = ()
    test_seconds: Positive = 5
    requires: tuple[Text, ...] = ()
    read: tuple[Text, ...] = ()
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1)]
    questions: tuple[Question, ...] = ()
    review_points: Positive = 20


class Lab(_Written, frozen=True, kw_only=True):
    """One lab as its manifest describes it, and its folder.

    `outcomes` go on from "After this lab you can", each with a verb that a task or a question can test. A draft is
    still being written: it is not released, and how many mistakes it has is not asked. `platform` is what
    its libraries need, "" for any; `libraries` the modules that a submission may import besides the standard library's,
    with the least version, `triton>=3.6`, where the project itself allows older ones; `ordinary` other names that the
    source check does not show in this lab; `environment` what is set, `NAME=value`, before the lab's module is
    imported. `test_seconds` is the CPU time that a test may take, ten times what the slowest alternative solution
    needs. `review_points` are those of the student's own tests (`lab review`), which the lab's sum does not count.
    """

    folder: Path

    @property
    def number(self) -> str:
        """Two digits, as in the folder's name."""
        return self.folder.name[3:5]

    @property
    def label(self) -> str:
        """The short name a student types and reads: `lab01`."""
        return f"lab{self.number}"

    @property
    def student_file(self) -> Path:
        """The file a student fills in."""
        return self.folder / "src" / f"{self.module}.py"

    @property
    def review_file(self) -> Path:
        """The file of the student's own tests, which `lab review` runs on right and wrong versions."""
        return self.folder / "review.py"

    @property
    def suite_file(self) -> Path:
        """The lab's one test module."""
        return self.folder / "tests" / f"test_{self.module}.py"

    @property
    def suite_files(self) -> list[Path]:
        """The test module and its helpers next to it: `support.py` or what it was divided into, `probes.py`."""
        return sorted(self.suite_file.parent.glob("*.py"))

    @property
    def points(self) -> float:
        """Points for the tasks, which the suite grades, without those for the report."""
        return sum(task.points for task in self.tasks)

    @property
    def report_points(self) -> float:
        """Points for the report, which a person grades."""
        return sum(question.points for question in self.questions)

    def task_of(self, test_class: str) -> Task | None:
        """The task that `test_class` tests."""
        return next((task for task in self.tasks if task.tests == test_class), None)


def read_manifest(path: Path) -> Lab:
    """Read and validate `path`, a lab's `lab.toml`.

    Raises:
        ManifestError: naming the file, the key and what was expected.
    """
    if not FOLDER_PATTERN.fullmatch(path.parent.name):
        raise ManifestError(f"{path}: the folder must be named labNN_name, not {path.parent.name!r}")
    try:
        written = _decoded(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise ManifestError(f"{path}: {_located(str(error))}") from None
    except ValueError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from None
    lab = Lab(folder=path.parent, **msgspec.structs.asdict(written))
    _check(path, lab)
    return lab


@functools.lru_cache(maxsize=64)
def _decoded(text: str) -> _Written:
    """The keys of a manifest. A grader reads the same text dozens of times: it is parsed once."""
    return msgspec.convert(tomllib.loads(text), _Written)


def _located(message: str) -> str:
    """msgspec's message with the key in front: `tasks[1].points: Expected …`."""
    problem, _, where = message.partition(" - at ")
    key = where.strip("`").removeprefix("$").removeprefix(".")
    if field := MISSING.match(problem):
        what = "missing" if "missing" in problem else "not a key of a lab's manifest"
        return f"{key}.{field[1]}: {what}" if key else f"{field[1]}: {what}"
    return f"{key or 'the file'}: {problem[0].lower()}{problem[1:]}"


def _check(path: Path, lab: Lab) -> None:
    """Checks beyond the types."""
    for number, task in enumerate(lab.tasks):
        if not re.match(rf"{task.name}[.(]", task.signature):
            expected = f"a call of {task.name}, like {task.name}(Q, K)"
            raise ManifestError(f"{path}: tasks[{number}].signature: expected {expected}, found {task.signature!r}")
    for kind, names in (
        ("tasks", [task.name for task in lab.tasks]),
        ("tasks", [task.tests for task in lab.tasks]),
        ("questions", [question.id for question in lab.questions]),
    ):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ManifestError(f"{path}: {kind}: expected each name once, found twice: {', '.join(sorted(twice))}")
