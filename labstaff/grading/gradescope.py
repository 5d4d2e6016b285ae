"""Writes a submission's result in Gradescope's format, as its autograder is to leave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab, Task
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, write_whole
from labstaff.grading.report import earned, task_lines

VISIBILITIES = ("hidden", "after_due_date", "after_published", "visible")
"""When Gradescope shows points and messages to the student, in its own words."""


def write_results(path: Path, lab: Lab, result: GradedSubmission, visibility: str) -> None:
    """Write `results.json` to `path`."""
    data = results(lab, result, visibility)
    write_whole(path, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1).encode())


def results(lab: Lab, result: GradedSubmission, visibility: str) -> dict[str, Any]:
    """The content of `results.json`: each task is a test with its points and its report.

    What a grader should look at is a test without points that students never see.
    """
    tests = [_of_task(lab, number, task, result, visibility) for number, task in enumerate(lab.tasks, 1)]
    score = round(sum(test["score"] for test in tests), 2)
    output = f"{lab.label} · {lab.title}: {score:g} of {lab.points:g} points"
    if result.status != "graded":
        output += f"\nnot graded: {result.reason}"
    if flags := [*result.flags, *result.findings]:
        text = _text("\n".join(map(one_line, flags)))
        tests.append({"name": "for the grader", **text, "visibility": "hidden"})
    return {"score": score, "visibility": visibility, **_text(output), "tests": tests}


def _of_task(lab: Lab, number: int, task: Task, result: GradedSubmission, visibility: str) -> dict[str, Any]:
    """One task. Without a status, Gradescope would guess it from the points."""
    points = earned(result, task.name, task.points)
    failed = [name for name, state in result.tests.items() if name.startswith(f"{task.tests}::") and state != "passed"]
    return {
        "number": f"{lab.number}.{number}",
        "name": task.name,
        "score": points,
        "max_score": float(task.points),
        "status": "passed" if points == task.points and not failed else "failed",
        **_text("\n".join(task_lines(task, result))),
        "visibility": visibility,
    }


def _text(output: str) -> dict[str, str]:
    """An output that Gradescope shows as it is: no Markdown, no HTML."""
    return {"output": output, "output_format": "text"}
