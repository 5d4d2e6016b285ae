"""Writes a submission's result as Classroom 50 collects it: `classroom50/result/v1`.

Source: the contract of `result.json` in its wiki (Advanced Autograding). Its runner tells an autograder in environment
variables which submission this is.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labstaff.grader.results import GradedSubmission, write_whole
from labstaff.grading.report import earned

SCHEMA = "classroom50/result/v1"
FROM_RUNNER = {
    "classroom": "CLASSROOM",
    "assignment": "ASSIGNMENT",
    "submission": "SUBMISSION_TAG",
    "commit": "COMMIT_URL",
    "release": "RELEASE_URL",
    "review": "REVIEW_URL",
}
"""By field, the variable that the runner sets."""

REQUIRED = tuple(name for field, name in FROM_RUNNER.items() if field != "review")


def write_result(path: Path, lab: Lab, graded: GradedSubmission, environment: Mapping[str, str]) -> None:
    """Write `result.json` to `path`.

    Raises:
        KeyError: a variable of the runner is not set.
    """
    now = datetime.datetime.now(datetime.UTC)
    data = result(lab, graded, environment, now)
    write_whole(path, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1).encode())


def result(
    lab: Lab, graded: GradedSubmission, environment: Mapping[str, str], now: datetime.datetime
) -> dict[str, Any]:
    """The content of `result.json`: a row for each task with its points, and one without points for each test.

    Scores are whole numbers there, so a task's points are rounded down: only what is all right has all points.
    """
    about = {field: environment[name] for field, name in FROM_RUNNER.items() if field != "review"}
    about["review"] = environment.get(FROM_RUNNER["review"]) or about["commit"]
    rows = []
    for task in lab.tasks:
        points = int(earned(graded, task.name, task.points))
        rows.append(_row(task.name, points == task.points, points, int(task.points)))
        of_task = {name: state for name, state in graded.tests.items() if name.startswith(f"{task.tests}::")}
        rows += [_row(name, state == "passed", 0, 0) for name, state in of_task.items()]
    return {
        "schema": SCHEMA,
        **about,
        "datetime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "score": sum(row["score"] for row in rows),
        "max-score": sum(row["max-score"] for row in rows),
        "tests": rows,
    }


def _row(name: str, passed: bool, score: int, most: int) -> dict[str, Any]:
    return {"test-name": name, "passed": passed, "score": score, "max-score": most}
