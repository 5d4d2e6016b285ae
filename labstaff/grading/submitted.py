"""Finds the submissions in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.manifest import FOLDER_PATTERN, Lab


@dataclass(frozen=True)
class Submitted:
    """One student's submission for one lab: a folder or a zip archive at `path`.

    `others` are further folders or archives of the same student for the same lab; they are not graded.
    """

    student: str
    lab: Lab
    path: Path
    others: tuple[Path, ...] = ()


def find_submissions(folder: Path, labs: Sequence[Lab]) -> list[Submitted]:
    """The submissions in `folder`, one for each student and lab, sorted: nbgrader's layout, or archives.

    `STUDENT/labNN_name/`, `STUDENT/labNN_name.zip`, and where a single lab is asked for also `STUDENT.zip`. A folder
    counts before an archive, as in nbgrader. Symbolic links are ignored: a submission cannot point to another one.
    """
    by_name = {lab.folder.name: lab for lab in labs}
    paths: dict[tuple[str, str], list[Path]] = {}
    for student in sorted(folder.iterdir()):
        if student.is_symlink() or student.name.startswith("."):
            continue
        if student.is_dir():
            for path in sorted(student.iterdir()):
                name = path.name.removesuffix(".zip")
                if not path.is_symlink() and FOLDER_PATTERN.fullmatch(name) and name in by_name:
                    paths.setdefault((student.name, name), []).append(path)
        elif student.suffix == ".zip" and len(labs) == 1:
            paths.setdefault((student.stem, labs[0].folder.name), []).append(student)
    found = []
    for (name, lab), candidates in sorted(paths.items()):
        first, *others = sorted(candidates, key=lambda path: not path.is_dir())
        found.append(Submitted(name, by_name[lab], first, tuple(others)))
    return found
