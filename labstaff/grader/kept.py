"""What a course keeps for its judge, in one file of its folder: the hidden inputs' seed, and where results lie."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec.structs import replace

from labstaff.grader.results import write_whole

FILE = "judging.json"
RESULTS = "judged"
OLD_SEED = "seed"


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content.

    `seed` decides all random inputs in the course; no student has seen it. `made` is the day on which the course was
    made (ISO 8601, UTC; empty when that is not known): nothing was handed in before. `results` is a folder, from the
    course's when it is not absolute. `looked_at` has the keys of submissions whose findings the instructor has seen.
    """

    seed: int
    made: str = ""
    results: str = RESULTS
    looked_at: list[str] = []


def kept(course: Path, *, is_new: bool = False) -> Kept:
    """What the course in the folder `course` keeps; a seed is drawn when it has none, or only a damaged file.

    A course of an earlier version kept its seed as `judged/seed`: that one stays.

    Args:
        is_new: the course is being made now.
    """
    path = course / FILE
    found = _read(path)
    if found is None:
        course.mkdir(parents=True, exist_ok=True)
        seed = _old_seed(course) or secrets.randbelow(2**31 - 2) + 2
        made = datetime.datetime.now(datetime.UTC).date().isoformat() if is_new else ""
        write_whole(path, msgspec.json.encode(Kept(seed, made)), replace=path.exists())
        found = _read(path)  # another grader's, where two began at once
    if found is None:
        raise OSError(f"{path} cannot be written and read again")
    return found


def results_of(course: Path) -> Path:
    """Where the course's results are kept."""
    return course / kept(course).results


def keep_results_at(course: Path, results: Path) -> None:
    """From now on the course's results lie in `results`, also for nbgrader's own commands."""
    now = kept(course)
    place = str(results.relative_to(course)) if results.is_relative_to(course) else str(results)
    if place != now.results:
        write_whole(course / FILE, msgspec.json.encode(replace(now, results=place)))


def keep_looked_at(course: Path, keys: Collection[str]) -> None:
    """From now on nothing is withheld from the submissions with these keys."""
    now = kept(course)
    if new := sorted(set(keys) - set(now.looked_at)):
        write_whole(course / FILE, msgspec.json.encode(replace(now, looked_at=[*now.looked_at, *new])))


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (FileNotFoundError, ValueError):
        return None


def _old_seed(course: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((course / RESULTS / OLD_SEED).read_text())
    return None
