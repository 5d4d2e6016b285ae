"""Names of the files and folders of a course."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab

NOTEBOOK = "report.ipynb"
REPORT = Path(NOTEBOOK).stem
TIMESTAMP = "timestamp.txt"
CONFIG_FILE = "nbgrader_config.py"
GRADEBOOK = "gradebook.db"
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
    def time_file(self) -> Path:
        """The time of submission, which the instructor writes: next to the folder, where no upload arrives."""
        return self.course / SUBMITTED / self.student / f"{self.assignment}.{TIMESTAMP}"

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
