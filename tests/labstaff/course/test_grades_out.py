"""Grades leave the course: tables for people and platforms, and moved due dates; by the commands."""

from __future__ import annotations

import csv
import datetime
import os
import shutil
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT
from labstaff import commands
from labstaff.course.export import export_grades
from labstaff.course.extensions import CannotExtend, extend_all, extension_lines
from labstaff.course.nbgrader import NoGradebook, opened_gradebook
from tests.labstaff.course.submissions import LAB, NAME, answer, graded, hand_in

pytestmark = pytest.mark.slow

MOST = LAB.points + sum(question.points for question in LAB.questions)
DUE = datetime.datetime(2026, 1, 1, 12)
DAYS_LATE = {"ann": -1, "bob": 1.5, "4711": 4.5}

NOTHING_OF_DAN = f"nothing handed in: {NAME}: 1 of 4 students: dan"


@pytest.fixture
def late_course(course):
    """Graded: ann in time, bob and 4711 late, a tenth off for each day begun; dan has handed in nothing."""
    with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
        config.write("c.LatePenalty.percent_per_day = 10\n")
    for student, days in DAYS_LATE.items():
        set_time(course / "submitted" / student / NAME, days)
    with opened_gradebook(course) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate=f"{DUE:%Y-%m-%d %H:%M:%S} UTC")
        for student, last in (("ann", "Ångström, A."), ("bob", "=1+1"), ("4711", "\t@cmd"), ("dan", "")):
            gradebook.update_or_create_student(student, last_name=last, email=f"{student}@here")
    graded(course)
    return course


def set_time(folder, days_late) -> None:
    time = DUE + datetime.timedelta(days=days_late)
    folder.with_name(f"{folder.name}.timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC")


def penalties(course) -> dict[str, tuple[float, float]]:
    """Each student's points and what was taken off."""
    with opened_gradebook(course) as gradebook:
        found = gradebook.find_assignment(NAME).submissions
        return {each.student_id: (each.score, each.late_submission_penalty or 0.0) for each in found}


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        (
            "table",
            [
                ["student_id", "last_name", "first_name", "email", "Lab 01: Memory profiling"],
                ["maximum", "", "", "", f"{MOST:g}"],
                ["4711", r"\x09@cmd", "", "4711@here", "2.5"],
                ["ann", "Ångström, A.", "", "ann@here", "20"],
                ["bob", "'=1+1", "", "bob@here", "8"],
                ["dan", "", "", "dan@here", ""],
            ],
        ),
        (
            "canvas",
            [
                ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Lab 01: Memory profiling"],
                ["    Points Possible", "", "", "", "", f"{MOST:g}"],
                [r"\x09@cmd", "4711", "", "", "", "2.5"],
                ["Ångström, A.", "", "", "ann", "", "20"],
                ["'=1+1", "", "", "bob", "", "8"],
                ["", "", "", "dan", "", ""],
            ],
        ),
        (
            "moodle",
            [
                ["Username", "First name", "Last name", "Email address", "Lab 01: Memory profiling"],
                ["4711", "", r"\x09@cmd", "4711@here", "2.5"],
                ["ann", "", "Ångström, A.", "ann@here", "20"],
                ["bob", "", "'=1+1", "bob@here", "8"],
                ["dan", "", "", "dan@here", ""],
            ],
        ),
    ],
)
def test_tables_are_sorted_less_penalties_and_hold_no_formula(late_course, tmp_path, platform, expected):
    printed: list[str] = []
    assert export_grades(late_course, tmp_path / "out.csv", platform, printed.append)
    assert printed == [NOTHING_OF_DAN, f"wrote 4 students to {tmp_path / 'out.csv'}"]
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == expected


def test_an_export_says_what_is_not_recorded_and_who_is_gone(late_course, tmp_path):
    shutil.rmtree(late_course / "submitted" / "4711")
    hand_in(late_course, "ann", answer(5))
    hand_in(late_course, "dan", answer(20))
    printed: list[str] = []
    assert not export_grades(late_course, tmp_path / "out.csv", say=printed.append)
    assert printed == [
        f"not in submitted/ any more: 4711: {NAME}: 2.5 points stay: put the folder back, or if the student has left: "
        "nbgrader db student remove 4711 --force",
        f"NOT RECORDED: ann: {NAME}: it or the course has changed since it was recorded: run lab grade",
        f"NOT RECORDED: dan: {NAME}: it is not graded yet: run lab grade",
        f"wrote 4 students to {tmp_path / 'out.csv'}",
    ]
    graded(late_course)
    assert export_grades(late_course, tmp_path / "out.csv", say=printed.append)
    hand_in(late_course, "dan", answer(10))
    with pytest.raises(SystemExit, match="some submissions are not recorded"):
        commands.export(late_course, tmp_path / "out.csv", "table")
    shutil.rmtree(late_course / "submitted")
    printed.clear()
    assert export_grades(late_course, tmp_path / "out.csv", say=printed.append)
    assert [line.split(":")[1] for line in printed[:-1]] == [" 4711", " ann", " bob", " dan"]


def test_an_extension_moves_the_due_date_and_is_recorded(late_course, capsys):
    course = late_course
    assert penalties(course) == {"ann": (20, 0), "bob": (10, 2), "4711": (5, 2.5)}
    with pytest.raises(CannotExtend, match="no student 'nobody'"):
        extend_all(course, [LAB], ["bob", "nobody"], 1)
    assert not [line for line in extension_lines(course) if "extension of 0" not in line], "all or nothing"
    assert extend_all(course, [LAB], ["bob"], 1) == ["bob: lab01: due 1 days later"]
    assert penalties(course)["bob"] == (10, 1), "at once, without grading again"
    extend_all(course, [LAB], ["dan"], 7)  # before anything is handed in
    set_time(hand_in(course, "dan", answer(20)), 6)
    assert graded(course)[-1] == "gradebook.db: 1 recorded, 3 unchanged"
    assert penalties(course) == {"ann": (20, 0), "bob": (10, 1), "4711": (5, 2.5), "dan": (20, 0)}
    assert f"bob: {NAME}: 1.50 days late, extension of 1 days" in extension_lines(course)
    assert extend_all(course, [LAB], ["bob"], 0) == ["bob: lab01: due as for everybody"]
    assert penalties(course)["bob"] == (10, 2)
    capsys.readouterr()
    commands.extend(course, ["bob"], ["01"], 2)
    assert capsys.readouterr().out == "bob: lab01: due 2 days later\n", "there is nothing else to do"


def test_penalties_follow_what_a_person_graded(late_course, tmp_path):
    with opened_gradebook(late_course) as gradebook:
        notebook = gradebook.find_submission_notebook("report", NAME, "bob")
        answer_grade = next(each for each in notebook.grades if each.name not in {task.name for task in LAB.tasks})
        answer_grade.manual_score = 5
        gradebook.db.commit()
    export_grades(late_course, tmp_path / "out.csv")
    assert penalties(late_course)["bob"] == (15, 3)
    assert graded(late_course)[-1] == "gradebook.db: 0 recorded, 3 unchanged", "nothing is opened again"
    assert penalties(late_course)["bob"] == (15, 3)


def test_a_course_without_a_due_date_or_a_gradebook(course, tmp_path):
    with pytest.raises(CannotExtend, match="has no due date"):
        extend_all(course, [LAB], ["bob"], 1)
    (tmp_path / "gradebook.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(NoGradebook, match="cannot be used: file is not a database"):
        extend_all(tmp_path, [LAB], ["bob"], 1)


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("export", "COURSE", "OUT", "--for", "nowhere"), "expected one of table, canvas, moodle"),
        (("export", "ELSEWHERE", "OUT"), "holds no gradebook.db"),
        (("answers", "ELSEWHERE", "--lab", "01"), "holds no gradebook.db"),
        (("answers", "COURSE", "--lab", "01"), "no submission of lab01_memory_profiling is recorded: run lab grade"),
        (("extend", "COURSE", "--days", "2"), "--days needs a --lab and students"),
        (("extend", "COURSE", "nobody", "--lab", "01", "--days", "2"), "lab01_memory_profiling has no due date"),
        (("grade", "COURSE/submitted", "--visibility", "later"), "--visibility: expected one of hidden"),
        (("grade", "ELSEWHERE/submitted"), "holds no STUDENT/LAB folder"),
        (("grade", "COURSE/submitted", "--lab", "01", "--gradescope", "OUT"), "a single submission, and there are 3"),
    ],
)
def test_an_error_of_a_command_is_one_line(course, tmp_path, arguments, printed):
    names = {"COURSE": str(course), "OUT": str(tmp_path / "out.csv"), "ELSEWHERE": str(tmp_path)}
    line = [sys.executable, "-m", "labkit.commands.cli"]
    for argument in arguments:
        first, *rest = argument.split("/")
        line.append("/".join([names.get(first, first), *rest]))
    done = subprocess.run(line, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert printed in done.stderr
