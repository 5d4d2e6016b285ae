"""A course whose labs have changed: refused with what to type, then made again with its grades."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from labkit.labs import catalog
from labstaff.course.export import export_grades
from labstaff.course.make import CourseError
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.preprocessors import check_outputs
from labstaff.course.update import OutOfDate, update_course
from labstaff.grader.results import GradedSubmission
from tests.labstaff.course.submissions import NAME, answer, answers, cell_of, grade_by_hand, graded, hand_in
from tests.student import LAB

pytestmark = pytest.mark.slow

FIRST, SECOND, *OTHERS = LAB.tasks


@pytest.fixture
def change_lab(monkeypatch):
    """A function that has Lab 01 read with these keys of its manifest changed."""
    read = catalog.read_manifest
    monkeypatch.setattr("labstaff.grading.summary.mistakes_of", lambda lab: [])  # a task that is left out has some

    def change(**keys):
        changed = replace(LAB, **keys)
        monkeypatch.setattr(catalog, "read_manifest", lambda path: changed if path.parent == LAB.folder else read(path))

    return change


@pytest.fixture
def by_hand(course):
    """Graded; an answer and a check of bob's by hand too, who has lost the check cells of all tasks but the first."""

    def change(notebook):
        answers(bits_or_bytes="N times N")(notebook)
        for task in (SECOND, *OTHERS):
            notebook["cells"].remove(cell_of(notebook, task.name))

    hand_in(course, "bob", answer(10), change)
    graded(course)
    grade_by_hand(course, "bob", **{"bits_or_bytes": 3, OTHERS[0].name: 4})
    return course


def scores(course, student="bob") -> dict[str, tuple]:
    """Each grade of the student in the notebook's order: score by tests, by hand, most, and whether it waits."""
    with opened_gradebook(course) as gradebook:
        grades = {each.name: each for each in gradebook.find_submission_notebook("report", NAME, student).grades}
        cells = [cell.name for cell in gradebook.find_notebook("report", NAME).grade_cells]
        assert sorted(cells) == sorted(grades)
        return {
            name: (each.auto_score, each.manual_score, each.max_score, each.needs_manual_grade)
            for name in cells
            for each in [grades[name]]
        }


def updated(course, labs=()) -> list[str]:
    """The printed lines of an update."""
    printed: list[str] = []
    update_course(labs, course, printed.append)
    return printed


def test_points_come_from_where_they_are_shown():
    result = GradedSubmission(NAME, "key", "graded", shares={FIRST.name: 0.75})
    assert [check_outputs(LAB, FIRST, most, result)[1]["data"]["text/plain"] for most in (20.0, 25.0)] == [
        "15.0",
        "18.75",
    ]


def test_other_points_are_refused_until_the_course_is_made_again(by_hand, change_lab, tmp_path):
    before, due = scores(by_hand), "2027-03-01 12:00:00 UTC"
    kept = {name: (by_hand / name).read_bytes() for name in ("grading.json", "nbgrader_config.py")}
    with opened_gradebook(by_hand) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate=due)
        gradebook.grant_extension(NAME, "bob", days=2)
    question = replace(LAB.questions[1], points=2)
    questions = (LAB.questions[0], question, *LAB.questions[2:])
    change_lab(tasks=(replace(FIRST, points=25), SECOND, *OTHERS), questions=questions)
    for refused in (lambda: graded(by_hand), lambda: export_grades(by_hand, tmp_path / "out.csv")):
        with pytest.raises(OutOfDate) as error:
            refused()
        assert str(error.value) == (
            f"{NAME} has changed since this course was made (bits_or_bytes: 4 → 2 points, and 1 scores by hand stay as "
            f"they are; {FIRST.name}: 20 → 25 points): lab course {by_hand} --update"
        )
    assert (scores(by_hand), (tmp_path / "out.csv").exists()) == (before, False), "nothing was recorded or written"

    printed = updated(by_hand)
    assert printed[:3] == [
        f"{NAME}: bits_or_bytes: 4 → 2 points, and 1 scores by hand stay as they are",
        f"{NAME}: {FIRST.name}: 20 → 25 points",
        f"{NAME}: report.ipynb: the text differs",
    ]
    assert not export_grades(by_hand, tmp_path / "out.csv", say=printed.append), "scores are still of the old points"
    assert f"NOT RECORDED: bob: {NAME}: it or the course has changed since it was recorded: run lab grade" in printed
    assert graded(by_hand)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    after = {**before, FIRST.name: (12.5, None, 25, False), "bits_or_bytes": (None, 3, 2, False)}
    assert scores(by_hand) == after
    assert [scores(by_hand, student)[FIRST.name][0] for student in ("ann", "4711")] == [25, 6.25]
    assert {name: (by_hand / name).read_bytes() for name in kept} == kept
    with opened_gradebook(by_hand) as gradebook:
        submission = gradebook.find_submission(NAME, "bob")
        assert (submission.extension.days, f"{submission.assignment.duedate} UTC") == (2, due)
    assert updated(by_hand) == ["nothing has changed"]
    assert {path.name for path in (by_hand / "replaced").iterdir()} == {"gradebook.db", "release", "source"}


def test_a_task_that_goes_and_comes_back_costs_no_other_grade(by_hand, change_lab):
    before = scores(by_hand)
    change_lab(tasks=(FIRST, *OTHERS))
    assert updated(by_hand)[0] == f"{NAME}: {SECOND.name}: removed, with its scores of 3 students, 0 by hand"
    assert graded(by_hand)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert scores(by_hand) == {name: values for name, values in before.items() if name != SECOND.name}
    change_lab()
    assert updated(by_hand)[0] == f"{NAME}: {SECOND.name}: added, {SECOND.points:g} points"
    assert graded(by_hand)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert list(scores(by_hand).items()) == list(before.items()), "in their order too"
    assert scores(by_hand, "ann")[SECOND.name] == (0, None, SECOND.points, False)


def test_an_update_that_fails_leaves_the_course_as_it_was(by_hand, change_lab, monkeypatch):
    before = scores(by_hand)
    files = {path: path.read_bytes() for name in ("source", "release") for path in by_hand.glob(f"{name}/**/*.*")}
    change_lab(tasks=(replace(FIRST, points=25), SECOND, *OTHERS))
    monkeypatch.setattr(
        "labstaff.release.leaks.secret_passages", lambda lab: {"what standard attention costs in memory"}
    )
    with pytest.raises(CourseError, match="passages of solutions would be released"):
        updated(by_hand)
    assert scores(by_hand) == before
    assert {path: path.read_bytes() for path in files} == files and not (by_hand / "made_again").exists()


def test_a_lab_is_added_to_a_course(by_hand):
    lab = catalog.find_lab("02")
    assert updated(by_hand, [lab])[0] == f"{lab.folder.name}: added"
    with opened_gradebook(by_hand) as gradebook:
        most = gradebook.find_assignment(lab.folder.name).max_score
    assert most == lab.points + lab.report_points
    assert (by_hand / "release" / lab.folder.name / "report.ipynb").is_file()
