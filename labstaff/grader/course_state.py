"""The file in a course's folder with what grading needs: the seed of hidden inputs, and what was looked at."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec.structs import replace

from labstaff.grader.results import write_whole

FILE = "grading.json"


class CourseState(msgspec.Struct, frozen=True):
    """The file's content.

    `seed` decides all random inputs in the course; no student has seen it. `looked_at` has the keys of submissions
    whose findings the instructor has seen.
    """

    seed: int
    looked_at: list[str] = []


def course_state(course: Path) -> CourseState:
    """What the course in the folder `course` keeps; a seed is drawn when it has none, or only a damaged file."""
    path = course / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=CourseState)
    except (FileNotFoundError, ValueError):
        state = CourseState(secrets.randbelow(2**31 - 2) + 2)
        course.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(state))
        return state


def keep_looked_at(course: Path, keys: Collection[str]) -> None:
    """From now on nothing is withheld from the submissions with these keys."""
    now = course_state(course)
    if new := sorted(set(keys) - set(now.looked_at)):
        write_whole(course / FILE, msgspec.json.encode(replace(now, looked_at=[*now.looked_at, *new])))
