"""Many submissions at once: in parallel, killed and resumed, on a cluster; and what an instructor reads of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from labkit.labs.catalog import ROOT, find_lab, solution_file, solution_folder
from labstaff.answers.mistakes import find_mistake
from labstaff.grader.grade import Judge
from labstaff.grader.kept import FILE
from labstaff.grader.results import JudgedSubmission, load, path_of, save
from labstaff.grader.source import syntax_runs
from labstaff.grader.submission import Submission, read_submission
from labstaff.grading import many
from labstaff.grading.many import Job, Judged, Outcome, Running, find_submissions, judge_all, judge_here
from labstaff.grading.similar import similar_groups
from labstaff.grading.summary import summary_lines, write_table

pytestmark = pytest.mark.slow

LAB = find_lab("01")
SOLUTION = solution_file(LAB).read_text(encoding="utf-8")
STUB = LAB.answer_file.read_text(encoding="utf-8")
NO_SCALE = find_mistake(LAB, "attention_without_scale").source()
TEXTS = {
    "ann": SOLUTION,
    "bob": STUB,
    "cec": NO_SCALE,
    "dan": "import nowhere\n" + SOLUTION,
    "eve": SOLUTION.replace("def analyze_scaling(", "def analyze(", 1),
    "fay": SOLUTION,
}


def hand_in(course, texts):
    for student, text in texts.items():
        folder = course / "submitted" / student / LAB.folder.name / "src"
        folder.mkdir(parents=True)
        (folder / "profiling.py").write_text(text, encoding="utf-8")
    return course / "submitted"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = tmp_path_factory.mktemp("course")
    hand_in(course, TEXTS)
    return course


@pytest.fixture(scope="module")
def outcomes(course):
    judged = judge_all(find_submissions(course / "submitted", [LAB]), course / "judged")
    return {outcome.handed_in.student: outcome for outcome in judged}


def test_each_gets_what_it_has_written(outcomes):
    points = {student: outcome.judged.points for student, outcome in outcomes.items()}
    assert points["ann"] == points["fay"] == LAB.points
    assert points["bob"] == points["dan"] == 0
    assert points["cec"] == LAB.points - LAB.tasks[0].points, "no result on ordinary inputs is right without the scale"
    assert points["eve"] == LAB.points - next(task.points for task in LAB.tasks if task.name == "analyze_scaling")


def test_the_reason_is_kept(outcomes):
    assert outcomes["dan"].judged.findings == ["line 1: imports nowhere"]
    assert "not divided by √d" in "\n".join(outcomes["cec"].judged.messages.values())
    assert "defines no analyze_scaling" in "\n".join(outcomes["eve"].judged.messages.values())


def test_the_same_content_is_judged_once(outcomes, course):
    kept = list((course / "judged" / LAB.folder.name).glob("*.json"))
    assert len(kept) == len(TEXTS) - 1


def test_nothing_is_judged_twice(outcomes, course):
    again = list(judge_all(find_submissions(course / "submitted", [LAB]), course / "judged"))
    assert all(outcome.was_kept for outcome in again)
    assert {o.handed_in.student: o.judged for o in again} == {s: o.judged for s, o in outcomes.items()}


def test_another_file_is_another_key(tmp_path):
    folder = hand_in(tmp_path, {"ann": SOLUTION}) / "ann" / LAB.folder.name
    before = read_submission(LAB, folder).key
    (folder / "src" / "profiling.py").write_text(SOLUTION + "\n")
    assert read_submission(LAB, folder).key != before


def test_each_thread_of_a_worker_has_a_judge_of_its_own(monkeypatch):
    """A judge holds one conversation at a time: threads that shared one would read each other's results."""
    monkeypatch.setattr(many, "_mine", threading.local())
    together = threading.Barrier(2, timeout=60)
    used = []

    def judge(self, submission, seed, findings):
        used.append(self)
        together.wait()
        return JudgedSubmission(LAB.folder.name, submission.key, "judged")

    monkeypatch.setattr(Judge, "judge", judge)
    told = {"lab": "01", "source": b"x = 1", "problem": ""}
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            list(threads.map(lambda _: judge_here(told, 1, True), range(2)))
    assert len(used) == 4
    assert len({id(each) for each in used}) == 2


def test_a_result_that_cannot_be_kept_is_that_of_one(course, monkeypatch, tmp_path):
    """As on a full disk: it is said whose it was, and the others are kept."""
    monkeypatch.setattr(
        Judge, "judge", lambda self, each, seed, findings: JudgedSubmission("lab01", each.key, "judged")
    )

    def save_if_there_is_room(path, judged):
        if judged.key == bob.key:
            raise OSError(28, "No space left on device")
        save(path, judged)

    found = find_submissions(course / "submitted", [LAB])
    bob = read_submission(LAB, course / "submitted" / "bob" / LAB.folder.name)
    monkeypatch.setattr(many, "save", save_if_there_is_room)
    outcomes = {each.handed_in.student: each for each in judge_all(found, tmp_path / "judged", unsafe=True)}
    assert {student for student, each in outcomes.items() if each.judged is None} == {"bob"}
    assert "No space left" in outcomes["bob"].problem
    assert len(list((tmp_path / "judged").glob("*/*.json"))) == len(TEXTS) - 2, "ann and fay share one"


def test_it_is_known_which_submission_is_being_judged(course, monkeypatch, tmp_path):
    running, seen = Running(), []

    def judge(self, submission, seed, findings):
        seen.extend(running.since)
        return JudgedSubmission("lab01", submission.key, "judged")

    monkeypatch.setattr(Judge, "judge", judge)
    found = find_submissions(course / "submitted", [LAB])
    list(judge_all(found, tmp_path / "judged", unsafe=True, workers=1, running=running))
    assert sorted(seen) == [f"lab01 {student}" for student in sorted(TEXTS) if student != "ann"], "fay has ann's text"
    assert not running.since


def test_a_worker_of_another_version_is_told_apart(monkeypatch, tmp_path):
    job = Job("ann", Submission(LAB, b"x = 1"), tmp_path / "x.json", 1)
    theirs = Judged(JudgedSubmission(LAB.folder.name, job.submission.key, "judged", version="another"), 0.0)
    assert "another version of the course" in str(many._kept(job, theirs))
    assert not job.path.exists()


def test_the_summary(outcomes, tmp_path):
    said = "\n".join(summary_lines(LAB, list(outcomes.values())))
    assert "6 submissions judged" in said
    assert "3 of 6 pass all tests" in said.splitlines()[1]
    assert "look at: dan: line 1: imports nowhere" in said
    assert said.count("look at: ") == 1, "a plainly wrong answer is nothing to look at"
    (group,) = [line for line in said.splitlines() if line.startswith("nearly the same")]
    assert group.startswith("nearly the same: ann, dan, eve, fay ("), "one line for all of them"
    write_table(tmp_path / "points.csv", list(outcomes.values()))
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert len(rows) == len(TEXTS) * len(LAB.tasks)
    assert sum(float(row["points"]) for row in rows if row["student"] == "ann") == LAB.points


def test_a_failure_of_the_judge_is_told_and_not_kept(course):
    handed_in = find_submissions(course / "submitted", [LAB])[0]
    said = list(summary_lines(LAB, [Outcome(handed_in, None, "JudgeFailed: no memory")]))
    assert f"FAILED: {handed_in.student}: JudgeFailed: no memory" in said


def test_a_damaged_result_is_judged_again(tmp_path):
    path = path_of(tmp_path, LAB.folder.name, "abc", "v")
    path.parent.mkdir(parents=True)
    path.write_text('{"lab": "lab01", "key"')
    assert load(path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"def flash_forward(:\n", "has a syntax error in line 1"), (b"x = 1\n", "defines no FlashAttention")],
)
def test_a_class_that_is_not_there_is_said_so(text, says):
    """A method of it too: a suite calls `FlashAttention.apply`."""
    lab = find_lab("05")
    with Judge(unsafe=True) as judge:
        result = judge.judge(Submission(lab, text), 1)
    told = [said for test, said in result.messages.items() if test.startswith("TestFlashAttention::")]
    assert len(told) > 20
    assert all(says in said and "AnswerError" not in said for said in told), [said for said in told if says not in said]


def runs(text):
    return syntax_runs(text)


def test_similar_files_whatever_the_names():
    renamed = SOLUTION.replace("scores", "logits").replace("weights", "probabilities")
    other = (solution_folder(LAB) / "right" / "row_by_row.py").read_text()
    stub = runs(STUB)
    groups = similar_groups({"ann": runs(SOLUTION), "bob": runs(renamed), "cec": runs(other)}, stub)
    assert [group.students for group in groups] == [("ann", "bob")]
    assert not similar_groups({"ann": stub, "bob": stub}, stub)


def test_a_chain_of_similar_files_is_one_group():
    """Each is near the next and the ends are not near each other: one line for a human, not one for each pair."""
    files = {f"s{i}": range(4 * i, 4 * i + 100) for i in range(5)} | {"alone": range(1000, 1100)}
    (group,) = similar_groups({name: list(each) for name, each in files.items()}, [])
    assert group.students == ("s0", "s1", "s2", "s3", "s4")
    assert group.share == pytest.approx(96 / 104)
    assert similar_groups({f"s{i:02}": range(100) for i in range(60)}, [])[0].students == tuple(
        f"s{i:02}" for i in range(60)
    )


def grade(course, *options):
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(course / "submitted"), "--lab", "01", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_killed_half_way_and_started_again(tmp_path):
    texts = {f"s{i:02d}": SOLUTION + f"\n# {i}\n" for i in range(10)}
    hand_in(tmp_path, texts)
    kept = tmp_path / "judged" / LAB.folder.name
    first = grade(tmp_path)
    for _ in range(2400):
        if len(list(kept.glob("*.json"))) >= 2 or first.poll() is not None:
            break
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = {path: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert 2 <= len(done) < len(texts), "it was not killed half way"
    second = grade(tmp_path)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said
    now = {path: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert len(now) == len(texts)
    assert {path: now[path] for path in done} == done, "something was judged twice"
    assert f"{len(done)} were judged before" in said
    assert all(load(path).points == LAB.points for path in now)


def test_on_a_cluster(tmp_path, course, outcomes):
    """A real scheduler and a worker of two threads, each of which has a judge of its own."""
    hand_in(tmp_path, TEXTS)
    shutil.copy(course / FILE, tmp_path)  # the same seed: a wrong answer may pass a test by its inputs' luck
    address = tmp_path / "scheduler.json"
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    with (tmp_path / "log").open("w") as log:
        start = {"stdout": log, "stderr": log, "cwd": ROOT}
        module = [sys.executable, "-m"]
        scheduler_command = [*module, "distributed.cli.dask_scheduler", *here, "--port", "0"]
        processes = [subprocess.Popen([*scheduler_command, "--scheduler-file", str(address)], **start)]
        try:
            wait_for(address.exists)
            scheduler = json.loads(address.read_text())["address"]
            worker = [*module, "distributed.cli.dask_worker", scheduler, *here, "--nthreads", "2", "--no-nanny"]
            folder = ["--local-directory", str(tmp_path / "worker")]
            processes.append(subprocess.Popen([*worker, *folder], **start))
            run = grade(tmp_path, "--scheduler", scheduler)
            said, _ = run.communicate(timeout=400)
            assert run.returncode == 0, said
        finally:
            for process in processes:  # a worker that is asked to end while its scheduler ends may hang
                process.kill()
                process.wait()
    results = [load(path) for path in (tmp_path / "judged" / LAB.folder.name).glob("*.json")]
    here_results = {outcome.judged.key: outcome.judged for outcome in outcomes.values()}
    assert {result.key: result.points for result in results} == {k: r.points for k, r in here_results.items()}


def wait_for(there, seconds=120):
    for _ in range(seconds * 20):
        if there():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def test_the_result_survives_a_round_trip(tmp_path):
    told: dict[str, Any] = {"flags": ["f"], "tests": {"A::b": "failed"}, "messages": {"A::b": "m"}, "tasks": {"t": 1.5}}
    told |= {"version": "v", "syntax": [7]}
    judged = JudgedSubmission("lab01", "k", "judged", "", **told)
    save(tmp_path / "x" / "k.json", judged)
    assert load(tmp_path / "x" / "k.json") == judged
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["k.json"]


def test_links_and_hidden_folders_are_no_students(tmp_path):
    hand_in(tmp_path, {"ann": STUB})
    (tmp_path / "submitted" / ".hidden").mkdir()
    shutil.copytree(tmp_path / "submitted" / "ann", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "submitted" / "bob")
    assert [each.student for each in find_submissions(tmp_path / "submitted", [LAB])] == ["ann"]
    assert isinstance(find_submissions(tmp_path / "submitted", [LAB])[0].place, Path)
