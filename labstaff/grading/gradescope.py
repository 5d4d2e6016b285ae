"""Writes results in Gradescope's format: one `results.json` for each submission."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab, Task
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, write_whole
from labstaff.grading.parallel import Outcome
from labstaff.grading.report import earned, task_lines


class Visibility(StrEnum):
    """When Gradescope shows something to the student, in its own words."""

    HIDDEN = "hidden"
    AFTER_DUE_DATE = "after_due_date"
    AFTER_PUBLISHED = "after_published"
    VISIBLE = "visible"


class CannotExport(Exception):
    """Why nothing is written; the message says what to name instead."""


@dataclass(frozen=True)
class Export:
    """Where results are written, and when students see points and messages, which may hold numbers of hidden inputs.

    `path` is a file, `….json`, for a single submission; else a folder, for `STUDENT/LAB/results.json`.
    """

    path: Path
    visibility: Visibility = Visibility.AFTER_PUBLISHED

    def require(self, n_submissions: int) -> None:
        """Raise `CannotExport` when a file is named and there is not one submission."""
        if self.path.suffix == ".json" and n_submissions != 1:
            raise CannotExport(f"{self.path} holds one submission, and there are {n_submissions}: name a folder")

    def write(self, outcomes: Sequence[Outcome]) -> list[Path]:
        """Write the results; returns the files.

        Raises:
            CannotExport: see `require`.
            OSError: a file cannot be written.
        """
        self.require(len(outcomes))
        written = []
        for outcome in outcomes:
            if outcome.result is None:
                continue
            lab, target = outcome.submitted.lab, self.path
            if target.suffix != ".json":
                target = target / outcome.submitted.student / lab.folder.name / "results.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            data = results(lab, outcome.result, self.visibility)
            write_whole(target, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1).encode())
            written.append(target)
        return written


def results(lab: Lab, result: GradedSubmission, visibility: Visibility) -> dict[str, Any]:
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
        tests.append({"name": "for the grader", **text, "visibility": Visibility.HIDDEN})
    return {"score": score, "visibility": visibility, **_text(output), "tests": tests}


def _of_task(lab: Lab, number: int, task: Task, result: GradedSubmission, visibility: Visibility) -> dict[str, Any]:
    """One task. Without a status, Gradescope would guess it from the points."""
    states = [state for name, state in result.tests.items() if name.split("::")[0] == task.tests]
    points = earned(result, task.name, task.points)
    done = result.status == "graded" and set(states) == {"passed"} and points == task.points
    return {
        "number": f"{lab.number}.{number}",
        "name": task.name,
        "score": points,
        "max_score": float(task.points),
        "status": "passed" if done else "failed",
        **_text("\n".join(task_lines(task, result))),
        "visibility": visibility,
    }


def _text(output: str) -> dict[str, str]:
    """An output that Gradescope shows as it is: no Markdown, no HTML."""
    return {"output": output.encode("utf-8", "replace").decode("utf-8"), "output_format": "text"}
