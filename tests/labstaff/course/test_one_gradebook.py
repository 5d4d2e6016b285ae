"""Recording opens the gradebook once, keeps a submission in one step, and writes what nbgrader alone would write."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import shutil
from pathlib import Path

import jsonschema
import nbformat
import pytest
from nbgrader.api import Course, Gradebook
from nbgrader.nbgraderformat import MetadataValidator, SchemaTooOldError, ValidationError
from nbgrader.preprocessors import CheckCellMetadata
from sqlalchemy import event
from sqlalchemy.engine import Engine

from labstaff.course import one_gradebook
from labstaff.course.metadata import CheckMetadata, Remembering
from labstaff.course.one_gradebook import OPENED_BY, OneGradebook, in_one_step, keep
from labstaff.grader.grade import Judge
from tests.labstaff.course.own_word import LAB, answer, answer_file, hand_in, judge_by_its_word
from tests.labstaff.course.recorded import everything, first_scores, graded
from tests.labstaff.course.recording import ForkedNbgrader

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
POINTS = {"ann": 5, "bob": 7, "cec": 11}
MOST_COMMITS = 4
"""A submission's: two that write, and before and after them two with nothing to write."""


class Counted:
    """How often it is called, in this process and in those that this one forks."""

    def __init__(self, call=lambda *_args, **_named: None):
        self._count, self._call = mmap.mmap(-1, 8), call

    def __call__(self, *args, **named):
        self._count[:8] = (self.n + 1).to_bytes(8, "little")
        return self._call(*args, **named)

    @property
    def n(self) -> int:
        return int.from_bytes(self._count[:8], "little")


@pytest.fixture
def course(made_course, tmp_path, monkeypatch) -> Path:
    """Three submissions, one of them late, one to be looked at, one with another's answers in its notebook."""
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    monkeypatch.setattr("labstaff.course.grade.Nbgrader", ForkedNbgrader)
    course = tmp_path / "course"
    shutil.copytree(made_course, course)
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text().replace("percent_per_day = 0", "percent_per_day = 10"))
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate="2027-03-01 23:59:00 UTC")
    for student, points in POINTS.items():
        hand_in(course, student, points)
    (course / "submitted" / "ann" / NAME / "timestamp.txt").write_text("2027-03-03 20:15:00 UTC")
    (course / "submitted" / "bob" / NAME / "mine.py").write_text("")
    shutil.copy(course / "source" / NAME / "report.ipynb", course / "submitted" / "cec" / NAME)
    return course


def recorded(course: Path) -> dict[str, object]:
    """All that stands in the course after a first round, feedback, and a second round."""
    graded(course)
    assert ForkedNbgrader()(course, "generate_feedback", NAME).status == 0
    answer_file(course, "bob").write_text(answer(3))
    graded(course)
    return everything(course)


def test_it_writes_what_nbgrader_alone_would_write(course, tmp_path, monkeypatch):
    """Every row, every notebook and every page, with nbgrader's own gradebook and its own check of metadata."""
    apart = tmp_path / "apart" / "course"
    shutil.copytree(course, apart)
    ours = recorded(course)
    assert len(ours["grade"]) == len(POINTS) * len(LAB.tasks + LAB.questions)
    monkeypatch.setattr(one_gradebook, "install", lambda: None)
    monkeypatch.setattr("labstaff.course.metadata.Remembering", MetadataValidator)
    theirs = recorded(apart)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_it_is_opened_once_and_kept_in_one_step(course, monkeypatch):
    """Fails where another version of nbgrader opens or keeps it elsewhere: see `OPENED_BY`."""
    opened, kept = Counted(Gradebook.__init__), Counted()
    monkeypatch.setattr(Gradebook, "__init__", lambda *args, **named: opened(*args, **named))
    event.listen(Engine, "commit", kept)
    try:
        graded(course)
    finally:
        event.remove(Engine, "commit", kept)
    assert first_scores(course) == POINTS
    assert opened.n == 1
    assert 2 * len(POINTS) <= kept.n <= MOST_COMMITS * len(POINTS) + 5, "five: when it is opened"


def test_all_places_are_known():
    """In each stands nbgrader's class, under the name that is replaced."""
    for name in OPENED_BY:
        assert importlib.import_module(name).Gradebook is Gradebook


def test_another_nbgrader_is_left_as_it_is(course, monkeypatch):
    """All is recorded, as slowly as ever: here one of the places has another name for it."""
    monkeypatch.setattr(one_gradebook, "OPENED_BY", (*OPENED_BY[:-1], "labstaff.course.exporters"))
    graded(course)
    assert first_scores(course) == POINTS


def test_a_submission_that_fails_leaves_its_scores_as_they_were(course, monkeypatch):
    """What was written of it before it failed is taken back; the others are recorded."""
    graded(course)
    for student in ("ann", "bob"):
        answer_file(course, student).write_text(answer(20))

    def fails(self, nb, resources):
        if resources["nbgrader"]["student"] == "ann":
            raise RuntimeError("no memory")
        return nb, resources

    monkeypatch.setattr("nbgrader.preprocessors.AssignLatePenalties.preprocess", fails)
    said = graded(course, status=1)
    problems = [line for line in said if line.startswith("NOT RECORDED")]
    assert [line.split(":")[1] for line in problems] == [" ann"]
    assert first_scores(course) == {**POINTS, "bob": 20}
    monkeypatch.undo()
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    monkeypatch.setattr("labstaff.course.grade.Nbgrader", ForkedNbgrader)
    graded(course)
    assert first_scores(course) == {**POINTS, "ann": 20, "bob": 20}


@pytest.fixture
def gradebook(made_course, tmp_path, monkeypatch):
    monkeypatch.setattr(OneGradebook, "_open", {})
    shutil.copy(made_course / "gradebook.db", tmp_path)
    shutil.copy(made_course / "gradebook.db", tmp_path / "other.db")
    return OneGradebook(f"sqlite:///{tmp_path}/gradebook.db")


def students(gradebook) -> list[str]:
    """As another process sees them."""
    with Gradebook(str(gradebook.engine.url)) as other:
        return [student.id for student in other.students]


def test_what_is_written_is_kept_at_the_end_or_not_at_all(gradebook):
    with in_one_step():
        gradebook.add_student("ann")
        assert [student.id for student in gradebook.students] == ["ann"]
        assert students(gradebook) == []
    assert students(gradebook) == ["ann"]
    with contextlib.suppress(ZeroDivisionError), in_one_step():
        gradebook.add_student("bob")
        assert 1 / 0
    assert students(gradebook) == ["ann"]
    gradebook.add_student("cec")
    with contextlib.suppress(ZeroDivisionError), in_one_step(), gradebook:
        gradebook.add_student("dee")
        assert 1 / 0
    assert students(gradebook) == ["ann", "cec"], "what was there before the step stays"


def test_it_is_one_of_each_address_and_reads_anew(gradebook, tmp_path):
    address = str(gradebook.engine.url)
    with OneGradebook(address) as again:
        assert again is gradebook
        again.add_student("ann", first_name="Ann")
        keep()
        ann = again.find_student("ann")
    with Gradebook(address) as other:
        other.update_or_create_student("ann", first_name="Anna")
    with OneGradebook(address) as again:
        assert again.find_student("ann").first_name == ann.first_name == "Anna"
    assert OneGradebook(f"sqlite:///{tmp_path}/other.db") is not gradebook


def test_each_course_id_is_known(gradebook):
    for _ in range(2):
        OneGradebook(str(gradebook.engine.url), "another")
    with Gradebook(str(gradebook.engine.url)) as other:
        assert {course.id for course in other.db.query(Course)} == {"another", "attention-labs", "default_course"}


SPOILT = {
    "nothing": lambda cells: None,
    "an unknown key": lambda cells: cells[0].metadata.nbgrader.update(more=1),
    "negative points": lambda cells: cells[1].metadata.nbgrader.update(points=-1),
    "points that are a text": lambda cells: cells[1].metadata.nbgrader.update(points="4"),
    "no points": lambda cells: cells[1].metadata.nbgrader.pop("points"),
    "no id": lambda cells: cells[2].metadata.nbgrader.pop("grade_id"),
    "an id twice": lambda cells: cells[2].metadata.nbgrader.update(grade_id="why_quadratic"),
    "an older schema": lambda cells: cells[3].metadata.nbgrader.update(schema_version=2),
    "text that is graded and no answer": lambda cells: cells[1].metadata.nbgrader.update(solution=False),
    "a check that became text": lambda cells: cells[-1].update(cell_type="markdown"),
}


def complaint(preprocessor, notebook) -> str:
    try:
        preprocessor.preprocess(notebook, {})
    except (ValidationError, SchemaTooOldError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_metadata_is_checked_as_nbgrader_checks_it(made_course, monkeypatch):
    """Also after right ones were seen, and each that is right once."""
    validations = Counted(jsonschema.validate)
    monkeypatch.setattr(jsonschema, "validate", validations)
    monkeypatch.setattr(Remembering, "_right", set())
    complaints = {}
    for what, spoil in SPOILT.items():
        notebook = nbformat.read(made_course / "release" / NAME / "report.ipynb", as_version=4)
        spoil([cell for cell in notebook.cells if "nbgrader" in cell.metadata])
        complaints[what] = complaint(CheckMetadata(), notebook)
        n_before = validations.n
        assert complaint(CheckMetadata(), notebook) == complaints[what]
        assert validations.n - n_before <= 1, "what is right was looked at again"
        assert bool(complaints[what]) == (what != "nothing")
        assert complaints[what] == complaint(CheckCellMetadata(), notebook)
