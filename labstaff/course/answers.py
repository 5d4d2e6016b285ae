"""Writes all students' answers to one question as a CSV file, in which scores and comments are then typed.

`labstaff.course.scores` reads them.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab, Question
from labstaff.course.handed_in import is_graded
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import NOTEBOOK, REPORT, SubmissionPaths
from labstaff.course.update import require_current
from labstaff.grader.plain_text import long_cell, one_line

FOLDER = "answers"
COLUMNS = (
    *("student", "name", "answer", "points_possible", "score_before", "comment_before", "score", "comment"),
    *("waits", "look_at", "version"),
)
DIGITS = 12
"""Hexadecimal digits of an answer's hash in its version."""


class AnswersError(Exception):
    """Why no file is written or read; the message names the file or the question."""


def find_questions(lab: Lab, keys: Sequence[str]) -> list[Question]:
    """The questions that `keys` name, each by its number in the report or its id; all where there are none.

    Raises:
        AnswersError: the lab has no such question.
    """
    known = {key: each for number, each in enumerate(lab.questions, 1) for key in (str(number), each.id)}
    there = ", ".join(f"{number} ({each.id})" for number, each in enumerate(lab.questions, 1))
    for key in keys:
        if key not in known:
            raise AnswersError(f"{lab.label} has no question {key!r}; there are: {there or 'none'}")
    return [known[key] for key in keys] or list(lab.questions)


def write_answers(course: Path, lab: Lab, keys: Sequence[str] = ()) -> list[Path]:
    """Write `answers/labNN_QUESTION.csv` in the course for each of the questions, by default for all written ones.

    A row is a student whose submission is recorded, in the columns `COLUMNS`; the first is the model answer with its
    rubric. No cell begins a formula for a spreadsheet.

    Returns:
        The files.

    Raises:
        AnswersError: there is no such question, it is a figure, a file is there already, or nothing is recorded.
        NoGradebook: `course` is none.
        OutOfDate: it has other questions or points than the lab.
    """
    from labstaff.course.preprocessors import RUBRIC_TITLE, model_answers

    require_current(course, [lab])
    questions = find_questions(lab, keys)
    models = model_answers(course / "source" / lab.folder.name / NOTEBOOK)
    if figures := [each for each in questions if models.get(each.id, {}).get("cell_type") == "code"]:
        if keys:
            raise AnswersError(f"{figures[0].id} is a figure, which no spreadsheet shows: grade it in formgrader")
        questions = [each for each in questions if each not in figures]
    files = {question: course / FOLDER / f"{lab.label}_{question.id}.csv" for question in questions}
    for file in files.values():
        if file.exists():
            raise AnswersError(f"{file} is there and may hold scores: read them with --read, then remove it")
    with opened_gradebook(course) as gradebook:
        submissions = [each for each in gradebook.assignment_submissions(lab.folder.name) if is_graded(each)]
        if not submissions:
            raise AnswersError(f"no submission of {lab.folder.name} is recorded: run lab grade")
        submissions.sort(key=lambda each: each.student_id)
        tables = {question: [_model_row(RUBRIC_TITLE, models[question.id], question)] for question in questions}
        for submission in submissions:
            for question, row in _rows(gradebook, course, lab, questions, submission.student).items():
                tables[question].append(row)
    (course / FOLDER).mkdir(exist_ok=True)
    for question, file in files.items():
        with file.open("x", encoding="utf-8-sig", newline="") as opened:  # with the mark that Excel knows UTF-8 by
            table = csv.DictWriter(opened, COLUMNS, restval="")
            table.writeheader()
            table.writerows(tables[question])
    return list(files.values())


def number(score: float | None) -> str:
    """A score as a cell shows it; "" where there is none."""
    return "" if score is None else f"{score:g}"


def present_score(grade: Any) -> float | None:
    """The score that counts: a person's, else that of an untouched answer, which nbgrader gives 0 points."""
    return grade.auto_score if grade.manual_score is None else grade.manual_score


def _model_row(title: str, model: dict[str, Any], question: Question) -> dict[str, str]:
    answer = long_cell("".join(model["source"]))
    return {"student": title, "answer": answer, "points_possible": number(question.points)}


def _rows(
    gradebook: Any, course: Path, lab: Lab, questions: Sequence[Question], student: Any
) -> dict[Question, dict[str, str]]:
    """A student's row for each question."""
    import nbformat

    from labstaff.course.preprocessors import answer_digest
    from labstaff.course.record import result_of

    paths = SubmissionPaths(course, student.id, lab.folder.name)
    try:
        notebook = nbformat.read(paths.autograded / NOTEBOOK, as_version=4)
    except OSError as error:
        raise AnswersError(f"{one_line(error.filename)}: {error.strerror}: lab grade makes it again") from None
    cells = {each.metadata.get("nbgrader", {}).get("grade_id"): each for each in notebook.cells}
    result = result_of(paths)
    rows = {}
    for question in questions:
        grade = gradebook.find_grade(question.id, REPORT, lab.folder.name, student.id)
        comment = gradebook.find_comment(question.id, REPORT, lab.folder.name, student.id)
        answer = cells[question.id]
        pictures = "\n\n(with a picture: see formgrader)" if answer.get("attachments") else ""
        rows[question] = {
            "student": long_cell(student.id),
            "name": long_cell(f"{student.first_name or ''} {student.last_name or ''}".strip()),
            "answer": long_cell(answer.source + pictures),
            "points_possible": number(grade.max_score),
            "score_before": number(present_score(grade)),
            "comment_before": long_cell(comment.manual_comment or ""),
            "waits": "yes" if grade.needs_manual_grade else "",
            "look_at": long_cell("\n".join(result.flags) if result else ""),
            "version": f"{lab.label}/{question.id}/{long_cell(student.id)}/{answer_digest(answer)[:DIGITS]}",
        }
    return rows
