"""Grades leave the course: tables for people and platforms, moved due dates, what a class fails; by the commands."""

from __future__ import annotations

import csv
import datetime
import json
import os
import shutil
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.export import COLUMNS, export_grades
from labstaff.course.extensions import CannotExtend, extend_all, extension_lines
from labstaff.course.gradebook import NoGradebook, opened
from labstaff.grader.grade import Grader
from tests.labstaff.course.fixed_points import LAB, answer_file, graded, graded_by_comment, hand_in
from tests.labstaff.grading.test_gradescope import breaches

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
MOST = LAB.points + sum(question.points for question in LAB.questions)
POINTS = {"ann": 20, "bob": 10, "4711": 5}
DAYS_LATE = {"bob": 1.5, "4711": 4.5}
DUE = datetime.datetime(2026, 1, 1, 12)


@pytest.fixture(scope="module")
def graded_course(made_course, tmp_path_factory):
    """Graded: ann in time, bob and 4711 late, a tenth off for each day begun."""
    course = tmp_path_factory.mktemp("graded") / "course"
    shutil.copytree(made_course, course)
    with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
        config.write("c.LatePenalty.percent_per_day = 10\n")
    for student, points in POINTS.items():
        folder = hand_in(course, student, points)
        time = DUE + datetime.timedelta(days=DAYS_LATE.get(student, -1))
        (folder / "timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC")
    with opened(course) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate=f"{DUE:%Y-%m-%d %H:%M:%S} UTC")
        for student, last in (("ann", "Ångström, A."), ("bob", "=1+1"), ("4711", "\t@cmd"), ("dan", "")):
            gradebook.update_or_create_student(student, last_name=last, email=f"{student}@here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grader, "grade", graded_by_comment)
        graded(course)
    return course


@pytest.fixture
def course(graded_course, tmp_path, monkeypatch):
    """A copy of the graded course."""
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    shutil.copytree(graded_course, tmp_path / "course")
    return tmp_path / "course"


def penalties(course) -> dict[str, tuple[float, float]]:
    """Each student's points and what was taken off."""
    with opened(course) as gradebook:
        found = gradebook.find_assignment(NAME).submissions
        return {each.student_id: (each.score, each.late_submission_penalty or 0.0) for each in found}


def rows(path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_table(course, tmp_path):
    printed = export_grades(course, tmp_path / "out.csv")
    header, most, *students = rows(tmp_path / "out.csv")
    assert header[4:] == ["lab01"]
    assert most == ["maximum", "", "", "", f"{MOST:g}"]
    assert [row[0] for row in students] == ["4711", "ann", "bob", "dan"], "sorted"
    assert [row[4] for row in students] == ["2.5", "20", "8", ""], "penalties taken off; blank: nothing was submitted"
    assert students[1][1] == "Ångström, A."
    assert printed == [f"wrote 4 students to {tmp_path / 'out.csv'}"]


@pytest.mark.parametrize(
    ("platform", "bob", "with_number"),
    [
        ("canvas", ["'=1+1", "", "", "bob", "", "8"], [r"'\x09@cmd", "4711", "", "", "", "2.5"]),
        ("moodle", ["bob", "", "'=1+1", "bob@here", "8"], ["4711", "", r"\x09@cmd", "4711@here", "2.5"]),
    ],
)
def test_what_a_platform_imports(course, tmp_path, platform, bob, with_number):
    export_grades(course, tmp_path / "out.csv", platform)
    header, *students = rows(tmp_path / "out.csv")
    assert header == [*COLUMNS[platform].student, "Lab 01: Memory profiling"]
    if platform == "canvas":
        assert students.pop(0) == ["    Points Possible", "", "", "", "", f"{MOST:g}"]
    assert students[2] == bob
    assert students[0][1:] == with_number[1:]
    assert not [cell for row in students for cell in row if cell.lstrip()[:1] in tuple("=+-@")]


def test_an_extension_moves_the_due_date_and_is_recorded(course):
    assert penalties(course) == {"ann": (20, 0), "bob": (10, 2), "4711": (5, 2.5)}
    assert extend_all(course, [LAB], ["bob"], 1) == ["bob: lab01: due 1 days later"]
    extend_all(course, [LAB], ["dan"], 7)  # before anything is handed in
    folder = hand_in(course, "dan", 20)
    (folder / "timestamp.txt").write_text(f"{DUE + datetime.timedelta(days=6):%Y-%m-%d %H:%M:%S} UTC")
    assert graded(course)[-1] == "gradebook.db: 2 recorded, 2 unchanged"
    assert penalties(course)["bob"] == (10, 1), "one of two days begun is left"
    assert penalties(course)["dan"] == (20, 0)
    assert extend_all(course, [LAB], ["bob"], 0) == ["bob: lab01: due as for everybody"]
    graded(course)
    assert penalties(course)["bob"] == (10, 2)


def test_an_extension_is_for_somebody_and_of_something(course, made_course, tmp_path):
    for students, days, why in (
        (["bob", "nobody"], 1, "no student 'nobody'"),
        (["bob"], -1, "name a number of days"),
        (["bob"], float("nan"), "name a number of days"),
    ):
        with pytest.raises(CannotExtend, match=why):
            extend_all(course, [LAB], students, days)
    assert not [line for line in extension_lines(course, []) if "extension of 0" not in line], "all or nothing"
    with pytest.raises(CannotExtend, match="has no due date"):
        extend_all(made_course, [LAB], ["bob"], 1)
    with pytest.raises(NoGradebook, match="holds no gradebook"):
        extend_all(tmp_path, [LAB], ["bob"], 1)


def command(*arguments, folder=ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "labkit.commands.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_commands(course, tmp_path):
    for arguments, printed in (
        (("export", course, tmp_path / "a.csv", "--for", "canvas", "--lab", "01"), f"wrote 4 students to {tmp_path}"),
        (("extend", course), f"bob: {NAME}: 1.50 days late"),
        (("extend", course, "bob", "--lab", "01", "--days", "2"), "submitted --lab 01 records it"),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        assert printed in done.stdout
    for arguments, printed in (
        (("export", course, tmp_path / "b.csv", "--for", "nowhere"), "expected one of table, canvas, moodle"),
        (("export", tmp_path, tmp_path / "b.csv"), "holds no gradebook.db"),
        (("extend", course, "--days", "2"), "--days needs a --lab and students"),
        (("extend", course, "nobody", "--lab", "01", "--days", "2"), "no student 'nobody'"),
        (("grade", course / "submitted", "--visibility", "later"), "--visibility: expected one of hidden"),
        (
            ("grade", course / "submitted", "--lab", "01", "--gradescope", tmp_path / "x.json"),
            "there are 3: name a folder",
        ),
    ):
        done = command(*arguments)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert printed in done.stderr


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["empty", "garbage"])
def test_a_damaged_gradebook_is_one_line(course, tmp_path, content):
    (course / "gradebook.db").write_bytes(content)
    for arguments in (("export", course, tmp_path / "a.csv"), ("extend", course), ("grade", course / "submitted")):
        done = command(*arguments)
        assert done.returncode == 1
        assert len((done.stdout + done.stderr).strip().splitlines()) == 1, done.stderr
        assert "gradebook.db is no gradebook of nbgrader's" in done.stderr
    assert (course / "gradebook.db").read_bytes() == content, "nothing is written over what may be mended"


def test_gradescope_reads_what_grade_exports(course, tmp_path):
    """A folder outside any course, as in Gradescope's container: one submission, one file."""
    answer = tmp_path / "submitted" / "student" / NAME / "src" / f"{LAB.module}.py"
    answer.parent.mkdir(parents=True)
    shutil.copyfile(answer_file(course, "ann"), answer)
    done = command("grade", tmp_path / "submitted", "--lab", "01", "--gradescope", tmp_path / "results.json")
    assert done.returncode == 0, done.stdout + done.stderr
    exported = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert breaches(exported) == []
    assert [test["name"] for test in exported["tests"]][: len(LAB.tasks)] == [task.name for task in LAB.tasks]
    assert exported["score"] == 0, "the comment counts for nothing in the real grader"
