"""Where things lie in a course folder, and what a submission there must be before nbgrader looks at it."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.manifest import FOLDER_PATTERN

NOTEBOOK = "report.ipynb"
RESULTS = "judged"
PUT_THERE = "put_there_when_none_was_handed_in"
NOT_HANDED_IN = f"no {NOTEBOOK} was handed in; the released one stands in its place"


@dataclass(frozen=True)
class Places:
    """The files of one student's submission for one assignment, in one course."""

    course: Path
    student: str
    assignment: str

    @property
    def submitted(self) -> Path:
        """What was handed in: the folder that the judge is given."""
        return self.course / "submitted" / self.student / self.assignment

    @property
    def autograded(self) -> Path:
        """Where nbgrader writes what formgrader shows."""
        return self.course / "autograded" / self.student / self.assignment

    @property
    def feedback(self) -> Path:
        """Where nbgrader writes what the student gets back."""
        return self.course / "feedback" / self.student / self.assignment

    @property
    def released(self) -> Path:
        """The assignment as it was handed out."""
        return self.course / "release" / self.assignment

    @property
    def results(self) -> Path:
        """Where the judge keeps its results, for all submissions."""
        return self.course / RESULTS


def submissions(course: Path, assignment: str = "*") -> Iterator[Places]:
    """Every submission in the course, by student."""
    for folder in sorted((course / "submitted").glob(f"*/{assignment}")):
        if FOLDER_PATTERN.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            yield Places(course, folder.parent.name, folder.name)


def make_ready(course: Path) -> list[str]:
    """Make every submission one that nbgrader can grade; returns what was done, a line each.

    nbgrader passes over a submission without its notebook, so that its student vanishes from the grades: the released
    one is put there. It follows links and waits for pipes when it copies: what is not a regular file is removed.
    """
    done = []
    for places in submissions(course):
        name = f"{places.student}: {places.assignment}"
        done += [f"{name}: removed {path}, which is no file" for path in remove_what_is_no_file(places.submitted)]
        if not any(places.submitted.glob("*.ipynb")) and (places.released / NOTEBOOK).is_file():
            notebook = json.loads((places.released / NOTEBOOK).read_text(encoding="utf-8"))
            notebook["metadata"][PUT_THERE] = True
            (places.submitted / NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")
            done.append(f"{name}: {NOT_HANDED_IN}")
    return done


def remove_what_is_no_file(folder: Path) -> list[Path]:
    """Remove links, pipes, sockets and devices from `folder`; returns where they were, relative to it."""
    removed = []
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            path.unlink()
            removed.append(path.relative_to(folder))
    return removed
