"""Writes what the judge found into the check cells, where nbgrader's own score saving reads it."""

from __future__ import annotations

from typing import Any

from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from labkit.labs.manifest import Lab, Task
from labstaff.course.cells import code_cell, printed, returned
from labstaff.course.exporters import FOR_GRADER
from labstaff.course.ready import timestamp_flags
from labstaff.course.record import RECORDED, fingerprint
from labstaff.course.restore import NOTES
from labstaff.course.shown import listing
from labstaff.grader.grade import judge_submission
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import JudgedSubmission
from labstaff.grading.told import earned, task_lines, withheld_line

LONGEST_NOTE = 400


class SuiteOutputs(NbGraderPreprocessor):
    """Runs first in the autograde chain, in the place of nbgrader's Execute: no kernel is started."""

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The notebook with the check cells' outputs, the judged file and the grader's notes."""
        places = resources["course"]
        lab = places.lab
        judged = judge_submission(lab.folder.name, places.submitted, places.course)
        tasks = {task.name: task for task in lab.tasks}
        for cell in nb.cells:
            grading = cell.metadata.get("nbgrader", {})
            if grading.get("grade") and not grading.get("solution"):
                cell.outputs = check_outputs(lab, tasks[grading["grade_id"]], float(grading["points"]), judged)
        first_check = next(i for i, cell in enumerate(nb.cells) if cell.metadata.get("nbgrader", {}).get("locked"))
        nb.cells.insert(first_check, listing(places.submitted / "src" / f"{lab.module}.py"))
        refused = [f"the judge refused this submission: {judged.reason}"] if judged.status != "judged" else []
        findings = [f"{lab.module}.py {finding}" for finding in judged.findings]
        to_look_at = [*timestamp_flags(places), *judged.flags, *findings]
        if judged.withheld:
            to_look_at.append(f"{withheld_line(judged)} {places.student}")
        if refused or to_look_at:
            _raise_flag(resources["nbgrader"])
        if notes := [*refused, *nb.metadata.get(NOTES, []), *to_look_at]:
            nb.cells.insert(0, _notes_cell(notes))
        nb.metadata[RECORDED] = fingerprint(places)  # written after the scores are saved: whoever has it is recorded
        return nb, resources


def _raise_flag(names: dict[str, str]) -> None:
    """Formgrader shows a flag beside the submission in its lists: `lab grade` says `look at` or `not judged` of it.

    It stays until a person takes it down: nbgrader does not say who has raised it.
    """
    with Gradebook(names["db_url"]) as gradebook:
        notebook = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
        notebook.flagged = True
        gradebook.db.commit()


def check_outputs(lab: Lab, task: Task, max_points: float, judged: JudgedSubmission) -> list[Any]:
    """A check cell's two outputs: what the tests say, and the points as one plain number."""
    points = earned(judged, task.name, max_points)
    lines = [f"{lab.label} · {task.name} · {points:g} of {max_points:g} points", *task_lines(task, judged)]
    return [
        printed(_writable("\n".join(lines) + "\n")),
        returned(repr(points)),
    ]


def _writable(text: str) -> str:
    """`text` without the halves of characters that a message can hold and no file can."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _notes_cell(notes: list[str]) -> Any:
    text = "\n".join(f"- {one_line(note, LONGEST_NOTE)}" for note in notes)
    cell = code_cell("# For the grader", "for-the-grader", [printed(_writable(text + "\n"))])
    cell.metadata[FOR_GRADER] = True
    return cell
