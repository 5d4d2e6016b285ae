"""Where things lie in a course folder, and which students' names nbgrader can work with."""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import ROOT, find_lab
from labkit.labs.manifest import FOLDER_PATTERN, MANIFEST_NAME, Lab
from labstaff.grader.kept import results_of
from labstaff.grader.plain_text import one_line

NOTEBOOK = "report.ipynb"
TIMESTAMP = "timestamp.txt"
CONFIG_FILE = "nbgrader_config.py"
SUBMITTED = "submitted"
SET_ASIDE = "set_aside"
RECORDERS_LOCK, COMMANDS_LOCK = "grading", "nbgrader"
"""Of one `lab grade` that records, from its first look to its last command; and of one command of nbgrader's."""

NOT_FOR_NBGRADER = "*?[]"
"""What nbgrader takes for a pattern in a student's name."""


@dataclass(frozen=True)
class Places:
    """The files of one student's submission for one assignment, in one course."""

    course: Path
    student: str
    assignment: str

    @property
    def lab(self) -> Lab:
        """The lab that the assignment is.

        Raises:
            UnknownLab: there is none of this name.
        """
        return _lab(self.assignment, _last_change(ROOT / "labs" / self.assignment / MANIFEST_NAME))

    @property
    def submitted(self) -> Path:
        """What was handed in: the folder that the judge is given."""
        return self.all_submitted / self.student / self.assignment

    @property
    def all_submitted(self) -> Path:
        """Where all students' folders lie."""
        return self.course / SUBMITTED

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
    def set_aside(self) -> Path:
        """Where lies what was handed in and is not part of an assignment."""
        return self.course / SET_ASIDE / self.student / self.assignment

    @property
    def results(self) -> Path:
        """Where the judge keeps its results, for all submissions."""
        return results_of(self.course)


def submissions(course: Path, assignment: str = "*") -> Iterator[Places]:
    """Every submission in the course, by student."""
    for folder in sorted((course / SUBMITTED).glob(f"*/{assignment}")):
        if FOLDER_PATTERN.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            yield Places(course, folder.parent.name, folder.name)


def why_not_recordable(student: str) -> str:
    """Why nbgrader cannot work with a student of this name; nothing when it can."""
    shown = one_line(student)
    if shown != student or any(character in student for character in NOT_FOR_NBGRADER):
        return "nbgrader takes no such name: rename the folder, in plain characters and without any of * ? [ ]"
    return ""


@functools.lru_cache
def _lab(assignment: str, _last_changed: int) -> Lab:
    """Asked for several times for each submission; to find a lab is to read them all."""
    return find_lab(assignment)


def _last_change(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


@contextlib.contextmanager
def alone(course: Path, what: str, on_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the course's lock called `what` while the body runs, waiting for whoever holds it; it ends with its process.

    Args:
        on_waiting: called once when it has to be waited for.
    """
    with (course / f".{what}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
