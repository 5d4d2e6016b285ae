"""Grades leave the course: tables for people and platforms, moved due dates, what a class fails; by the commands."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import os
import shutil
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.extensions import CannotExtend, extend_all, extension_lines, spend_late_days
from labstaff.course.grade import grade
from labstaff.course.gradebook import NoGradebook, grades, opened
from labstaff.course.mapping import MappingError, known_mappings, read_mapping
from labstaff.course.platforms import export_grades
from labstaff.grader.grade import Judge
from tests.labstaff.course.own_word import LAB, answer_file, hand_in, judge_by_its_word
from tests.labstaff.grading.test_gradescope import breaches

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
FIRST = LAB.tasks[0]
MOST = LAB.points + sum(question.points for question in LAB.questions)
POINTS = {"ann": 20, "bob": 10, "cec": 5}
DAYS_LATE = {"bob": 1.5, "cec": 4.5}
DUE = datetime.datetime(2026, 1, 1, 12)
PARTS = [*(task.name for task in LAB.tasks), *(question.id for question in LAB.questions)]


@pytest.fixture
def nbgrader(shared_nbgrader, monkeypatch):
    """A judge that takes answers at their word, and nbgrader without its import for each run."""
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    monkeypatch.setattr("labstaff.course.grade.Nbgrader", lambda: contextlib.nullcontext(shared_nbgrader))
    return shared_nbgrader


def graded(course) -> list[str]:
    said: list[str] = []
    assert grade(course / "submitted", [LAB], unsafe=True, say=said.append) == 0, said
    return said


@pytest.fixture(scope="module")
def graded_course(made_course, shared_nbgrader, tmp_path_factory):
    """Graded: ann in time, bob and cec late, a tenth off for each day begun."""
    course, nbgrader = tmp_path_factory.mktemp("graded") / "course", shared_nbgrader
    shutil.copytree(made_course, course)
    with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
        config.write("c.LatePenalty.percent_per_day = 10\n")
    for student, points in POINTS.items():
        folder = hand_in(course, student, points)
        time = DUE + datetime.timedelta(days=DAYS_LATE.get(student, -1))
        (folder / "timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC")
    assert nbgrader(course, "db", "assignment", "add", NAME, "--duedate", f"{DUE:%Y-%m-%d %H:%M:%S} UTC").status == 0
    for student, last in (("ann", "Ångström, A."), ("bob", "=1+1"), ("cec", "\t@cmd")):
        added = nbgrader(course, "db", "student", "add", student, f"--last-name={last}", f"--email={student}@here")
        assert added.status == 0, added.output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "judge", judge_by_its_word)
        patch.setattr("labstaff.course.grade.Nbgrader", lambda: contextlib.nullcontext(nbgrader))
        graded(course)
    return course


@pytest.fixture
def course(graded_course, nbgrader, tmp_path):
    """A copy of the graded course, with the judge that takes answers at their word."""
    shutil.copytree(graded_course, tmp_path / "course")
    return tmp_path / "course"


def scores(course) -> dict[str, tuple[float, float]]:
    """Each student's points and what was taken off."""
    with opened(course) as gradebook:
        return {each.student: (each.raw_score, each.penalty) for _, all_ in grades(gradebook) for each in all_}


def rows(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_formula(text: str) -> bool:
    return text.lstrip(" ")[:1] in tuple("=+-@\t\r")


def test_the_export_has_a_column_for_each_task_and_question(course, nbgrader):
    done = nbgrader(course, "export")
    assert done.status == 0, done.output
    told = {row["student_id"]: row for row in rows(course / "grades.csv")}
    assert list(told["ann"])[:4] == ["assignment", "duedate", "timestamp", "student_id"], "as nbgrader has it"
    assert list(told["ann"])[-len(PARTS) :] == PARTS
    for student, points in POINTS.items():
        assert float(told[student][FIRST.name]) == points
        assert sum(float(told[student][part]) for part in PARTS) == float(told[student]["raw_score"])
    assert told["ann"]["last_name"] == "Ångström, A.", "a comma is part of the name"
    assert not [cell for row in told.values() for cell in row.values() if is_formula(cell)]


@pytest.mark.parametrize("name", known_mappings())
def test_every_mapping_writes_everybody_and_no_formula(course, tmp_path, name):
    mapping = read_mapping(name)
    done = export_grades(course, mapping, tmp_path / "out.csv")
    assert done.n_students == len(POINTS)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header[: len(mapping.columns)] == list(mapping.columns)
    assert {len(line) for line in lines} == {len(header)}
    assert len(lines) == len(POINTS) + bool(mapping.max_row)
    assert not [cell for line in lines for cell in line if is_formula(cell)]
    if mapping.max_row:
        assert lines[0][-1] == f"{MOST:g}"


def test_a_table_for_people(course, tmp_path):
    export_grades(course, read_mapping("table"), tmp_path / "out.csv")
    most, *told = rows(tmp_path / "out.csv")
    assert list(most)[4:] == [*(f"lab01 {part}" for part in PARTS), "lab01 late penalty", "lab01 score"]
    assert most[f"lab01 {FIRST.name}"] == f"{FIRST.points:g}"
    bob = next(row for row in told if row["student_id"] == "bob")
    assert (bob[f"lab01 {FIRST.name}"], bob["lab01 late penalty"], bob["lab01 score"]) == ("10", "2", "8")


def test_canvas_gets_its_own_students_back(course, tmp_path):
    """By the rules of its import: its columns, first and as they were; blank where nothing is to be changed."""
    roster, own = tmp_path / "roster.csv", tmp_path / "own.toml"
    carried = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    with roster.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow([*carried, "Homework (1)"])
        table.writerow(["    Points Possible", "", "", "", "", "10"])
        table.writerow(["Doe, Dan", "4", "u4", "dan", "A", "1"])
        table.writerow(["Ångström, Ann", "1", "u1", "ANN", "A", "2"])
        table.writerow(["Bee, Bob", "2", "u2", "bob.b", "A", "3"])
    own.write_text(f'base = "canvas"\n[labs]\n{NAME} = "Lab 01 (4711)"\n[students]\nbob = "bob.b"\n', encoding="utf-8")
    done = export_grades(course, read_mapping(str(own)), tmp_path / "out.csv", roster=roster)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            [*carried, "Lab 01 (4711)"],
            ["    Points Possible", "", "", "", "", f"{MOST:g}"],
            ["Doe, Dan", "4", "u4", "dan", "A", ""],
            ["Ångström, Ann", "1", "u1", "ANN", "A", "20"],
            ["Bee, Bob", "2", "u2", "bob.b", "A", "8"],
        ]
    assert done.remarks[-1] == "not in the roster, and not written: cec"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base = 'nowhere'", "base: expected one of canvas, moodle, table, found 'nowhere'"),
        ("x = ", "not valid TOML"),
        ("base = 'canvas'\nscores = 'x'", "unknown field `scores`"),
        ("[columns]\n'Name' = '{nickname}'", "expected a text with some of {student_id}"),
        ("base = 'canvas'\nscore = '{0}'", "expected a text with some of {folder}"),
        ("score = 'x'", "missing required field `columns`"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_one_line(tmp_path, text, says):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MappingError) as refused:
        read_mapping(str(path))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("roster", "says"),
    [
        ("Student,ID\nx,1\n", "expected a column 'SIS Login ID'"),
        ("SIS Login ID\nann\nann\n", "'ann' stands twice"),
        (None, "cannot be read"),
    ],
)
def test_a_roster_that_cannot_be_used_writes_nothing(course, tmp_path, roster, says):
    path = tmp_path / "roster.csv"
    if roster is not None:
        path.write_text(roster, encoding="utf-8")
    with pytest.raises(MappingError, match=says):
        export_grades(course, read_mapping("canvas"), tmp_path / "out.csv", roster=path)
    assert not (tmp_path / "out.csv").exists()


def test_a_lab_that_the_course_does_not_have_is_no_new_column_on_the_platform(course, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('base = "canvas"\n[labs]\nlab01_memory = "Lab 01 (4711)"\n', encoding="utf-8")
    with pytest.raises(MappingError, match="the course has no lab01_memory"):
        export_grades(course, read_mapping(str(own)), tmp_path / "out.csv")


def test_an_extension_moves_the_due_date_and_is_recorded(course):
    assert scores(course) == {"ann": (20, 0), "bob": (10, 2), "cec": (5, 2.5)}
    assert extend_all(course, [LAB], ["bob"], 1) == ["bob: lab01: due 1 days later"]
    assert graded(course)[-1].startswith("gradebook.db: 1 recorded, 2 passed over")
    assert scores(course)["bob"] == (10, 1), "one of two days begun is left"
    extend_all(course, [LAB], ["bob"], 2)
    graded(course)
    assert scores(course)["bob"] == (10, 0)
    assert "bob: lab01: due as for everybody" in extend_all(course, [LAB], ["bob"], 0)
    graded(course)
    assert scores(course)["bob"] == (10, 2)


def test_an_extension_may_come_before_the_submission(course, nbgrader):
    assert nbgrader(course, "db", "student", "add", "dan").status == 0
    extend_all(course, [LAB], ["dan"], 7)
    folder = hand_in(course, "dan", 20)
    (folder / "timestamp.txt").write_text(f"{DUE + datetime.timedelta(days=6):%Y-%m-%d %H:%M:%S} UTC")
    assert graded(course)[-1].startswith("gradebook.db: 1 recorded, 3 passed over")
    assert scores(course)["dan"] == (20, 0)


def test_who_only_has_an_extension_has_handed_nothing_in(course, nbgrader, tmp_path):
    assert nbgrader(course, "db", "student", "add", "dan").status == 0
    extend_all(course, [LAB], ["dan"], 7)
    with opened(course) as gradebook:
        (dan,) = [each for _, all_ in grades(gradebook, (), ["dan"]) for each in all_]
    assert (dan.recorded, dan.waiting, dan.extension_days) == (False, 0, 7)
    export_grades(course, read_mapping("moodle"), tmp_path / "out.csv")
    assert [list(row.values())[-1] for row in rows(tmp_path / "out.csv") if row["Username"] == "dan"] == [""]


def test_an_extension_is_for_somebody_and_of_something(course, made_course, tmp_path):
    for students, days, says in (
        (["bob", "nobody"], 1, "the course knows no student 'nobody'"),
        (["bob"], -1, "name a number of days"),
        (["bob"], float("nan"), "name a number of days"),
    ):
        with pytest.raises(CannotExtend, match=says):
            extend_all(course, [LAB], students, days)
    assert not [line for line in extension_lines(course, [], []) if "extension" in line], "all or nothing"
    with pytest.raises(CannotExtend, match="has no due date"):
        extend_all(made_course, [LAB], ["bob"], 1)
    with pytest.raises(NoGradebook, match="holds no gradebook"):
        extend_all(tmp_path, [LAB], ["bob"], 1)


def test_late_days_are_spent_once(course):
    assert spend_late_days(course, [], 3) == [
        f"bob: {NAME}: 2 late days spent, 1 left",
        f"cec: {NAME}: 3 late days spent, 0 left",
    ]
    assert spend_late_days(course, [], 3) == []
    graded(course)
    assert scores(course) == {"ann": (20, 0), "bob": (10, 0), "cec": (5, 1.0)}, "cec's last two days begun are left"
    assert spend_late_days(course, ["cec"], 5) == [f"cec: {NAME}: 2 late days spent, 0 left"]
    assert extension_lines(course, [], ["cec"]) == [
        f"cec: {NAME}: handed in 2026-01-06 00:00 UTC, 4.50 days late, extension of 5 days"
    ]


def test_minutes_of_grace_take_no_late_day(course):
    late = DUE + datetime.timedelta(minutes=9)
    (course / "submitted" / "ann" / NAME / "timestamp.txt").write_text(f"{late:%Y-%m-%d %H:%M:%S} UTC")
    graded(course)
    assert scores(course)["ann"] == (20, 0)
    assert spend_late_days(course, ["ann"], 5) == []


def command(*arguments, folder=ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "labkit.commands.cli", *map(str, arguments)]
    path = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=300)


def test_the_commands(course, tmp_path):
    for arguments, says in (
        (("export", course, tmp_path / "a.csv", "--for", "canvas", "--lab", "01"), f"wrote 3 students to {tmp_path}"),
        (("extend", course), f"bob: {NAME}: handed in 2026-01-03 00:00 UTC, 1.50 days late"),
        (("extend", course, "bob", "--lab", "01", "--days", "2"), "submitted --lab 01 records it"),
        (("extend", course, "--late-days", "1"), f"cec: {NAME}: 1 late days spent, 0 left"),
        (("statistics", course / "submitted", "--lab", "01"), "lab01 · Memory profiling: 3 submissions"),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        assert says in done.stdout
    here = command("extend", ".", "--late-days", "9", folder=course)
    assert here.returncode == 0, here.stderr
    assert f"cec: {NAME}: 4 late days spent, 4 left" in here.stdout
    for arguments, says in (
        (("export", course, tmp_path / "b.csv", "--for", "nowhere"), "there is no mapping nowhere"),
        (("export", tmp_path, tmp_path / "b.csv"), "holds no gradebook.db"),
        (("extend", tmp_path, "--late-days", "2"), "holds no gradebook.db"),
        (("extend", course, "--days", "2"), "--days needs a --lab and students"),
        (("extend", course, "nobody", "--lab", "01", "--days", "2"), "knows no student 'nobody'"),
        (("statistics", tmp_path), "holds no STUDENT/LAB folder"),
        (("grade", course / "submitted", "--visibility", "later"), "--visibility: expected one of hidden"),
        (("grade", course / "submitted", "--lab", "01", "--export", tmp_path / "x.json"), "there are 3: name a folder"),
    ):
        done = command(*arguments)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert says in done.stderr


def test_nobody_late_is_said(made_course):
    done = command("extend", made_course)
    assert (done.returncode, done.stdout) == (0, "nobody of these was late, and nobody has an extension\n")


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["empty", "garbage"])
def test_a_damaged_gradebook_is_one_line(course, tmp_path, content):
    before = {path: path.read_bytes() for path in course.rglob("*") if path.is_file()}
    (course / "gradebook.db").write_bytes(content)
    for arguments in (("export", course, tmp_path / "a.csv"), ("extend", course), ("grade", course / "submitted")):
        done = command(*arguments)
        assert done.returncode == 1
        assert len((done.stdout + done.stderr).strip().splitlines()) == 1, done.stderr
        assert "gradebook.db is no gradebook of nbgrader's" in done.stderr
    after = {path: path.read_bytes() for path in course.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} == {"gradebook.db"}
    assert (course / "gradebook.db").read_bytes() == content, "nothing is made over what may be mended"


def test_gradescope_reads_what_grade_exports(course, tmp_path):
    """A folder outside any course, as in Gradescope's container: one submission, one file."""
    answer = tmp_path / "submitted" / "student" / NAME / "src" / f"{LAB.module}.py"
    answer.parent.mkdir(parents=True)
    shutil.copyfile(answer_file(course, "ann"), answer)
    done = command("grade", tmp_path / "submitted", "--lab", "01", "--export", tmp_path / "results.json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert breaches(told) == []
    assert [test["name"] for test in told["tests"]][: len(LAB.tasks)] == [task.name for task in LAB.tasks]
    assert told["score"] == 0, "what the answer says of itself is nothing to the judge"
