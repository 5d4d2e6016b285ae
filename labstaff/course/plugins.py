"""nbgrader's plugins of this course: the late penalty, and the export of the grades."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from nbgrader.api import MissingEntry
from nbgrader.plugins import BasePlugin, ExportPlugin
from traitlets import Float

from labstaff.judge.plain_text import cell

SECONDS_PER_DAY = 86_400
COLUMNS = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email")
SCORES = ("raw_score", "late_submission_penalty", "score", "max_score")


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
    """`nbgrader export`: nbgrader's own columns, quoted, so that a name may hold a comma; no cell is a formula."""

    def export(self, gradebook: Any) -> None:
        """Write a row for each assignment and student; one who handed nothing in has 0."""
        path = Path(self.to or "grades.csv")
        self.log.info("Exporting grades to %s", path)
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, [*COLUMNS, *SCORES])
            table.writeheader()
            for assignment in gradebook.assignments:
                for student in gradebook.students if _wanted(assignment.name, self.assignment) else ():
                    if _wanted(student.id, self.student):
                        table.writerow(self._row(gradebook, assignment, student))

    @staticmethod
    def _row(gradebook: Any, assignment: Any, student: Any) -> dict[str, Any]:
        row = {"assignment": assignment.name, "duedate": assignment.duedate, "student_id": student.id}
        row |= {name: getattr(student, name) for name in ("last_name", "first_name", "email")}
        try:
            submission = gradebook.find_submission(assignment.name, student.id)
        except MissingEntry:
            scores = dict.fromkeys(SCORES, 0.0)
        else:
            penalty = submission.late_submission_penalty or 0.0
            row["timestamp"] = submission.timestamp
            scores = {"raw_score": submission.score, "late_submission_penalty": penalty}
            scores["score"] = max(0.0, submission.score - penalty)
        texts = {name: "" if row.get(name) is None else cell(row[name]) for name in COLUMNS}
        return {**texts, **scores, "max_score": assignment.max_score}


def _wanted(name: str, named: list[Any]) -> bool:
    return not named or name in [str(each) for each in named]
