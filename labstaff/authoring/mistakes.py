"""The mistakes next to each solution: a description, what finds it, and the submission that makes it.

`solutions/labNN_name/mistakes/TASK.toml` holds those of a task:

    [[mistake]]
    name = "forward_without_scale"
    what = "The scores are never divided by √d."
    says = "not divided by √d"              # what a message contains, where a test knows the mistake
    edit = '''
    - S = scale * Q_i @ K[..., cols, :].to(precise).mT
    + S = Q_i @ K[..., cols, :].to(precise).mT
    '''

A mistake that is another algorithm says `replace = { flash_forward = "forward_borrows_heads" }` instead of `edit`:
that function or class of `mistakes/algorithms.py` takes the place of the solution's. What finds a mistake is measured:
`labstaff.authoring.record` writes it into `mistakes/record.json`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab, Task
from labstaff.authoring.algorithms import ReplaceError, replaced
from labstaff.authoring.edits import EditError, edited

MISTAKES_PER_TASK = 6
FOLDER = "mistakes"
ALGORITHMS = "algorithms.py"
RECORD = "record.json"


class MistakeError(ValueError):
    """A malformed mistake; the message names the file, and the key or the mistake."""


class UnknownMistake(LookupError):
    """No mistake of the lab has this name; the message lists similar names."""


class Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a run of the suite on a mistake has shown.

    Attributes:
        found_by: the first test of the mistake's task whose message says what it must, `TestClass::test_name`.
        failing: all tests that fail, in the suite's order; empty where only `found_by` was run.
        message: the lines that a student reads from the test `found_by`.
    """

    found_by: str
    failing: list[str]
    message: list[str]


@dataclass(frozen=True)
class Mistake:
    """A plausible mistake in one task, as an edit of the solution or as functions that replace its own.

    Attributes:
        lab: the lab.
        name: its name, no other's in the lab.
        what: the mistake, in a sentence.
        task: the name of the task it is made in.
        says: what a message of one of them must contain; empty where none needs to.
        edit: see `labstaff.authoring.edits`; empty where `replace` is not.
        replace: names in the solution and names in algorithms.py that take their places.
        file: where it is written.
        record: what finds it; None while it has not been run.
    """

    lab: Lab
    name: str
    what: str
    task: str
    says: str
    edit: str
    replace: dict[str, str] = field(hash=False)
    file: Path
    record: Record | None = field(default=None, hash=False)

    @property
    def found_by(self) -> tuple[str, ...]:
        """What to run to find it: the recorded test, or the whole class of its task."""
        if self.record:
            return (self.record.found_by,)
        return tuple(task.tests for task in self.lab.tasks if task.name == self.task)

    def source(self) -> str:
        """The text of the whole module with this mistake.

        Raises:
            MistakeError: the edit does not fit the solution, or a name to replace is not there.
        """
        solution = solution_file(self.lab).read_text(encoding="utf-8")
        try:
            if self.edit:
                return edited(solution, self.edit)
            algorithms = self.file.with_name(ALGORITHMS).read_text(encoding="utf-8")
            return replaced(solution, algorithms, self.replace)
        except EditError as error:
            raise MistakeError(f"{self.file}: {self.name}: edit: {error}") from None
        except ReplaceError as error:
            raise MistakeError(f"{self.file}: {self.name}: replace: {error}") from None

    def write(self, folder: Path) -> None:
        """Write the module with this mistake to `folder`, for a run with `--src`; raises as `source`."""
        text = self.source()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.lab.student_file.name).write_text(text, encoding="utf-8")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A table of a file, as it is written."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+$")]
    what: Annotated[str, msgspec.Meta(pattern=r"\S\.$")]
    says: str = ""
    edit: str = ""
    replace: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A file, as it is written."""

    mistake: list[_Entry]


def mistakes_of(lab: Lab) -> list[Mistake]:
    """Every mistake of the lab, task by task.

    Raises:
        MistakeError: a file or a table is malformed, names a task or a test class that is not there, or a name twice.
    """
    folder = solution_folder(lab) / FOLDER
    strangers = {file.stem for file in folder.glob("*.toml")} - {task.name for task in lab.tasks}
    if strangers:
        tasks = ", ".join(task.name for task in lab.tasks)
        raise MistakeError(f"{folder / min(strangers)}.toml: {min(strangers)} is not one of the tasks {tasks}")
    found: dict[str, Mistake] = {}
    records = read_records(lab)
    for task in lab.tasks:
        for mistake in _read(lab, task, folder / f"{task.name}.toml", records):
            if mistake.name in found:
                raise MistakeError(f"{mistake.file}: {mistake.name}: the name is taken, see {found[mistake.name].file}")
            found[mistake.name] = mistake
    return list(found.values())


def find_mistake(lab: Lab, name: str) -> Mistake:
    """The lab's mistake of that name.

    Raises:
        UnknownMistake: there is none.
        MistakeError: as `mistakes_of`.
    """
    known = {mistake.name: mistake for mistake in mistakes_of(lab)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    advice = f"near it: {', '.join(near)}" if near else f"they are listed by: uv run lab mistake {lab.number}"
    raise UnknownMistake(f"{lab.label} has no mistake {name!r}; {advice}")


def read_records(lab: Lab) -> dict[str, Record]:
    """What finds each mistake of the lab, by its name.

    Raises:
        MistakeError: the file is malformed.
    """
    file = solution_folder(lab) / FOLDER / RECORD
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Record]) if file.exists() else {}
    except msgspec.DecodeError as error:
        raise MistakeError(f"{file}: {error}") from None


def write_records(lab: Lab, records: dict[str, Record]) -> None:
    """Write `records` besides those that are there; those of mistakes that are gone are left out."""
    known = read_records(lab) | records
    kept = {mistake.name: known[mistake.name] for mistake in mistakes_of(lab) if mistake.name in known}
    file = solution_folder(lab) / FOLDER / RECORD
    file.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def _read(lab: Lab, task: Task, file: Path, records: dict[str, Record]) -> list[Mistake]:
    try:
        entries = msgspec.toml.decode(file.read_bytes(), type=_File).mistake if file.exists() else []
    except msgspec.DecodeError as error:
        raise MistakeError(f"{file}: {error}") from None
    found = []
    for entry in entries:
        if bool(entry.edit.strip()) == bool(entry.replace):
            raise MistakeError(f"{file}: {entry.name}: expected one of `edit` and `replace`")
        texts = (entry.says, entry.edit, entry.replace)
        found.append(Mistake(lab, entry.name, entry.what, task.name, *texts, file, records.get(entry.name)))
    return found
