"""Finds the submissions in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.manifest import Lab


@dataclass(frozen=True)
class Submitted:
    """One student's submission for one lab: a folder or a zip archive at `path`."""

    student: str
    lab: Lab
    path: Path


def find_submissions(folder: Path, labs: Sequence[Lab]) -> list[Submitted]:
    """The submissions in `folder`, sorted: `STUDENT/labNN_name/` or, where there is none, `STUDENT/labNN_name.zip`.

    A folder that holds notes alone, such as the time of submission, does not hide the archive next to it. Symbolic
    links are ignored: a submission cannot point to another one.
    """
    found = []
    for student in sorted(folder.iterdir()):
        if student.is_symlink() or not student.is_dir() or student.name.startswith("."):
            continue
        for lab in labs:
            places = [student / lab.folder.name, student / f"{lab.folder.name}.zip"]
            present = [place for place in places if place.exists() and not place.is_symlink()]
            if present:
                path = present[-1] if _holds_notes_alone(present[0]) else present[0]
                found.append(Submitted(student.name, lab, path))
    return found


def _holds_notes_alone(place: Path) -> bool:
    """Whether it is a folder of text files and hidden files, or an empty one."""
    return place.is_dir() and all(path.suffix == ".txt" or path.name.startswith(".") for path in place.iterdir())
