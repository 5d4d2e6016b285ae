"""What a grader that is killed at a chosen moment leaves behind: nothing half, nothing lost, and nothing for ever."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from labstaff.course.grade import grade
from labstaff.course.paths import COMMANDS_LOCK, RECORDERS_LOCK, Places, alone
from labstaff.course.ready import make_ready
from labstaff.grading.gradescope import Export
from labstaff.judge.judging import Judge
from labstaff.judge.kept import keep_results_at
from labstaff.judge.results import clear_parts, write_whole
from tests.labstaff.course.own_word import LAB, answer, answer_file, hand_in, judge_by_its_word
from tests.labstaff.course.recorded import first_scores, graded, leftovers, shown

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
POINTS = {"ann": 5, "bob": 7}
LONGEST_SECONDS = 60


class Killed(BaseException):
    """In the place of a signal: the process does nothing more."""


class KilledAtFeedback:
    """nbgrader, as if it were killed in the middle of generate_feedback.

    What it would write over it has removed by then (`nbgrader.converters.base.BaseConverter.init_destination`).
    """

    def __init__(self, nbgrader):
        self.nbgrader = nbgrader

    def __call__(self, course, command, assignment, *options):
        if command != "generate_feedback":
            return self.nbgrader(course, command, assignment, *options)
        told = dict(option.partition("=")[::2] for option in options)
        source = course / told["--CourseDirectory.autograded_directory"]
        written = course / told.get("--CourseDirectory.feedback_directory", "feedback")
        for student in source.iterdir():
            page = written / student.name / assignment
            if "--force" in told:
                shutil.rmtree(page)
            page.mkdir(parents=True, exist_ok=True)
            (page / "timestamp.txt").write_text("half")
            shutil.rmtree(page)
        raise Killed


@pytest.fixture
def use(shared_nbgrader, monkeypatch):
    """Has `lab grade` use an nbgrader from now on; the judge takes answers at their word."""

    def use(nbgrader):
        monkeypatch.setattr("labstaff.course.grade.Nbgrader", lambda: contextlib.nullcontext(nbgrader))

    monkeypatch.setattr(Judge, "judge", judge_by_its_word)
    use(shared_nbgrader)
    return use


@pytest.fixture
def course(made_course, tmp_path) -> Path:
    shutil.copytree(made_course, tmp_path / "course")
    for student, points in POINTS.items():
        hand_in(tmp_path / "course", student, points)
    return tmp_path / "course"


def test_feedback_stays_until_the_new_page_is_there(course, shared_nbgrader, use):
    """An older page says that feedback was asked for: were it gone, nobody would make it again."""
    graded(course)
    assert shared_nbgrader(course, "generate_feedback", NAME).status == 0
    before = shown(course)
    answer_file(course, "bob").write_text(answer(20))
    use(KilledAtFeedback(shared_nbgrader))
    with pytest.raises(Killed):
        graded(course)
    page = f"feedback/bob/{NAME}/report.html"
    assert shown(course)[page] == before[page]
    use(shared_nbgrader)
    assert graded(course)[-1].endswith("feedback of 1 made again")
    assert "standard_attention · 20 of 20 points" in shown(course)[page]
    assert first_scores(course) == {**POINTS, "bob": 20}
    assert [path.name for path in (course / page).parent.iterdir()] == ["report.html"]


def killed_at(event: str, work) -> None:
    """Do `work` in a process that is killed, as by kill -9, when it is about to do `event` for the first time."""
    child = os.fork()
    if child == 0:
        begun = False

        def hook(now: str, _arguments: tuple) -> None:
            if begun and now == event:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        begun = True
        work()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("which", ["a result", "the course's own file", "a submission's notebook", "an export"])
def test_a_part_of_a_file_is_cleared_by_the_next_grader(which, course, use, tmp_path):
    """What was being written when its process was killed lies there under another name."""
    export = Export(tmp_path / "export")
    if which == "a result":
        killed_at("os.rename", lambda: graded(course))
    elif which == "the course's own file":
        killed_at("os.rename", lambda: keep_results_at(course, tmp_path / "elsewhere"))
    elif which == "a submission's notebook":
        (course / "submitted" / "bob" / NAME / "report.ipynb").unlink()
        killed_at("os.rename", lambda: make_ready(course))
    else:
        graded(course)
        killed_at("os.rename", lambda: graded(course, export=export))
    left = [name for folder in (course, export.path) for name in leftovers(folder)]
    assert left
    assert all(name.endswith(".part") for name in left), left
    graded(course, export=export)
    assert leftovers(course) == leftovers(export.path) == []
    assert first_scores(course) == POINTS
    assert not (course / "set_aside").exists(), "somebody took it for handed in"


def test_a_part_that_is_being_written_stays(tmp_path, monkeypatch):
    """Another grader clears at that very moment."""
    left = tmp_path / ".a.json.abcd1234.part"
    left.write_text("half")
    to_disk = os.fsync

    def fsync(descriptor: int) -> None:
        to_disk(descriptor)
        clear_parts(tmp_path)
        assert not left.exists()

    monkeypatch.setattr(os, "fsync", fsync)
    assert write_whole(tmp_path / "a.json", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"whole"


def test_a_part_that_was_cleared_before_it_was_locked_is_begun_anew(tmp_path, monkeypatch):
    lock, cleared = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if not how & fcntl.LOCK_NB and not cleared:
            cleared.append(True)
            clear_parts(tmp_path)
            assert not list(tmp_path.iterdir())
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert write_whole(tmp_path / "a.json", b"whole")
    assert cleared
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_only_parts_of_ours_are_cleared(tmp_path):
    names = [".a.json.abcd1234.part", ".b.json.abcd1234.part", ".a.json.part", "a.json.abcd1234.part", ".a.json"]
    for name in names:
        (tmp_path / name).write_text("")
    clear_parts(tmp_path, "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_what_a_student_names_like_a_part_is_not_lost(course, use):
    name = ".report.ipynb.abcd1234.part"
    (course / "submitted" / "bob" / NAME / name).write_text("mine")
    graded(course)
    assert (Places(course, "bob", NAME).set_aside / name).read_text() == "mine"


@pytest.mark.parametrize("lock", [RECORDERS_LOCK, COMMANDS_LOCK])
def test_views_of_a_killed_grader_are_cleared_and_a_live_ones_stay(lock, course, use):
    """Who holds one of the locks may be reading from such a folder: nobody clears any until both are free."""
    views = [course / ".only-these-abc", course / "feedback" / ".made-again-abc"]
    for view in views:
        (view / "ann").mkdir(parents=True)
        (view / "ann" / NAME).symlink_to(Places(course, "ann", NAME).submitted)
    waits, said = threading.Event(), []

    def say(line: str) -> None:
        said.append(line)
        if "waiting for it" in line:
            waits.set()

    grader = threading.Thread(target=grade, args=(course / "submitted", [LAB]), kwargs={"unsafe": True, "say": say})
    with alone(course, lock):
        grader.start()
        assert waits.wait(LONGEST_SECONDS)
        assert all(view.exists() for view in views)
    grader.join()
    assert not any(view.exists() for view in views)
    assert Places(course, "ann", NAME).submitted.exists(), "a link was followed"
    assert first_scores(course) == POINTS
