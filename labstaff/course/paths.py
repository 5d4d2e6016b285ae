"""Names of the files and folders of a course, and the call of nbgrader's commands in it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import find_lab, python_path
from labkit.labs.manifest import Lab
from labstaff.grader.course_state import results_of

NOTEBOOK = "report.ipynb"
TIMESTAMP = "timestamp.txt"
CONFIG_FILE = "nbgrader_config.py"
SUBMITTED = "submitted"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class SubmissionPaths:
    """The folders of one student's submission for one assignment."""

    course: Path
    student: str
    assignment: str

    @property
    def lab(self) -> Lab:
        """The lab that the assignment is; raises `UnknownLab` where there is none of this name."""
        return find_lab(self.assignment)

    @property
    def accepted(self) -> Path:
        """The files that are graded, written by `labstaff.course.accept`: what nbgrader reads as submitted."""
        return self.course / ACCEPTED / self.student / self.assignment

    @property
    def autograded(self) -> Path:
        """Where nbgrader writes what formgrader shows."""
        return self.course / "autograded" / self.student / self.assignment

    @property
    def feedback(self) -> Path:
        """Where nbgrader writes what the student gets back."""
        return self.course / "feedback" / self.student / self.assignment

    @property
    def source(self) -> Path:
        """The assignment with its model answers and rubrics."""
        return self.course / "source" / self.assignment

    @property
    def released(self) -> Path:
        """The assignment as it was released."""
        return self.course / "release" / self.assignment

    @property
    def results(self) -> Path:
        """The folder of all submissions' results."""
        return results_of(self.course)


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    output: str


def nbgrader(course: Path, *arguments: str) -> Done:
    """Run `nbgrader ARGUMENTS` in the folder `course`.

    nbgrader calls alembic by name, so this environment's programs come first on the PATH.
    """
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "nbgrader", *arguments],
        cwd=course,
        env={**os.environ, "PATH": programs, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        close_fds=False,  # see `labstaff.course.grade`
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    return Done(done.returncode, done.stdout)
