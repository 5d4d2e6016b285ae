"""Keeps a course as the labs are: refuses one with other tasks or points, and makes its assignments again.

nbgrader adds no cell to an assignment that has submissions and removes none. So the assignments are made in a folder of
their own, and their cells replace those in the gradebook, in one transaction; each grade goes over to its new cell.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_assignments
from labkit.labs.manifest import Lab
from labstaff.course.make import CourseError, make_course, source_texts
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.paths import CONFIG_FILE, GRADEBOOK, REPORT, SUBMITTED
from labstaff.derive.markers import MarkerError
from labstaff.derive.notebooks import ReportError

REPLACED = "replaced"
"""The folder that keeps what the last update replaced: the gradebook, `source/LAB` and `release/LAB`."""


class OutOfDate(Exception):
    """A course has other tasks or points than its labs have now; the message says which, and what to type."""


def require_current(course: Path, labs: Sequence[Lab]) -> None:
    """Check that the assignments in the gradebook have the tasks, questions and points of `labs`.

    Raises:
        NoGradebook: `course` is none.
        OutOfDate: they differ. With other points a mark would silently be another one.
    """
    with opened_gradebook(course) as gradebook:
        for lab in labs:
            notebook = _notebook(gradebook, lab.folder.name)
            if notebook and (changes := _changed_cells(notebook, lab)):
                what = f"{lab.folder.name} has changed since this course was made ({'; '.join(changes)})"
                raise OutOfDate(f"{what}: lab course {shlex.quote(str(course))} --update")


def update_course(labs: Sequence[Lab], course: Path, say: Callable[[str], None]) -> None:
    """Make the assignments again, in `source/`, `release/` and the gradebook, of those labs that have changed.

    Settings, secret, due dates, extensions, submissions and grades stay, but for grades of what there is no more.

    Args:
        labs: those that the course should have and are looked at; none are those that it has.
        course: the course's folder.
        say: prints a line; each change is printed before anything is written.

    Raises:
        NoGradebook: `course` is none.
        CourseError: an assignment cannot be made; the course is as it was.
    """
    changed = []
    with opened_gradebook(course) as gradebook:
        present = {assignment.name for assignment in gradebook.assignments}
        for lab in labs or [lab for lab in find_assignments() if lab.folder.name in present]:
            notebook = _notebook(gradebook, lab.folder.name)
            changes = _changed_cells(notebook, lab) + _changed_files(course, lab) if notebook else ["added"]
            for change in changes:
                say(f"{lab.folder.name}: {change}")
            if changes:
                changed.append(lab)
    if not changed:
        say("nothing has changed")
        return
    made = course / "made_again"
    shutil.rmtree(made, ignore_errors=True)
    try:
        make_course(changed, made, (course / CONFIG_FILE).read_text(encoding="utf-8"))
        shutil.rmtree(course / REPLACED, ignore_errors=True)
        (course / REPLACED).mkdir()
        _copy_gradebook(course / GRADEBOOK, course / REPLACED / GRADEBOOK)
        for lab in changed:
            _replace_folder(course, made, f"release/{lab.folder.name}")
        with opened_gradebook(made) as new, opened_gradebook(course) as gradebook:
            for lab in changed:
                _replace_cells(gradebook, _notebook(new, lab.folder.name))
            gradebook.db.commit()
        for lab in changed:  # last: until then the files differ, and an update that was stopped is done again
            _replace_folder(course, made, f"source/{lab.folder.name}")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    say(f"made again; what was there before is in {course / REPLACED}")
    say(f"next: lab grade {shlex.quote(str(course / SUBMITTED))}: only then do scores have the new points")


def _notebook(gradebook: Any, assignment: str) -> Any:
    """The report of an assignment in a gradebook; None where there is none."""
    from nbgrader.api import MissingEntry

    try:
        return gradebook.find_notebook(REPORT, assignment)
    except MissingEntry:
        return None


def _changed_cells(notebook: Any, lab: Lab) -> list[str]:
    """Where the graded cells of an assignment are not the lab's tasks and questions, a line each."""
    wanted = {task.name: task.points for task in lab.tasks} | {each.id: each.points for each in lab.questions}
    cells = {cell.name: cell for cell in notebook.grade_cells}
    lines = [f"{name}: added, {points:g} points" for name, points in wanted.items() if name not in cells]
    for name, cell in cells.items():
        n_by_hand = sum(grade.manual_score is not None for grade in cell.grades)
        if name not in wanted:
            lines.append(f"{name}: removed, with its scores of {len(cell.grades)} students, {n_by_hand} by hand")
        elif cell.max_score != wanted[name]:
            stay = f", and {n_by_hand} scores by hand stay as they are" if n_by_hand else ""
            lines.append(f"{name}: {cell.max_score:g} → {wanted[name]:g} points{stay}")
    return lines


def _changed_files(course: Path, lab: Lab) -> list[str]:
    """Which files of an assignment's source are not what the lab has now, a line each."""
    lines = []
    try:
        for name, text in source_texts(lab).items():
            path = course / "source" / lab.folder.name / name
            if not path.is_file() or path.read_bytes() != text:
                lines.append(f"{name}: the text differs")
    except (MarkerError, ReportError, OSError) as error:
        raise CourseError(str(error)) from error
    return lines


def _copy_gradebook(gradebook: Path, to: Path) -> None:
    with contextlib.closing(sqlite3.connect(gradebook)) as old, contextlib.closing(sqlite3.connect(to)) as copy:
        old.backup(copy)


def _replace_folder(course: Path, made: Path, name: str) -> None:
    (course / REPLACED / name).parent.mkdir(exist_ok=True)
    (course / name).parent.mkdir(exist_ok=True)
    if (course / name).exists():
        (course / name).rename(course / REPLACED / name)
    (made / name).rename(course / name)


def _replace_cells(gradebook: Any, new: Any) -> None:
    """Put the cells of the notebook `new`, of another gradebook, instead of those there are, in their order.

    A grade or comment goes over to the cell of the same name. New cells get empty ones.
    """
    from nbgrader.api import Assignment, Comment, Grade, GradeCell, Notebook, SolutionCell, SourceCell

    database, old = gradebook.db, _notebook(gradebook, new.assignment.name)
    if old:
        assignment = old.assignment
        old.name = f"{REPORT} before"  # two of one name cannot be
        database.flush()
    else:
        assignment = Assignment(name=new.assignment.name, course_id=new.assignment.course_id)
    notebook = Notebook(name=REPORT, assignment=assignment, kernelspec=new.kernelspec)
    columns = {
        GradeCell: ("name", "max_score", "cell_type"),
        SolutionCell: ("name",),
        SourceCell: ("name", "cell_type", "locked", "source", "checksum"),
    }
    for cell in (*new.grade_cells, *new.solution_cells, *new.source_cells):
        database.add(type(cell)(notebook=notebook, **{name: getattr(cell, name) for name in columns[type(cell)]}))
        database.flush()
    if not old:
        return
    for submission in list(old.submissions):
        submission.notebook = notebook
        for kind, there, cells in (
            (Grade, submission.grades, notebook.grade_cells),
            (Comment, submission.comments, notebook.solution_cells),
        ):
            before = {each.name: each for each in there}
            for cell in cells:
                if each := before.pop(cell.name, None):
                    each.cell = cell
                else:
                    database.add(kind(cell_id=cell.id, notebook=submission))
            for each in before.values():
                database.delete(each)
    database.flush()
    database.expire_all()  # what has gone over is no longer the old cells'
    for cell in (*old._base_cells, *old.source_cells, old):
        database.delete(cell)
