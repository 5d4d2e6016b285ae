"""The result for one submission, and the file in which it is stored."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec


class GradedSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome for one submission of one lab.

    `key` stands for the content handed in, `version` for everything else that decides the outcome. `status` is "graded"
    or "refused" (there was nothing to grade: `reason` says why, and all points are 0). `flags` are what an instructor
    should look at. `tests` maps a test's id (`TestClass::test_name`) to its result, `messages` a failed test's id to
    what a student reads, `causes` to the cause where that is known, `shares` a task to the share of its points that is
    earned, from 0 to 1: how many points those are depends on where they are shown (`labstaff.grading.report`).
    `findings` is what the source check shows. `labstaff.grading.similar` compares `syntax`.
    """

    lab: str
    key: str
    status: Literal["graded", "refused"]
    reason: str = ""
    flags: list[str] = []
    tests: dict[str, Literal["passed", "failed"]] = {}
    messages: dict[str, str] = {}
    causes: dict[str, str] = {}
    shares: dict[str, float] = {}
    findings: list[str] = []
    version: str = ""
    syntax: list[int] = []


def load(path: Path) -> GradedSubmission | None:
    """The result kept at `path`; None when there is none, or the file is not exactly a result, all of it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GradedSubmission)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def save(path: Path, graded: GradedSubmission) -> None:
    """Keep a result: see `write_whole`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(graded), indent=1))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, even when this process is killed or the disk is full."""
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
