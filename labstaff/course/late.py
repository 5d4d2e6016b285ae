"""Takes points off late submissions, a share for each day begun."""

from __future__ import annotations

import math

from nbgrader.plugins import BasePlugin
from traitlets import Float

SECONDS_PER_DAY = 86_400


class LatePenalty(BasePlugin):
    """nbgrader's late-submission plugin of this course."""

    percent_per_day = Float(0.0, help="percent of the points taken off for each day begun").tag(config=True)
    grace_minutes = Float(0.0, help="how many minutes after the due date are not late").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """The points taken off `score`; None for nothing."""
        seconds = total_seconds_late - 60 * self.grace_minutes
        if seconds <= 0 or self.percent_per_day <= 0:
            return None
        days = math.ceil(seconds / SECONDS_PER_DAY)
        return round(score * min(1.0, days * self.percent_per_day / 100), 2)
