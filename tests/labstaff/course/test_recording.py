"""What nbgrader records: each result once, again where it has changed, and the same after a kill."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.grade import STOPPED, _only_one, grade
from labstaff.course.paths import nbgrader
from labstaff.grader.course_state import FILE, course_state
from labstaff.grader.grade import Grader
from labstaff.grading.run import NothingToGrade
from tests.labstaff.course.fixed_points import LAB, answer, answer_file, graded, graded_by_comment, hand_in

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
POINTS = {"ann": 5, "bob": 7, "cec": 11}
LONGEST_WAIT = 300.0


@pytest.fixture
def course(made_course, tmp_path, monkeypatch):
    """Three submissions, and a grader that reads their points from a comment."""
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    shutil.copytree(made_course, tmp_path / "course")
    for student, points in POINTS.items():
        hand_in(tmp_path / "course", student, points)
    return tmp_path / "course"


def gradebook(course) -> dict[str, list[tuple]]:
    """Scores by student and cell, and what is flagged."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        scores = database.execute(
            "select a.student_id, base_cell.name, auto_score, manual_score, needs_manual_grade "
            "from grade join base_cell on grade.cell_id = base_cell.id "
            "join submitted_notebook n on grade.notebook_id = n.id "
            "join submitted_assignment a on n.assignment_id = a.id"
        ).fetchall()
        flags = database.execute(
            "select a.student_id, n.flagged from submitted_notebook n "
            "join submitted_assignment a on n.assignment_id = a.id"
        ).fetchall()
        assert len({row[:2] for row in scores}) == len(scores), "a grade is there twice"
        return {"scores": sorted(scores), "flags": sorted(flags)}


def first_scores(course) -> dict[str, float]:
    """Each student's points in the first task."""
    return {student: score for student, cell, score, *_ in gradebook(course)["scores"] if cell == LAB.tasks[0].name}


def shown(course) -> dict[str, str]:
    """Every notebook that formgrader shows."""
    return {str(path.relative_to(course)): path.read_text() for path in course.glob("autograded/*/*/report.ipynb")}


def test_a_resubmission_is_recorded_and_nobody_else(course):
    assert graded(course)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert nbgrader(course, "generate_feedback", NAME).status == 0
    before = shown(course)
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        database.execute("update grade set manual_score = 3 where auto_score is 0")
        database.commit()
    answer_file(course, "bob").write_text(answer(20))
    *_, removed, last = graded(course)
    assert removed.startswith("feedback of 1 was out of date and is removed")
    assert last == "gradebook.db: 1 recorded, 2 unchanged"
    assert first_scores(course) == {**POINTS, "bob": 20}
    assert {name.split("/")[1] for name, text in shown(course).items() if before[name] != text} == {"bob"}
    assert 3 in [manual for student, _, _, manual, _ in gradebook(course)["scores"] if student == "bob"]
    assert {path.parent.name for path in course.glob(f"feedback/*/{NAME}")} == {"ann", "cec"}
    assert graded(course)[-1] == "gradebook.db: 0 recorded, 3 unchanged"


def test_force_grades_and_records_again(course, monkeypatch):
    graded(course)
    monkeypatch.setattr("tests.labstaff.course.fixed_points.WORTH", re.compile(rb"# points: \d?(\d)"))
    assert graded(course, force=True)[-1].startswith("gradebook.db: 3 recorded")
    assert first_scores(course) == {"ann": 5, "bob": 7, "cec": 1}


def test_each_that_fails_has_one_reason_and_stops_nobody(course, monkeypatch, tmp_path):
    """One that the grader fails on, one that nbgrader fails on, one whose name nbgrader cannot use."""

    def fails_once(self, submission, seed, findings):
        if b"points: 7" in submission.source:
            raise RuntimeError("no memory")
        return graded_by_comment(self, submission, seed, findings)

    monkeypatch.setattr(Grader, "grade", fails_once)
    hand_in(course, "ada[1]", 3)
    (course / "autograded" / "cec").mkdir(parents=True)
    (course / "autograded" / "cec" / NAME).write_text("in the way")
    printed = graded(course, status=1, table=tmp_path / "points.csv")
    assert "FAILED: bob: RuntimeError: no memory" in printed
    lost = {line.split(": ")[1]: line.split(": ", 3)[3] for line in printed if line.startswith("NOT RECORDED")}
    assert set(lost) == {"ada[1]", "cec"}
    assert lost["ada[1]"].startswith("nbgrader takes no such name")
    assert first_scores(course)["ann"] == 5
    assert {row["student"] for row in csv.DictReader((tmp_path / "points.csv").open())} == set(POINTS)
    (course / "autograded" / "cec" / NAME).unlink()
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    shutil.rmtree(course / "submitted" / "ada[1]")
    graded(course)
    assert first_scores(course) == POINTS


def test_withheld_points_are_released_by_a_look(course):
    with answer_file(course, "bob").open("a") as file:
        file.write("import ctypes\n")
    printed = graded(course)
    assert "look at: bob: line 2: imports ctypes (3.5 points withheld until lab grade … --looked-at bob)" in printed
    assert first_scores(course) == {**POINTS, "bob": 3.5}
    assert gradebook(course)["flags"] == [("ann", 0), ("bob", 1), ("cec", 0)]
    assert not any(line.startswith("look at") for line in graded(course, looked_at=["bob"]))
    assert first_scores(course) == POINTS
    with answer_file(course, "bob").open("a") as file:
        file.write("import mmap\n")
    graded(course)
    assert first_scores(course) == {**POINTS, "bob": 3.5}, "another file is to be looked at again"
    with pytest.raises(NothingToGrade, match="no submission of zoe"):
        graded(course, looked_at=["zoe"])


def test_a_course_without_its_release_says_so_for_each(course):
    shutil.rmtree(course / "release")
    lost = [line for line in graded(course, status=1) if line.startswith("NOT RECORDED")]
    assert len(lost) == len(POINTS)
    assert all("release/" in line for line in lost)


def test_a_course_without_submissions_is_one_line(made_course, tmp_path):
    with pytest.raises(NothingToGrade, match="there is no folder"):
        grade(tmp_path / "nowhere", [LAB])
    shutil.copytree(made_course, tmp_path / "course")
    with pytest.raises(NothingToGrade, match="holds no STUDENT/LAB folder"):
        grade(tmp_path / "course" / "submitted", [LAB])


def test_ctrl_c_is_one_line_and_loses_nothing(course, monkeypatch):
    """What is being graded comes to its end and is kept; what is not begun is left; nobody sees a traceback."""
    reader, writer = os.pipe()
    began, go_on = os.pipe()

    def slow(self, submission, seed, findings):
        os.write(writer, b"x")
        os.read(began, 1)
        return graded_by_comment(self, submission, seed)

    monkeypatch.setattr(Grader, "grade", slow)
    child = os.fork()
    if child == 0:
        printed: list[str] = []
        status = grade(course / "submitted", [LAB], workers=1, unsafe=True, say=printed.append)
        (course / "printed.txt").write_text("\n".join(printed))
        os._exit(status)
    os.read(reader, 1)
    os.kill(child, signal.SIGINT)
    os.write(go_on, b"xxx")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == STOPPED
    first, last = (course / "printed.txt").read_text().splitlines()
    assert first.startswith("stopping: what is being graded comes to its end")
    assert last.startswith("lab grade: stopped. What was graded is kept")
    assert list((course / "results" / NAME).glob("*.json"))


def lab_grade(course):
    """`lab grade` in a process group of its own, with the real grader and nbgrader."""
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(course / "submitted"), "--lab", "01"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def test_killed_while_recording_and_run_again_by_two_it_ends_the_same(course, tmp_path):
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(course, undisturbed)
    killed = lab_grade(course)
    give_up = time.monotonic() + LONGEST_WAIT
    while not list(course.glob("autograded/*")) and time.monotonic() < give_up:
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "it was done before it was killed"
    again = [lab_grade(course), lab_grade(course), lab_grade(undisturbed)]
    assert [each.wait(LONGEST_WAIT) for each in again] == [0, 0, 0]
    assert gradebook(course) == gradebook(undisturbed)
    assert shown(course).keys() == shown(undisturbed).keys()


def test_nbgrader_keeps_the_lock_of_a_run_that_was_killed(tmp_path, monkeypatch):
    """It goes on recording when `lab grade` alone is killed: the next run waits for it."""
    program, started = tmp_path / "nbgrader.sh", tmp_path / "started"
    program.write_text(f"#!/bin/sh\necho $$ > {started}.part\nmv {started}.part {started}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    child = os.fork()
    if child == 0:
        with _only_one(tmp_path, print):
            nbgrader(tmp_path)
        os._exit(1)
    while not started.exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with (tmp_path / ".grading.lock").open("a") as lock:
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.kill(int(started.read_text()), signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.parametrize("content", ["", '{"seed": 12', "null", '{"seed": "1"}'])
def test_a_damaged_seed_is_mended(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    assert course_state(tmp_path).seed == course_state(tmp_path).seed > 1
