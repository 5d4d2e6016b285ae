"""What the judge found in one submission, and the file in which it is kept."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

PART = ".{}.????????.part"
"""What a file is called while it is written: its name, and eight characters of `tempfile`'s."""


class JudgedSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome for one submission of one lab.

    `key` stands for what was handed in, `version` for all else that decides the outcome. `status` is "judged" or
    "refused" (nothing could be judged; `reason` says why, and all points are 0). `flags` are for the grader to look at.
    `tests` maps a test's id (`TestClass::test_name`) to how it went, `messages` a failed test's id to what a student
    would read, `tasks` a task to the points it earns. `counts` maps a test that passed to what the suite has counted
    there for the lab's board. `findings` is what the review found in the source, and `withheld` maps a task to the
    points that wait until the instructor has looked at it. `syntax` is what `labstaff.grading.similar` compares.
    """

    lab: str
    key: str
    status: Literal["judged", "refused"]
    reason: str = ""
    flags: list[str] = []
    tests: dict[str, Literal["passed", "failed", "missing"]] = {}
    messages: dict[str, str] = {}
    tasks: dict[str, float] = {}
    findings: list[str] = []
    withheld: dict[str, float] = {}
    counts: dict[str, dict[str, int]] = {}
    version: str = ""
    syntax: list[int] = []

    @property
    def points(self) -> float:
        """What all tasks earn together."""
        return sum(self.tasks.values())


def path_of(results: Path, lab: str, key: str, version: str) -> Path:
    """Where the result for the submission with content `key` is kept, as `version` judges it."""
    return results / lab / f"{key}-{version}.json"


def load(path: Path) -> JudgedSubmission | None:
    """The result kept at `path`; None when there is none, or the file is not exactly a result, all of it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JudgedSubmission)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def save(path: Path, judged: JudgedSubmission) -> None:
    """Keep a result: see `write_whole`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(judged), indent=1))


def judged_otherwise(path: Path) -> bool:
    """Whether a result for the same content is kept, beside `path`, that another version of the course has judged."""
    key = path.stem.partition("-")[0]
    return any(other != path for pattern in (f"{key}-*.json", f"{key}.json") for other in path.parent.glob(pattern))


def write_whole(path: Path, content: bytes, *, replace: bool = True, part_in: Path | None = None) -> bool:
    """Write a file that is there whole or not at all, also when this process is killed or the disk is full.

    Args:
        part_in: the folder in which it is written before it is moved to `path`, on the same disk; `path`'s when None.
            Who is killed leaves a part there, until `clear_parts` removes it.

    Returns:
        False when `replace` is False and there is a file already, which then stays.
    """
    descriptor, part = _new_part(path.name, part_in or path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if replace:
                os.replace(part, path)
            else:
                os.link(part, path)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def clear_parts(folder: Path, *names: str) -> None:
    """Remove the parts of these files that killed processes have left in `folder`; of any file's when none is named.

    Those of a process that is alive stay.
    """
    patterns = [PART.format(glob.escape(name)) for name in names] or [PART.format("*")]
    for part in [part for pattern in patterns for part in folder.glob(pattern)]:
        with contextlib.suppress(OSError):  # held by its writer, gone by now, or on a disk without locks
            descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(part)
            finally:
                os.close(descriptor)


def _new_part(name: str, folder: Path) -> tuple[int, str]:
    """A new file, open and locked for as long as its writer lives: so that it can be told from what is left over."""
    while True:
        descriptor, part = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".part")
        with contextlib.suppress(OSError):  # where a disk has no locks, nothing is ever cleared
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, part
        os.close(descriptor)  # cleared by another in the moment before it was locked
