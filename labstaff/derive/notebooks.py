"""Derives a lab's report, the notebook that students fill in, from the one with model answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.labs.catalog import reviewed_lab
from labkit.labs.manifest import Lab, Task
from labstaff.derive.markers import TEXT_STUB, clear_solution

SCHEMA_VERSION = 3
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class ReportError(ValueError):
    """A report that cannot be derived; the message names the cell."""


def derive_report(lab: Lab, source: Path) -> str:
    """The student's `report.ipynb` as text: answers cleared, points from the manifest, a check cell for each task.

    `source` is a notebook in jupytext's percent format with nbgrader's cell metadata; what it leaves out of that
    metadata (schema, points, cell type) is filled in here.

    Raises:
        ReportError: a question of the manifest has no cell, or a graded cell no question.
    """
    notebook = read_report(lab, source)
    for cell in notebook.cells:
        grading = cell.metadata.get("nbgrader")
        if not grading or not grading["solution"]:
            continue
        if cell.cell_type == "markdown":
            cell.source = TEXT_STUB
        else:
            cell.source = clear_solution(cell.source, name=grading["grade_id"], stub_at_top=True).strip()
    return to_text(notebook)


def read_report(lab: Lab, source: Path) -> Any:
    """The report with its model answers as a notebook, metadata complete, check cells at the end."""
    import jupytext
    import nbformat

    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    points = {question.id: question.points for question in lab.questions}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{lab.label}-{number:02d}"
        if "nbgrader" in cell.metadata:
            _complete(cell, points)
    if points:
        raise ReportError(
            f"{source.name}: no cell has the grade_id {', '.join(points)} that lab.toml lists as a question"
        )
    notebook.cells.append(nbformat.v4.new_markdown_cell("## Your file's test results", id=f"{lab.label}-checks"))
    notebook.cells += [_check_cell(lab, task) for task in lab.tasks]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.validate(notebook)
    return notebook


def to_text(notebook: Any) -> str:
    """The notebook's text on disk, the same for every build."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _complete(cell: Any, points: dict[str, float]) -> None:
    grading = cell.metadata["nbgrader"]
    grade_id = grading.get("grade_id")
    if not grade_id:
        raise ReportError(f"a cell with nbgrader metadata has no grade_id: {cell.source[:60]!r}")
    defaults = {"grade": False, "locked": False, "solution": False, "task": False, "schema_version": SCHEMA_VERSION}
    for key, value in defaults.items():
        grading.setdefault(key, value)
    if grading["grade"]:
        if grade_id not in points:
            raise ReportError(f"the graded cell {grade_id!r} is not a question in lab.toml, or occurs twice")
        grading["points"] = points.pop(grade_id)
    grading["cell_type"] = cell.cell_type


def _check_cell(lab: Lab, task: Task) -> Any:
    import nbformat

    source = f'from labkit.notebook import check\n\ncheck("{lab.label}", "{task.name}")'
    if reviewed_lab(lab):
        source = f"!uv run lab review {lab.number} {task.name}"
    cell = nbformat.v4.new_code_cell(source, id=f"{lab.label}-{task.name}"[:64])
    cell.metadata["nbgrader"] = {
        "grade": True,
        "grade_id": task.name,
        "locked": True,
        "points": task.points,
        "schema_version": SCHEMA_VERSION,
        "solution": False,
        "task": False,
        "cell_type": "code",
    }
    return cell
