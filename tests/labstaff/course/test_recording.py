"""What nbgrader records: whatever was judged newly or is missing, nothing twice, whenever the grader is killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import msgspec
import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.grade import STOPPED, grade
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.record import record
from labstaff.grader.grade import Judge
from labstaff.grader.kept import FILE, kept
from labstaff.grading.run import NothingToGrade
from tests.labstaff.course.own_word import LAB, answer, answer_file, hand_in, judge_by_its_word
from tests.labstaff.course.recorded import first_scores, gradebook, graded, shown

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
POINTS = {"ann": 5, "bob": 7, "cec": 11}
LONGEST_WAIT = 300.0


@pytest.fixture
def nbgrader(shared_nbgrader, monkeypatch):
    """The judge that takes answers at their word, and nbgrader without its import for each run."""
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    monkeypatch.setattr("labstaff.course.grade.Nbgrader", lambda: contextlib.nullcontext(shared_nbgrader))
    return shared_nbgrader


@pytest.fixture
def course(made_course, tmp_path):
    shutil.copytree(made_course, tmp_path / "course")
    for student, points in POINTS.items():
        hand_in(tmp_path / "course", student, points)
    return tmp_path / "course"


def test_a_resubmission_is_recorded_and_nobody_else(course, nbgrader):
    assert graded(course)[-1] == "gradebook.db: 3 recorded, 0 passed over (recorded before, unchanged)"
    assert nbgrader(course, "generate_feedback", NAME).status == 0
    before = shown(course)
    answer_file(course, "bob").write_text(answer(20))
    said = graded(course)
    assert said[-1] == (
        "gradebook.db: 1 recorded, 2 passed over (recorded before, unchanged), feedback of 1 made again"
    )
    assert first_scores(course) == {**POINTS, "bob": 20}
    changed = {name.split("/")[1] for name, text in shown(course).items() if before[name] != text}
    assert changed == {"bob"}
    assert "standard_attention · 20 of 20 points" in (course / f"feedback/bob/{NAME}/report.html").read_text()
    assert graded(course)[-1].startswith("gradebook.db: 0 recorded, 3 passed over")


def test_a_batch_makes_ready_its_own_submissions(course, nbgrader):
    """With many submissions it would take longer to look at all of them, for every batch, than to record it."""
    others = [course / "submitted" / student / NAME / "mine.txt" for student in POINTS]
    for file in others:
        file.write_text("")
    assert record(course, LAB, nbgrader, {"ann"}).anew == ["ann"]
    assert [file.exists() for file in others] == [False, True, True]
    assert nbgrader(course, "autograde", NAME).status == 0, "an instructor's own command looks at all"
    assert not any(file.exists() for file in others)


def test_mended_tests_are_judged_and_recorded(course, nbgrader, monkeypatch):
    """Another version of the course gives other points to the same file; the instructor is told."""
    graded(course)
    monkeypatch.setattr("labstaff.course.grade.Nbgrader", Nbgrader)  # it is to see the environment below
    monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "11")
    monkeypatch.setattr("tests.labstaff.course.own_word.WORTH", re.compile(rb"# points: \d?(\d)"))
    said = graded(course)
    assert "3 results were judged by another version of the course: judged again" in said
    assert first_scores(course) == {"ann": 5, "bob": 7, "cec": 1}
    assert said[-1].startswith("gradebook.db: 3 recorded")


def test_force_judges_again_too(course, nbgrader, monkeypatch):
    graded(course)
    monkeypatch.setattr("tests.labstaff.course.own_word.WORTH", re.compile(rb"# points: \d?(\d)"))
    assert graded(course)[-1].startswith("gradebook.db: 0 recorded")
    assert graded(course, force=True)[-1].startswith("gradebook.db: 3 recorded")
    assert first_scores(course) == {"ann": 5, "bob": 7, "cec": 1}


def test_a_lost_score_is_recorded_again(course, nbgrader):
    """As it is after a kill in the middle: a folder stands there, and the gradebook has no score."""
    graded(course)
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        database.execute("update grade set auto_score = null")
        database.commit()
    (course / "autograded" / "bob" / NAME / "report.ipynb").unlink()
    assert graded(course)[-1].startswith("gradebook.db: 3 recorded")
    assert first_scores(course) == POINTS


def test_results_elsewhere_are_those_that_are_recorded(course, nbgrader, tmp_path):
    graded(course, results=tmp_path / "elsewhere")
    assert not (course / "judged").exists(), "nbgrader judged again"
    assert len(list((tmp_path / "elsewhere" / NAME).glob("*.json"))) == len(POINTS)
    assert first_scores(course) == POINTS
    assert "3 submissions: 0 judged now, 3 were judged before" in graded(course), "they are forgotten"


def test_the_seed_survives_its_results(course, nbgrader):
    seed = kept(course).seed
    graded(course)
    shutil.rmtree(course / "judged")
    graded(course)
    assert kept(course).seed == seed


def test_one_that_nbgrader_cannot_name_stops_nobody(course, nbgrader):
    hand_in(course, "gus, the other", 3)
    for student in ("ada[1]", "eve\nFAILED: ann: forged", "\x1b[31mfay"):
        hand_in(course, student, 3)
    said = graded(course, status=1)
    assert first_scores(course) == {**POINTS, "gus, the other": 3}
    lost = [line for line in said if line.startswith("NOT RECORDED")]
    assert [line.split(":")[1] for line in lost] == [r" \x1b[31mfay", " ada[1]", r" eve\x0aFAILED"]
    assert not [line for line in said if line.startswith("FAILED")], "a name forged a line"
    assert not any(set(line) & {"\x1b", "\n", "\r"} for line in said)


def test_an_archive_in_a_course_is_not_lost_in_silence(course, nbgrader):
    folder = course / "submitted" / "zoe" / NAME
    hand_in(course, "zoe", 9)
    shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)
    said = graded(course, status=1)
    assert any(line.startswith(f"NOT RECORDED: zoe: lab01: {NAME}.zip is an archive") for line in said)
    assert first_scores(course) == POINTS


def test_a_failure_of_the_judge_is_that_of_one(course, nbgrader, monkeypatch, tmp_path):
    def fails_once(self, submission, seed, findings):
        if b"points: 7" in submission.source:
            raise RuntimeError("no memory")
        return judge_by_its_word(self, submission, seed, findings)

    monkeypatch.setattr(Judge, "judge", fails_once)
    said = graded(course, status=1, table=tmp_path / "points.csv")
    assert "FAILED: bob: RuntimeError: no memory" in said
    assert first_scores(course) == {"ann": 5, "cec": 11}
    assert {row["student"] for row in csv.DictReader((tmp_path / "points.csv").open())} == set(POINTS)
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    graded(course)
    assert first_scores(course) == POINTS


def test_refused_ones_are_flagged_in_formgrader(course, nbgrader):
    answer_file(course, "bob").unlink()
    said = graded(course, status=3)
    assert f"not judged: bob: there is no src/{LAB.module}.py, as a regular file" in said
    flagged = {student: flag for student, _, flag, _ in gradebook(course)["submitted"]}
    assert flagged == {"ann": 0, "bob": 1, "cec": 0}


def test_what_a_person_should_look_at_is_flagged_in_formgrader(course, nbgrader, monkeypatch):
    """Also where there are points: nobody opens every submission in search of a note."""

    def judge(self, submission, seed, findings):
        judged = judge_by_its_word(self, submission, seed, findings)
        looks_odd = submission.source == answer(POINTS["bob"]).encode()
        return msgspec.structs.replace(judged, flags=["imports nowhere"]) if looks_odd else judged

    monkeypatch.setattr(Judge, "judge", judge)
    (course / "submitted" / "cec" / NAME / "timestamp.txt").write_text("2010-01-01 12:00:00 UTC")
    kept = json.loads((course / FILE).read_text(encoding="utf-8"))
    (course / FILE).write_text(json.dumps({**kept, "made": "2026-01-01"}), encoding="utf-8")
    said = graded(course)
    assert {line.split(": ")[1] for line in said if line.startswith("look at")} == {"bob", "cec"}
    assert first_scores(course) == POINTS
    flagged = {student: flag for student, _, flag, _ in gradebook(course)["submitted"]}
    assert flagged == {"ann": 0, "bob": 1, "cec": 1}


def test_what_is_withheld_is_released_by_a_look(course, nbgrader):
    with answer_file(course, "bob").open("a") as file:
        file.write("import ctypes\n")
    said = graded(course)
    assert "look at: bob: line 2: imports ctypes (3.5 points withheld until lab grade … --looked-at bob)" in said
    assert first_scores(course) == {**POINTS, "bob": 3.5}
    flagged = {student: flag for student, _, flag, _ in gradebook(course)["submitted"]}
    assert flagged == {"ann": 0, "bob": 1, "cec": 0}
    assert not any(line.startswith("look at") for line in graded(course, looked_at=["bob"]))
    assert first_scores(course) == POINTS
    assert not any(line.startswith("look at") for line in graded(course)), "it stays released"
    with answer_file(course, "bob").open("a") as file:
        file.write("import mmap\n")
    graded(course)
    assert first_scores(course) == {**POINTS, "bob": 3.5}, "another file is to be looked at anew"
    with pytest.raises(NothingToGrade, match="no submission of zoe"):
        graded(course, looked_at=["zoe"])


def test_no_folder_is_one_line(tmp_path):
    with pytest.raises(NothingToGrade, match="there is no folder"):
        grade(tmp_path / "nowhere", [LAB])
    command = [sys.executable, "-m", "labkit.commands.cli", "grade"]
    for arguments in (["nowhere"], [str(tmp_path)], [str(tmp_path), "--lab", "77"]):
        done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert len((done.stdout + done.stderr).strip().splitlines()) == 1, done.stderr


def test_ctrl_c_is_one_line_and_loses_nothing(course, nbgrader, monkeypatch):
    """What is being judged comes to its end and is kept; what is not begun is left; nobody sees a traceback."""
    reader, writer = os.pipe()
    began, go_on = os.pipe()

    def slow(self, submission, seed, findings):
        os.write(writer, b"x")
        os.read(began, 1)
        return judge_by_its_word(self, submission, seed)

    monkeypatch.setattr(Judge, "judge", slow)
    child = os.fork()
    if child == 0:
        said: list[str] = []
        status = grade(course / "submitted", [LAB], workers=1, unsafe=True, say=said.append)
        (course / "said.txt").write_text("\n".join(said))
        os._exit(status)
    os.read(reader, 1)
    os.kill(child, signal.SIGINT)
    os.write(go_on, b"xxx")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == STOPPED
    first, last = (course / "said.txt").read_text().splitlines()
    assert first.startswith("stopping: what is being judged comes to its end")
    assert last.startswith("lab grade: stopped. What was judged is kept")
    n_kept = len(list((course / "judged" / NAME).glob("*.json")))
    assert n_kept >= 1
    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    assert f"3 submissions: {3 - n_kept} judged now, {n_kept} were judged before" in graded(course)


def lab_grade(course):
    """`lab grade` in a process group of its own, with the real grader and nbgrader."""
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(course / "submitted"), "--lab", "01"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def test_killed_while_recording_and_run_again_it_ends_the_same(course, tmp_path):
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(course, undisturbed)
    killed = lab_grade(course)
    give_up = time.monotonic() + LONGEST_WAIT
    while not list(course.glob("autograded/*")) and time.monotonic() < give_up:
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "it was done before it was killed"
    assert lab_grade(course).wait(LONGEST_WAIT) == lab_grade(undisturbed).wait(LONGEST_WAIT) == 0
    assert gradebook(course) == gradebook(undisturbed)
    assert shown(course) == shown(undisturbed)


def test_two_graders_at_once(course):
    assert [each.wait(LONGEST_WAIT) for each in [lab_grade(course), lab_grade(course)]] == [0, 0]
    assert first_scores(course) == dict.fromkeys(POINTS, 0)


def test_a_full_disk_leaves_nothing_half(course, monkeypatch):
    """Whatever cannot be written is not there at all; there is no empty seed for the next run to die of."""
    (course / FILE).unlink()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(OSError):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
            kept(course)
            status = 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "it is an error"
    assert not (course / FILE).exists()
    assert kept(course).seed == kept(course).seed > 1


@pytest.mark.parametrize("content", ["", '{"seed": 12', "null", '{"seed": "1"}'])
def test_a_damaged_seed_is_mended(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    assert kept(tmp_path).seed == kept(tmp_path).seed > 1
    assert json.loads((tmp_path / FILE).read_text())["seed"] == kept(tmp_path).seed


def test_an_older_courses_seed_is_kept(tmp_path):
    (tmp_path / "judged").mkdir()
    (tmp_path / "judged" / "seed").write_text("1234567")
    assert kept(tmp_path).seed == 1234567
    shutil.rmtree(tmp_path / "judged")
    assert kept(tmp_path).seed == 1234567
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0, "others can read it"
