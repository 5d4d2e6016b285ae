"""Points that wait until the instructor has looked at a submission, since its source has findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.labs.manifest import Lab
from labkit.suite.results import MOST_SHARE, Kind, TestResult
from labkit.suite.review import Finding


def withheld_points(
    lab: Lab, findings: Sequence[Finding], verdicts: Sequence[TestResult], points: Mapping[str, float]
) -> dict[str, float]:
    """By task, of the `points` that it has earned: all of them where a library's own attention is found in it, and
    otherwise what its counters decide, which run in the submission's own process.
    """
    if not findings:
        return {}
    whole = {task for finding in findings for task in finding.tasks}
    counted = {v.task for v in verdicts if v.passed and v.kind is Kind.SMALL and not v.outside}
    withheld = {}
    for task in lab.tasks:
        share = 0.0 if task.name in whole else MOST_SHARE[Kind.SMALL] if task.name in counted else 1.0
        withheld[task.name] = round(points[task.name] - min(points[task.name], share * task.points), 4)
    return {name: each for name, each in withheld.items() if each}
