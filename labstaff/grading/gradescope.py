"""Writes what the judge found as Gradescope reads it: a `results.json` for each submission.

Gradescope runs an autograder once for each submission and reads one file of it. So the form is a file for each: the one
that is named where there is one submission, and in a folder one under each student and lab where there are many.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab, Task
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import JudgedSubmission, write_whole
from labstaff.grading.many import Outcome
from labstaff.grading.told import earned, task_lines

RESULTS_FILE = "results.json"


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
    """Where results are to be written, and when students see points and messages.

    `path` is a file, `….json`, for a single submission; else a folder, for `STUDENT/LAB/results.json`. Messages may
    hold numbers of hidden inputs.
    """

    path: Path
    visibility: Visibility = Visibility.AFTER_PUBLISHED

    @property
    def is_of_one(self) -> bool:
        """Whether a file is named."""
        return self.path.suffix == ".json"

    def require(self, n_submissions: int) -> None:
        """Raise `CannotExport` when a file is named and there is not one submission."""
        if self.is_of_one and n_submissions != 1:
            raise CannotExport(f"{self.path} holds one submission, and there are {n_submissions}: name a folder")

    def write(self, outcomes: Sequence[Outcome]) -> list[Path]:
        """Write the results of those that were judged; returns the files.

        Raises:
            CannotExport: see `require`.
            OSError: a file cannot be written.
        """
        self.require(len(outcomes))
        written = []
        for outcome in outcomes:
            if outcome.judged is None:
                continue
            lab = outcome.handed_in.lab
            folder = self.path / outcome.handed_in.student / lab.folder.name
            target = self.path if self.is_of_one else folder / RESULTS_FILE
            target.parent.mkdir(parents=True, exist_ok=True)
            told = results(lab, outcome.judged, self.visibility)
            write_whole(target, json.dumps(told, ensure_ascii=False, allow_nan=False, indent=1).encode())
            written.append(target)
        return written


def results(lab: Lab, judged: JudgedSubmission, visibility: Visibility) -> dict[str, Any]:
    """One submission as data: points, and for each task its points and what its tests say.

    What a grader should look at is a test without points that students never see.
    """
    tests = [_of_task(lab, number, task, judged, visibility) for number, task in enumerate(lab.tasks, 1)]
    score = round(sum(test["score"] for test in tests), 2)
    output = f"{lab.label} · {lab.title}: {score:g} of {lab.points:g} points"
    if judged.status != "judged":
        output += f"\nnot judged: {judged.reason}"
    if judged.flags or judged.findings:
        flags = "\n".join(one_line(flag) for flag in [*judged.flags, *judged.findings])
        tests.append({"name": "for the grader", **_text(flags), "visibility": Visibility.HIDDEN})
    return {"score": score, "visibility": visibility, **_text(output), "tests": tests}


def _of_task(lab: Lab, number: int, task: Task, judged: JudgedSubmission, visibility: Visibility) -> dict[str, Any]:
    """Gradescope takes a test with a status for passed or failed, and otherwise guesses it from the points."""
    states = [state for name, state in judged.tests.items() if name.split("::")[0] == task.tests]
    points = earned(judged, task.name, task.points)
    done = judged.status == "judged" and bool(states) and set(states) == {"passed"} and points == task.points
    return {
        "number": f"{lab.number}.{number}",
        "name": task.name,
        "score": points,
        "max_score": float(task.points),
        "status": "passed" if done else "failed",
        **_text("\n".join(task_lines(task, judged))),
        "visibility": visibility,
    }


def _text(output: str) -> dict[str, str]:
    """An output that Gradescope shows as it is: no Markdown, no HTML."""
    return {"output": output.encode("utf-8", "replace").decode("utf-8"), "output_format": "text"}
