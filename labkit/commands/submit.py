"""`lab submit`: packs the files of a lab that count into one archive, and lists what is not done yet."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labkit.suite.finder import file_problem
from labkit.suite.results import fingerprint, load

REPORT = "report.ipynb"
TESTS = "review.py"
"""The student's own tests, in labs that ask for them."""
HANDOUT_LINE = "To hand in: `uv run lab submit {number}`."
"""The line of each lab's handout."""
TEXT_STUB, CODE_STUB = "YOUR ANSWER HERE", "raise NotImplementedError()"
"""What an answer holds before a student has written one: all of a text, the last line of code."""


class CannotSubmit(Exception):
    """A file that counts is missing; the message names it."""


def submit_lab(lab: Lab) -> list[str]:
    """Write `labNN_name.zip` to the folder that holds `labs`, and return the lines to print.

    Raises:
        CannotSubmit: the lab's code or report is missing.
        OSError: the archive cannot be written.
    """
    code = f"src/{lab.module}.py"
    for name in (code, REPORT):
        if not (lab.folder / name).is_file():
            raise CannotSubmit(f"there is no {lab.folder / name}: put it back, as it was handed out if need be")
    names = [code, REPORT, *([TESTS] if (lab.folder / TESTS).is_file() else [])]
    archive = lab.folder.parent.parent / f"{lab.folder.name}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            packed.write(lab.folder / name, name)
    lines = [f"wrote {archive}", f"with {', '.join(names)}"]
    if warnings := [*_of_checks(lab), *_of_report(lab)]:
        lines += ["", "Not done yet; you can hand it in like this:", *(f"  {warning}" for warning in warnings)]
    return lines


def _of_checks(lab: Lab) -> list[str]:
    """A line for each task whose tests fail, and one for those whose tests were not run on the file as it is."""
    if problem := file_problem(lab.student_file):
        return [f"{problem}: no test can run"]
    known, now, lines, unrun = load(lab), fingerprint(lab), [], []
    for task in lab.tasks:
        result = known.get(task.name)
        if result is None or result.source != now:
            unrun.append(task.name)
        elif not result.started:
            lines.append(f"{task.name}: not started")
        elif not result.done:
            lines.append(f"{task.name}: {result.passed} of {result.total} tests pass")
    if unrun:
        lines.append(f"not tested since your last change: {', '.join(unrun)}; run uv run lab check {lab.number}")
    return lines


def _of_report(lab: Lab) -> list[str]:
    """A line for each question without an answer, or whose figure is not saved in the report."""
    try:
        answers = _answers(lab.folder / REPORT)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{REPORT} cannot be read as a notebook: {error}"]
    lines = []
    for number, question in enumerate(lab.questions, 1):
        title = f"{REPORT}, question {number} ({question.title})"
        cell = answers.get(question.id)
        if cell is None:
            lines.append(f"{title}: its answer's cell was deleted")
        elif _is_empty(cell):
            lines.append(f"{title}: no answer")
        elif cell["cell_type"] == "code" and not cell["outputs"]:
            lines.append(f"{title}: nothing is saved below its cell: run it, then save the report")
    return lines


def _answers(report: Path) -> dict[str, Any]:
    """The report's cells for answers, by the question's id."""
    cells = json.loads(report.read_text(encoding="utf-8-sig"))["cells"]
    graded = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
    return {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in graded}


def _is_empty(cell: dict[str, Any]) -> bool:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "code":
        return not source or source.endswith(CODE_STUB)
    return source in ("", TEXT_STUB)
