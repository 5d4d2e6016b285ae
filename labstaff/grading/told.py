"""What a task earned and what is said of it, wherever it is handed on: a check cell, a platform's file."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labkit.labs.manifest import Task
from labstaff.grader.results import JudgedSubmission

MOST_TOLD = 5


def earned(judged: JudgedSubmission, task: str, max_points: float) -> float:
    """The points of a task: a number from 0 to `max_points`, to two decimals; 0 for anything else, and when refused."""
    points = judged.tasks.get(task, 0.0) if judged.status == "judged" else 0.0
    if isinstance(points, bool) or not isinstance(points, int | float) or not math.isfinite(points):
        return 0.0
    return float(min(max(round(float(points), 2), 0.0), max_points))


def withheld_line(judged: JudgedSubmission) -> str:
    """How many points wait for the instructor's look, and how they are released."""
    return f"{sum(judged.withheld.values()):g} points withheld until lab grade … --looked-at"


def finding_line(judged: JudgedSubmission, most: int = MOST_TOLD) -> str:
    """The first of the review's findings, in one line."""
    more = [f"and {len(judged.findings) - most} more"] if len(judged.findings) > most else []
    return "; ".join([*judged.findings[:most], *more])


def task_lines(task: Task, judged: JudgedSubmission) -> Iterator[str]:
    """How the task's tests went: how many passed, and what the first failures say."""
    if judged.status != "judged":
        yield f"not judged: {judged.reason}"
        return
    tests = {name: state for name, state in judged.tests.items() if name.split("::")[0] == task.tests}
    failed = [name for name, state in tests.items() if state != "passed"]
    yield f"{len(tests) - len(failed)} of {len(tests)} tests pass"
    if points := judged.withheld.get(task.name):
        yield f"{points:g} points are withheld until the instructor has looked at {finding_line(judged)}"
    said: set[str] = set()
    for name in failed:
        message = judged.messages.get(name, "") or f"the test is {tests[name]}"
        if message not in said and len(said) < MOST_TOLD:
            said.add(message)
            yield f"✗ {name.split('::')[-1]}"
            yield from (f"    {line}" for line in message.splitlines())
    if len(failed) > len(said):
        yield f"✗ and {len(failed) - len(said)} more"
