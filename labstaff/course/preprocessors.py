"""Steps of nbgrader's conversions that are this course's own: results instead of execution, no notes in feedback."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Base, Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from nbgrader.utils import determine_grade, is_solution
from sqlalchemy import Column, String
from traitlets import Unicode

from labkit.labs.manifest import Lab, Task
from labstaff.course.paths import NOTEBOOK, SubmissionPaths
from labstaff.course.record import RECORDED, fingerprint, result_of
from labstaff.course.sanitize import listing
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission
from labstaff.grading.report import earned, task_lines

FOR_GRADER = "for_grader"
RUBRIC_TITLE = "For graders: model answer and rubric"
LONGEST_NOTE = 400


class Results(NbGraderPreprocessor):
    """In autograde, instead of nbgrader's Execute: writes each result into its check cell. Nothing is run."""

    course = Unicode(help="the course's folder").tag(config=True)

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The notebook with check cells' outputs, the graded file, and notes and rubrics for the grader.

        Raises:
            LookupError: the submission was not graded yet.
        """
        names = resources["nbgrader"]
        paths = SubmissionPaths(Path(self.course), names["student"], names["assignment"])
        lab, result = paths.lab, result_of(paths)
        if result is None:
            raise LookupError(f"{paths.student} is not graded yet: run lab grade")
        tasks = {task.name: task for task in lab.tasks}
        checks = [i for i, cell in enumerate(nb.cells) if cell.metadata.get("nbgrader", {}).get("grade_id") in tasks]
        for i in checks:
            grading = nb.cells[i].metadata["nbgrader"]
            nb.cells[i].outputs = check_outputs(lab, tasks[grading["grade_id"]], float(grading["points"]), result)
        nb.cells.insert(min(checks), listing(paths.accepted / "src" / f"{lab.module}.py"))
        nb.cells = _with_rubrics(nb.cells, paths.source / NOTEBOOK)
        if notes := grader_notes(lab, result):
            nb.cells.insert(0, _notes_cell(notes))
            _raise_flag(names)
        names["code"] = result.key
        nb.metadata[RECORDED] = fingerprint(paths)  # written after the scores are saved: a submission that has it is
        return nb, resources


class GradedText(Base):
    """A table of its own in the gradebook: what each grade was given for, so that a change is noticed."""

    __tablename__ = "attention_labs_graded_text"
    grade_id = Column(String(32), primary_key=True)
    digest = Column(String(64), nullable=False)


class SaveScores(SaveAutoGrades):
    """In autograde, instead of nbgrader's step, after which every grade by hand waits for a person again.

    It waits only where the student has changed what it was given for: the answer, or for a check cell the code.
    """

    def _add_score(self, cell: Any, resources: dict[str, Any]) -> None:
        database = self.gradebook.db
        grade_id = cell.metadata["nbgrader"]["grade_id"]
        grade = self.gradebook.find_grade(grade_id, self.notebook_id, self.assignment_id, self.student_id)
        digest = answer_digest(cell) if is_solution(cell) else _digest(resources["nbgrader"]["code"])
        before = database.get(GradedText, grade.id)
        grade.auto_score, _ = determine_grade(cell, self.log)
        if grade.manual_score is None and grade.extra_credit is None:
            grade.needs_manual_grade = grade.auto_score is None
        elif before is None or before.digest != digest:
            grade.needs_manual_grade = True
        database.merge(GradedText(grade_id=grade.id, digest=digest))
        database.commit()  # the score and what it was given for, at once


def answer_digest(cell: Any) -> str:
    """What `GradedText` holds of an answer: a hash of its text, figures and pictures."""
    return _digest([cell.source, cell.get("outputs"), cell.get("attachments")])


def _digest(graded: Any) -> str:
    return hashlib.sha256(json.dumps(graded, sort_keys=True).encode()).hexdigest()


class WithoutNotes(NbGraderPreprocessor):
    """In generate_feedback, after nbgrader's GetGrades: leaves out what is for the grader alone, and missing scores."""

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The notebook without notes and rubrics; the score of what waits to be graded by hand is NaN."""
        names = resources["nbgrader"]
        nb.cells = [cell for cell in nb.cells if not cell.metadata.get(FOR_GRADER)]
        with Gradebook(names["db_url"]) as gradebook:
            notebook = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
            waiting = {grade.name for grade in notebook.grades if grade.needs_manual_grade}
        for cell in nb.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in waiting:
                cell.metadata.nbgrader["score"] = math.nan  # feedback.html.j2 shows it as "not graded yet"
        names["waiting"] = len(waiting)
        return nb, resources


def check_outputs(lab: Lab, task: Task, max_points: float, result: GradedSubmission) -> list[Any]:
    """A check cell's two outputs: what the tests report, and the points as one plain number."""
    points = earned(result, task.name, max_points)
    lines = [f"{lab.label} · {task.name} · {points:g} of {max_points:g} points", *task_lines(task, result)]
    return [
        new_output("stream", text="\n".join(lines) + "\n"),
        new_output("execute_result", {"text/plain": repr(points)}),
    ]


def grader_notes(lab: Lab, result: GradedSubmission) -> list[str]:
    """What the grader, and not the student, should see."""
    notes = [f"not graded: {result.reason}"] if result.status != "graded" else []
    return [*notes, *result.flags, *(f"{lab.module}.py {finding}" for finding in result.findings)]


def _raise_flag(names: dict[str, str]) -> None:
    """Formgrader shows a flag next to the submission in its lists until a person removes it."""
    with Gradebook(names["db_url"]) as gradebook:
        notebook = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
        notebook.flagged = True
        gradebook.db.commit()


def model_answers(source: Path) -> dict[str, dict[str, Any]]:
    """The cell with the model answer and rubric of each question, in the notebook `source`; empty where it is not."""
    answers = {}
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"] if source.is_file() else ():
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            answers[cell["metadata"]["nbgrader"]["grade_id"]] = cell
    return answers


def _with_rubrics(cells: list[Any], source: Path) -> list[Any]:
    """Each answer followed by the model answer and rubric in the course's `source`, for graders only."""
    answers = model_answers(source)
    found = []
    for cell in cells:
        found.append(cell)
        if answer := answers.get(cell.metadata.get("nbgrader", {}).get("grade_id")):
            new_cell = new_code_cell if answer["cell_type"] == "code" else new_markdown_cell
            found.append(new_cell(f"# {RUBRIC_TITLE}\n" + "".join(answer["source"]), metadata={FOR_GRADER: True}))
    return found


def _notes_cell(notes: list[str]) -> Any:
    text = "\n".join(f"- {one_line(note, LONGEST_NOTE)}" for note in notes)
    cell = new_code_cell("# For the grader", outputs=[new_output("stream", text=text + "\n")])
    cell.metadata[FOR_GRADER] = True
    return cell
