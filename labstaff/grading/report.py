"""The points of a task and its test report, for a check cell and for Gradescope."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.labs.manifest import Lab, Task
from labstaff.grader.results import GradedSubmission

MAX_MESSAGES = 5


def earned(result: GradedSubmission, task: str, max_points: float) -> float:
    """The points of a task that is worth `max_points` where they are shown, to two decimals."""
    return round(result.shares.get(task, 0.0) * max_points, 2)


def total(result: GradedSubmission, lab: Lab) -> float:
    """The points of all tasks, as the lab's manifest has them."""
    return round(sum(earned(result, task.name, task.points) for task in lab.tasks), 2)


def finding_line(result: GradedSubmission, most: int = MAX_MESSAGES) -> str:
    """The first of the source check's findings, in one line."""
    more = [f"and {len(result.findings) - most} more"] if len(result.findings) > most else []
    return "; ".join([*result.findings[:most], *more])


def task_lines(task: Task, result: GradedSubmission) -> Iterator[str]:
    """How many of the task's tests passed, and the messages of the first failures, each message once."""
    if result.status != "graded":
        yield f"not graded: {result.reason}"
        return
    tests = {name: state for name, state in result.tests.items() if name.split("::")[0] == task.tests}
    failed = [name for name, state in tests.items() if state != "passed"]
    yield f"{len(tests) - len(failed)} of {len(tests)} tests pass"
    printed: set[str] = set()
    for name in failed:
        message = result.messages.get(name, "") or f"the test is {tests[name]}"
        if message not in printed and len(printed) < MAX_MESSAGES:
            printed.add(message)
            yield f"✗ {name.split('::')[-1]}"
            yield from (f"    {line}" for line in message.splitlines())
    if len(failed) > len(printed):
        yield f"✗ and {len(failed) - len(printed)} more"
