"""Puts a submitted notebook back into the released one's shape, before anything in it is graded."""

from __future__ import annotations

from typing import Any

from nbgrader.preprocessors import NbGraderPreprocessor

from labstaff.course.paths import NOTEBOOK
from labstaff.course.submitted import Submitted

NOTES = "attention_labs"


class RestoreCells(NbGraderPreprocessor):
    """Every check cell and every answer's metadata come from the released notebook; only answers from the student."""

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The restored notebook; raises when there is no released one to restore from."""
        import nbformat

        paths = resources["course"]
        released = nbformat.read(paths.released / NOTEBOOK, as_version=4)
        submitted = Submitted(list(nb.cells), list(nb.metadata.get(NOTES, [])))
        return restore(released, submitted), resources


def restore(released: Any, submitted: Submitted) -> Any:
    """A notebook of the student's cells in their order, with the released one's check cells at the end.

    An answer counts under its `grade_id` once, as the last cell that is not the untouched stub; an answer that was
    deleted stands there empty. A cell that is edited, copied or made up can be seen, and counts for nothing.
    """
    import nbformat

    answers = {_grade_id(cell): cell for cell in released.cells if _grading(cell).get("solution")}
    checks = {_grade_id(cell): cell for cell in released.cells if _is_check(cell)}
    chosen = _choose(answers, submitted)
    cells = []
    for cell in submitted.cells:
        grade_id = _grade_id(cell)
        cell.metadata.pop("nbgrader", None)
        if grade_id in checks:
            if cell.source != checks[grade_id].source:
                submitted.note(f"the check cell {grade_id} was edited; the course's own is used")
        elif chosen.get(grade_id) is cell:
            cells.append(_as_released(cell, answers[grade_id]))
        else:
            cells.append(cell)
    if absent := [grade_id for grade_id in answers if grade_id not in chosen]:
        submitted.note(f"not in the submission, and put back empty: {', '.join(absent)}")
    cells += [answers[grade_id] for grade_id in absent]
    metadata = {**released.metadata, NOTES: submitted.notes}
    return nbformat.from_dict(
        {**released, "metadata": metadata, "cells": [*cells, *checks.values()]},
    )


def _choose(answers: dict[str, Any], submitted: Submitted) -> dict[str, Any]:
    """For each answer the student's cell that is graded."""
    chosen = {}
    for grade_id, released in answers.items():
        candidates = [cell for cell in submitted.cells if _grade_id(cell) == grade_id]
        written = [cell for cell in candidates if cell.source != released.source]
        if len(written) > 1:
            submitted.note(f"the answer {grade_id} was given {len(written)} times; the last is graded")
        if candidates:
            chosen[grade_id] = (written or candidates)[-1]
    return chosen


def _as_released(cell: Any, released: Any) -> Any:
    """The student's answer as a cell of the released kind, with the released metadata."""
    import nbformat

    fresh = nbformat.from_dict({**released, "source": cell.source})
    for content in ("outputs", "attachments"):
        if content in cell and (content == "attachments" or cell.cell_type == fresh.cell_type):
            fresh[content] = cell[content]
    if fresh.cell_type == "code":
        fresh.pop("attachments", None)
    return fresh


def _grading(cell: Any) -> dict[str, Any]:
    return cell.metadata.get("nbgrader", {})


def _grade_id(cell: Any) -> str:
    return _grading(cell).get("grade_id", "")


def _is_check(cell: Any) -> bool:
    return bool(_grading(cell).get("grade")) and not _grading(cell).get("solution")
