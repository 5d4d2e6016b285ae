"""Late penalties: a share of a submission's present points, in nbgrader's own column of the gradebook."""

from __future__ import annotations

import math
from pathlib import Path

from traitlets import Float
from traitlets.config import Configurable, PyFileConfigLoader

from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import CONFIG_FILE

SECONDS_PER_DAY = 86_400


class LatePenalty(Configurable):
    """The course's rule for late work."""

    percent_per_day = Float(0.0, help="percent of the points taken off for each day begun").tag(config=True)
    grace_minutes = Float(0.0, help="how many minutes after the due date are not late").tag(config=True)

    def points(self, score: float, seconds_late: float) -> float:
        """The points taken off `score`."""
        seconds = seconds_late - 60 * self.grace_minutes
        if seconds <= 0:
            return 0.0
        share = math.ceil(seconds / SECONDS_PER_DAY) * self.percent_per_day / 100
        return round(score * min(1.0, max(0.0, share)), 2)


def update_penalties(course: Path) -> None:
    """Compute every penalty again from the present scores, due dates, extensions and settings. No test is run.

    nbgrader's own step computes them once, when it records a submission: before a person has graded the answers.

    Raises:
        NoGradebook: `course` is none.
    """
    with opened_gradebook(course) as gradebook:
        rule = LatePenalty(config=PyFileConfigLoader(CONFIG_FILE, path=str(course)).load_config())
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                for notebook in submission.notebooks:
                    notebook.late_submission_penalty = rule.points(notebook.score, submission.total_seconds_late)
        gradebook.db.commit()
