"""The versions of a lab's module that the student's tests are to tell apart: right ones, and wrong ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from labkit.labs.manifest import Lab
from labkit.suite.results import load

DATA_FILE = "review.versions"
"""In a lab's folder of a release: the versions, compressed."""


class Kind(StrEnum):
    """What kind of test finds a wrong version, the most common one first."""

    RESULTS = "results"
    EXTREMES = "extremes"
    REFUSALS = "refusals"
    MEMORY = "memory"
    WORK = "work"


class Version(msgspec.Struct, frozen=True):
    """One text of a lab's module.

    Attributes:
        name: its name, no other's in the lab.
        tasks: the tasks whose tests it is for.
        source: the text.
        what: the mistake, in a sentence; empty for a right version.
        kind: what kind of test finds it.
        diff: what differs from the solution, as lines of a diff.
        is_asked: whether it counts when a review is graded.
    """

    name: str
    tasks: tuple[str, ...]
    source: str
    what: str = ""
    kind: Kind = Kind.RESULTS
    diff: tuple[str, ...] = ()
    is_asked: bool = True

    @property
    def is_right(self) -> bool:
        """Whether every test must accept it."""
        return not self.what


class Packed(msgspec.Struct, frozen=True):
    """What a data file holds: the versions, and whether they wait until the lab's tasks are done."""

    versions: tuple[Version, ...]
    after: bool


class NoVersions(Exception):
    """There are no versions to run; the message says why."""


def packed(versions: tuple[Version, ...], *, after: bool) -> bytes:
    """The contents of a data file."""
    return zlib.compress(msgspec.json.encode(Packed(versions, after)), 9)


def stored_versions(lab: Lab) -> tuple[Version, ...]:
    """The versions in the lab's data file.

    Raises:
        NoVersions: there is no such file, it is damaged, or tasks of the lab are not done yet.
    """
    file = lab.folder / DATA_FILE
    if not file.exists():
        raise NoVersions("this release holds no right and wrong versions: your instructor may hand them out later")
    try:
        data = msgspec.json.decode(zlib.decompress(file.read_bytes()), type=Packed)
    except (zlib.error, msgspec.DecodeError):
        raise NoVersions(f"{DATA_FILE} is damaged: copy it from the release again") from None
    results = load(lab)
    undone = [task.name for task in lab.tasks if task.name not in results or not results[task.name].done]
    if data.after and undone:
        names = ", ".join(undone)
        raise NoVersions(f"the right and wrong versions open when the lab's tasks are done; left: {names}")
    return data.versions


source: Callable[[Lab], tuple[Version, ...]] = stored_versions
"""Where versions come from. In the full repository labstaff puts its own function here, which reads `solutions/`."""


def write(version: Version, folder: Path, lab: Lab) -> Path:
    """Write a version as the lab's module into a folder of its own in `folder`, and return that one."""
    place = folder / (version.name or "own")
    place.mkdir(exist_ok=True)
    (place / lab.student_file.name).write_text(version.source, encoding="utf-8")
    return place
