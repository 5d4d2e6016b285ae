"""nbgrader's plugins of this course: the late penalty, and the export of the grades."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from nbgrader.plugins import BasePlugin, ExportPlugin
from traitlets import Float

from labstaff.course.gradebook import Graded, cells_of, grades
from labstaff.grader.plain_text import cell

SECONDS_PER_DAY = 86_400
COLUMNS = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email")
SCORES = ("raw_score", "late_submission_penalty", "score", "max_score")
STATES = ("waiting", "flagged", "extension_days")
"""How many answers wait for a person, whether formgrader shows a flag, and by how much the due date was moved."""


class LatePenalty(BasePlugin):
    """nbgrader's late-submission plugin of this course: points off, a share for each day begun."""

    percent_per_day = Float(0.0, help="percent of the points taken off for each day begun").tag(config=True)
    grace_minutes = Float(0.0, help="how many minutes after the due date are not late").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """The points taken off `score`; None for nothing."""
        seconds = total_seconds_late - 60 * self.grace_minutes
        if seconds <= 0 or self.percent_per_day <= 0:
            return None
        days = math.ceil(seconds / SECONDS_PER_DAY)
        return round(score * min(1.0, days * self.percent_per_day / 100), 2)


class QuotedCsv(ExportPlugin):
    """`nbgrader export`: nbgrader's own columns, and one a task and question; no cell is a formula.

    It is quoted, so that a name may hold a comma. A task's column is empty where the line is of another assignment.
    """

    def export(self, gradebook: Any) -> None:
        """Write a row for each assignment and student; one who handed nothing in has 0."""
        path = Path(self.to or "grades.csv")
        self.log.info("Exporting grades to %s", path)
        wanted = [[str(each) for each in named] for named in (self.assignment, self.student)]
        told = list(grades(gradebook, *wanted))
        parts = list(dict.fromkeys(name for assignment, _ in told for name in cells_of(assignment)))
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow([*COLUMNS, *SCORES, *STATES, *parts])
            for _, of_assignment in told:
                for graded in of_assignment:
                    table.writerow([*_row(graded), *(graded.cells.get(part, "") for part in parts)])


def _row(graded: Graded) -> list[Any]:
    texts = [graded.assignment, graded.due, graded.timestamp, graded.student]
    texts += [graded.last_name, graded.first_name, graded.email]
    scores = [graded.raw_score, graded.penalty, graded.score, graded.max_score]
    states = [graded.waiting, int(graded.flagged), f"{graded.extension_days:g}"]
    return [*("" if text is None else cell(text) for text in texts), *scores, *states]
