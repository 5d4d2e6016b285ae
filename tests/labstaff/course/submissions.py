"""Submissions to a course of Lab 01: honest ones, and notebooks made to earn points or to act in a browser."""

from __future__ import annotations

from tests.student import LAB, solution_text, with_function

CHECKS = {task.name: task.points for task in LAB.tasks}
ANSWERS = {question.id: question.points for question in LAB.questions}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
EVIL = '<img src="x" onerror="fetch(\'/formgrader/api/grade\')">'


def half() -> str:
    """Lab 01 with the last three tasks untouched."""
    source = solution_text()
    for task in LAB.tasks[3:]:
        source = with_function(source, task.name, f"def {task.name}(*_, **__):\n    raise NotImplementedError")
    return source


def answered(notebook: dict) -> dict:
    """The released notebook with a written answer and a figure."""
    for cell in notebook["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        if grade_id == "why_quadratic":
            cell["source"] = "The weights: $N^2$ of them, and `a<b` stays as it is."
        if grade_id == "figure_scaling":
            cell["source"] = "plot()"
            cell["outputs"] = [
                {"output_type": "display_data", "data": {"image/png": PIXEL, "text/html": EVIL}, "metadata": {}}
            ]
    return notebook


def cell_of(notebook: dict, grade_id: str) -> dict:
    """The cell with this grade_id."""
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def edited_checks(notebook: dict) -> dict:
    """Every check cell gives itself full marks, and says so in its saved output."""
    for task, points in CHECKS.items():
        cell = cell_of(notebook, task)
        cell["source"] = f"{points}"
        cell["outputs"] = [
            {
                "output_type": "execute_result",
                "data": {"text/plain": f"{points}"},
                "metadata": {},
                "execution_count": 1,
            }
        ]
    return notebook


def deleted_cells(notebook: dict) -> dict:
    """Nothing that is graded is left."""
    notebook["cells"] = [c for c in notebook["cells"] if "nbgrader" not in c["metadata"]]
    return notebook


def active(notebook: dict) -> dict:
    """Markdown and outputs that would act in the grader's browser."""
    cell_of(notebook, "why_quadratic")["source"] = f"Look: {EVIL} ```` and [this](javascript:alert(1))"
    cell_of(notebook, "alive_at_once")["source"] = "![x](attachment:nothing.png)"
    pixels = "![](/logout) ![](https://example.org/x.png) <b id='standard_attention'>x</b>"
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": pixels})
    cell_of(notebook, "figure_scaling")["outputs"] = [
        {
            "output_type": "display_data",
            "data": {"text/html": EVIL, "application/javascript": "evil()"},
            "metadata": {},
        },
        {"output_type": "display_data", "data": {"image/png": f'"{EVIL}'}, "metadata": {"width": EVIL}},
        {"output_type": "stream", "name": "stdout", "text": EVIL},
    ]
    notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"x": EVIL}}
    return notebook


HONEST: dict[str, tuple[str, object]] = {
    "perfect": (solution_text(), answered),
    "half": (half(), answered),
    "import_error": ("import no_such_module\n" + solution_text(), None),
}
HOSTILE: dict[str, object] = {
    "edited_checks": edited_checks,
    "deleted_cells": deleted_cells,
    "active": active,
    "no_json": "\x00 this is no notebook {",
    "no_code": None,
}
EARNED = {"perfect": 60.0, "half": 35.0, "import_error": 0.0}
