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
        if not student.is_symlink() and student.is_dir() and not student.name.startswith("."):
            places = ((lab, _place(student, lab)) for lab in labs)
            found += [Submitted(student.name, lab, place) for lab, place in places if place]
    return found


def _place(student: Path, lab: Lab) -> Path | None:
    """The student's folder or archive; where looking fails, the folder, and reading it says why."""
    folder = student / lab.folder.name
    try:
        places = [folder, student / f"{lab.folder.name}.zip"]
        present = [place for place in places if place.exists() and not place.is_symlink()]
        if not present:
            return None
        return present[-1] if _holds_notes_alone(present[0]) else present[0]
    except OSError:
        return folder


def _holds_notes_alone(place: Path) -> bool:
    """Whether it is a folder of text files and hidden files, or an empty one."""
    return place.is_dir() and all(path.suffix == ".txt" or path.name.startswith(".") for path in place.iterdir())
