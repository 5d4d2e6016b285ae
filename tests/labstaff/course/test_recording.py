"""What nbgrader records: each result once, again where it has changed, and the same after a kill."""

from __future__ import annotations

import contextlib
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
from labstaff.course.nbgrader import nbgrader
from labstaff.grader.course_state import FILE, DamagedState, course_secret, seed_of
from labstaff.grader.grade import Grader
from tests.labstaff.course.conftest import POINTS
from tests.labstaff.course.submissions import (
    LAB,
    NAME,
    answer,
    answers,
    grade_by_hand,
    graded,
    graded_by_comment,
    hand_in,
)

pytestmark = pytest.mark.slow

LONGEST_WAIT = 300.0


def gradebook(course) -> list[tuple]:
    """Student, flag, cell and its scores, for each grade."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        return sorted(
            database.execute(
                "select a.student_id, n.flagged, base_cell.name, auto_score, manual_score, needs_manual_grade "
                "from grade join base_cell on grade.cell_id = base_cell.id "
                "join submitted_notebook n on grade.notebook_id = n.id "
                "join submitted_assignment a on n.assignment_id = a.id"
            )
        )


def first_scores(course) -> dict[str, float]:
    """Each student's points in the first task."""
    return {student: score for student, _, cell, score, *_ in gradebook(course) if cell == LAB.tasks[0].name}


def test_a_resubmission_is_recorded_and_nobody_else_unless_forced(course, monkeypatch):
    assert graded(course)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert nbgrader(course).generate_feedback(NAME)["success"]
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        database.execute("update grade set manual_score = 3 where auto_score is 0")
        database.commit()
    hand_in(course, "bob", answer(15))
    assert graded(course)[-1] == "gradebook.db: 1 recorded, 2 unchanged"
    assert first_scores(course) == {**POINTS, "bob": 15}
    assert 3 in [manual for student, *_, manual, _ in gradebook(course) if student == "bob"]
    assert {path.parent.name for path in course.glob(f"feedback/*/{NAME}")} == {"ann", "4711"}, "bob's was out of date"
    assert graded(course)[-1] == "gradebook.db: 0 recorded, 3 unchanged"
    monkeypatch.setattr("tests.labstaff.course.submissions.WORTH", re.compile(rb"# points: \d?(\d)"))
    assert graded(course, force=True)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert first_scores(course) == {"ann": 0, "bob": 5, "4711": 5}, "graded again too"


@pytest.fixture
def by_hand(course):
    """Graded, two answers of bob's and a check of ann's by hand too, and handed back."""
    hand_in(course, "bob", answer(10), answers(bits_or_bytes="N times N", alive_at_once="All."))
    graded(course)
    grade_by_hand(course, "bob", bits_or_bytes=3, alive_at_once=5)
    grade_by_hand(course, "ann", **{LAB.tasks[1].name: 7})
    assert nbgrader(course).generate_feedback(NAME)["success"]
    return course


def waiting(course) -> set[tuple[str, str]]:
    """Student and cell of each grade that waits for a person."""
    return {(student, cell) for student, _, cell, *_, waits in gradebook(course) if waits}


def pages(course) -> set[str]:
    """The students whose page there is."""
    return {path.parent.name for path in course.glob(f"feedback/*/{NAME}")}


def test_a_setting_opens_nothing_again(by_hand):
    with (by_hand / "nbgrader_config.py").open("a", encoding="utf-8") as config:
        config.write("c.LatePenalty.percent_per_day = 10\n")
    before = gradebook(by_hand)
    assert graded(by_hand)[-1] == "gradebook.db: 0 recorded, 3 unchanged"
    assert (gradebook(by_hand), waiting(by_hand), pages(by_hand)) == (before, set(), {*POINTS})


def test_what_is_recorded_again_for_another_reason_leaves_grades_by_hand_alone(by_hand, monkeypatch):
    monkeypatch.setattr("tests.labstaff.course.submissions.WORTH", re.compile(rb"# points: \d?(\d)"))
    before = gradebook(by_hand)
    printed = graded(by_hand, force=True)
    assert printed[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    after = gradebook(by_hand)
    assert [(row[:3], row[4:]) for row in after] == [(row[:3], row[4:]) for row in before] and not waiting(by_hand)
    assert first_scores(by_hand) == {"ann": 0, "bob": 0, "4711": 5}
    assert pages(by_hand) == {"4711"}, "the others' pages hold other points"
    (line,) = [line for line in printed if line.startswith("feedback")]
    assert "ann, bob" in line and f"nbgrader generate_feedback {NAME}" in line


def test_only_an_answer_that_has_changed_is_to_be_graded_again_and_keeps_its_score_until_then(by_hand):
    hand_in(by_hand, "bob", answer(10), answers(bits_or_bytes="N squared", alive_at_once="All."))
    printed = graded(by_hand)
    assert printed[-1] == "gradebook.db: 1 recorded, 2 unchanged"
    assert waiting(by_hand) == {("bob", "bits_or_bytes")}
    (line,) = [line for line in printed if line.startswith("grade again")]
    assert line == (
        f"grade again: bob: {NAME}: bits_or_bytes has changed since it was graded by hand: 3 points until then"
    )
    assert pages(by_hand) == {"ann", "4711"}
    assert line in graded(by_hand, force=True) and waiting(by_hand) == {("bob", "bits_or_bytes")}
    grade_by_hand(by_hand, "bob", bits_or_bytes=4)
    assert line not in graded(by_hand) and not waiting(by_hand)


def test_a_score_by_hand_for_code_is_given_again_where_the_code_has_changed(by_hand):
    hand_in(by_hand, "ann", answer(19))
    line = f"{LAB.tasks[1].name} has changed since it was graded by hand: 7 points until then"
    assert f"grade again: ann: {NAME}: {line}" in graded(by_hand)
    assert waiting(by_hand) == {("ann", LAB.tasks[1].name)}


def test_it_is_said_how_far_it_is_where_nothing_is_graded_any_more(course, monkeypatch):
    monkeypatch.setattr("labstaff.grading.run.WAIT_SECONDS", 0.0)
    assert "2 of 3 graded" in graded(course)
    assert [line for line in graded(course) if " of 3 graded" in line] == [f"{n} of 3 graded" for n in (1, 2, 3)]


def test_each_that_fails_has_one_reason_and_stops_nobody(course, monkeypatch):
    """One that the grader fails on, one that nbgrader fails on, one whose name nbgrader cannot use."""

    def fails_on_bob(self, submission, seed, findings):
        if b"points: 10" in submission.source:
            raise RuntimeError("no memory")
        return graded_by_comment(self, submission, seed, findings)

    monkeypatch.setattr(Grader, "grade", fails_on_bob)
    hand_in(course, "ada[1]", answer(3))
    (course / "autograded" / "4711").mkdir(parents=True)
    (course / "autograded" / "4711" / NAME).write_text("in the way")
    printed = graded(course, status=1)
    assert "FAILED: bob: RuntimeError: no memory" in printed
    lost = {line.split(": ")[1]: line.split(": ", 3)[3] for line in printed if line.startswith("NOT RECORDED")}
    assert set(lost) == {"ada[1]", "4711"}
    assert lost["ada[1]"].startswith("nbgrader takes no such name")
    assert "NotADirectoryError" in lost["4711"]
    assert first_scores(course)["ann"] == POINTS["ann"]
    (course / "autograded" / "4711" / NAME).unlink()
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    shutil.rmtree(course / "submitted" / "ada[1]")
    graded(course)
    assert first_scores(course) == POINTS


def test_findings_are_shown_and_points_stay(course):
    hand_in(course, "bob", answer(10) + "import ctypes\n")
    printed = graded(course)
    assert "look at: bob: line 2: imports ctypes" in printed, "\n".join(printed)
    assert first_scores(course) == POINTS
    assert {student for student, flagged, *_ in gradebook(course) if flagged} == {"bob"}


def lab_grade(course) -> subprocess.Popen[str]:
    """`lab grade` with the real grader and nbgrader."""
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(course / "submitted"), "--lab", "01"]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True
    )


def wait_for(condition) -> None:
    for _ in range(int(LONGEST_WAIT / 0.01)):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_stopped_while_recording_and_run_again_by_two_it_ends_the_same(course, tmp_path, stop):
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(course, undisturbed)
    stopped = lab_grade(course)
    wait_for(lambda: list(course.glob("autograded/*")) or stopped.poll() is not None)
    stopped.send_signal(stop)
    printed, _ = stopped.communicate(timeout=LONGEST_WAIT)
    if stop == signal.SIGKILL:
        assert stopped.returncode == -signal.SIGKILL, "it was done before it was killed"
    else:
        assert (stopped.returncode, printed.splitlines()[-1][:18]) == (130, "lab grade: stopped")
    again = [lab_grade(course), lab_grade(course), lab_grade(undisturbed)]
    assert [(each.communicate(timeout=LONGEST_WAIT), each.returncode)[1] for each in again] == [0, 0, 0]
    assert gradebook(course) == gradebook(undisturbed)
    assert list(course.glob("autograded/*/*/report.ipynb"))


@pytest.mark.parametrize("content", ["", '{"secret": "12', "null", '{"secret": "1"}', '{"seed": 12}'])
def test_a_damaged_secret_stops_grading(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DamagedState, match=r"grading\.json is damaged .*: restore it, or remove it"):
        course_secret(tmp_path)
    assert (tmp_path / FILE).read_text() == content


def test_a_seed_is_the_courses_and_the_files_own(tmp_path):
    secret = course_secret(tmp_path)
    assert course_secret(tmp_path) == secret != course_secret(tmp_path / "another")
    seeds = {seed_of(secret, key) for key in ("a" * 32, "b" * 32)} | {seed_of(bytes(32), "a" * 32)}
    assert len(seeds) == 3 and all(seed.bit_length() > 200 for seed in seeds)


def test_the_gradebook_has_no_write_ahead_log(course):
    """SQLite supports none on network file systems."""
    graded(course)
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() != ("wal",)
    assert not list(course.glob("gradebook.db-wal"))
