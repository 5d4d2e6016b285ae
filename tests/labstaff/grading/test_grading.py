"""Many submissions at once: in parallel, killed and continued, on a cluster; and the summary of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from labkit.labs.catalog import ROOT, find_lab, solution_file, solution_folder
from labstaff.answers.mistakes import find_mistake
from labstaff.derive.build import derive_stub
from labstaff.grader.course_state import FILE
from labstaff.grader.grade import Grader
from labstaff.grader.results import GradedSubmission, load, save
from labstaff.grader.source import syntax_runs
from labstaff.grader.submission import read_submission
from labstaff.grading import parallel
from labstaff.grading.parallel import Outcome, grade_all
from labstaff.grading.similar import similar_groups
from labstaff.grading.submitted import find_submissions
from labstaff.grading.summary import frequent_causes, summary_lines, write_table

pytestmark = pytest.mark.slow

LAB = find_lab("01")
FIRST = LAB.tasks[0]
SOLUTION = solution_file(LAB).read_text(encoding="utf-8")
STUB = derive_stub(LAB)
NO_SCALE = find_mistake(LAB, "attention_without_scale")
TEXTS = {
    "ann": SOLUTION,
    "bob": STUB,
    "cec": NO_SCALE.source(),
    "dan": "import nowhere\n" + SOLUTION,
    "eve": SOLUTION.replace("def analyze_scaling(", "def analyze(", 1),
    "fay": SOLUTION,
    "gus": STUB,
}


def submit(course, texts):
    for student, text in texts.items():
        folder = course / "submitted" / student / LAB.folder.name / "src"
        folder.mkdir(parents=True)
        (folder / "profiling.py").write_text(text, encoding="utf-8")
    return course / "submitted"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = tmp_path_factory.mktemp("course")
    submit(course, TEXTS)
    return course


@pytest.fixture(scope="module")
def outcomes(course):
    graded = grade_all(find_submissions(course / "submitted", [LAB]), course / "results")
    return {outcome.submitted.student: outcome for outcome in graded}


def test_each_submission_gets_its_points_and_messages(outcomes):
    points = {student: outcome.result.points for student, outcome in outcomes.items()}
    assert points["ann"] == points["fay"] == LAB.points
    assert points["bob"] == points["gus"] == points["dan"] == 0
    assert points["cec"] == LAB.points - FIRST.points, "no result on ordinary inputs is right without the scale"
    assert points["eve"] == LAB.points - next(task.points for task in LAB.tasks if task.name == "analyze_scaling")
    (finding,) = outcomes["dan"].result.findings
    assert finding.startswith("line 1: imports nowhere")
    assert NO_SCALE.says in "\n".join(outcomes["cec"].result.messages.values())
    assert "defines no analyze_scaling" in "\n".join(outcomes["eve"].result.messages.values())


def test_the_same_content_is_graded_once_and_a_stored_result_is_used(outcomes, course):
    stored = list((course / "results" / LAB.folder.name).glob("*.json"))
    assert len(stored) == len(set(TEXTS.values()))
    again = {
        each.submitted.student: each for each in grade_all([o.submitted for o in outcomes.values()], course / "results")
    }
    assert all(outcome.is_stored for outcome in again.values())
    assert {s: o.result for s, o in again.items()} == {s: o.result for s, o in outcomes.items()}


def test_a_damaged_result_is_no_result(tmp_path):
    (tmp_path / "x.json").write_text('{"lab": "lab01", "key"')
    assert load(tmp_path / "x.json") is None


def graded_at_once(self, submission, seed, findings=()):
    return GradedSubmission(LAB.folder.name, submission.key, "graded")


def test_a_result_that_cannot_be_stored_fails_alone(course, monkeypatch, tmp_path):
    def save_if_there_is_space(path, result):
        if result.key == bob:
            raise OSError(28, "No space left on device")
        save(path, result)

    monkeypatch.setattr(Grader, "grade", graded_at_once)
    monkeypatch.setattr(parallel, "save", save_if_there_is_space)
    bob = read_submission(LAB, course / "submitted" / "bob" / LAB.folder.name).key
    found = find_submissions(course / "submitted", [LAB])
    outcomes = {each.submitted.student: each for each in grade_all(found, tmp_path / "results", unsafe=True)}
    assert {student for student, each in outcomes.items() if each.result is None} == {"bob", "gus"}
    assert "No space left" in outcomes["bob"].problem


def test_a_result_of_another_version_is_not_stored(course, monkeypatch, tmp_path):
    monkeypatch.setattr(Grader, "grade", graded_at_once)
    monkeypatch.setattr(parallel, "version_of", lambda lab, seed: "another")
    found = find_submissions(course / "submitted", [LAB])[:1]
    (outcome,) = grade_all(found, tmp_path / "results", unsafe=True)
    assert "another version of the course" in outcome.problem
    assert not list((tmp_path / "results").rglob("*.json"))


def test_the_summary(outcomes, tmp_path):
    lines = list(summary_lines(LAB, list(outcomes.values())))
    assert lines[0] == "lab01 · Memory profiling: 7 submissions graded"
    assert lines[1] == "  points of 60  0 to 12: 3 · 12 to 24: 0 · 24 to 36: 0 · 36 to 48: 1 · 48 to 60: 3 · median 40"
    assert "3 of 7 pass all tests" in lines[2]
    causes = lines[lines.index("most frequent causes:") + 1 : lines.index("most failed tests:")]
    assert causes[0].startswith(f"     1 × {FIRST.name}: the scores are {NO_SCALE.says}")
    (look_at,) = [line for line in lines if line.startswith("look at")]
    assert look_at.startswith("look at: dan: line 1: imports nowhere")
    (group,) = [line for line in lines if line.startswith("nearly the same")]
    assert group.startswith("nearly the same: ann, dan, eve, fay ("), "the stub that bob and gus left is not compared"
    failed = Outcome(outcomes["ann"].submitted, None, "JudgeFailed: no memory")
    assert list(summary_lines(LAB, [failed]))[-1] == "FAILED: ann: JudgeFailed: no memory"
    write_table(tmp_path / "points.csv", [failed, *outcomes.values()])
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert [row["student"] for row in rows] == sorted(row["student"] for row in rows)
    assert [row["task"] for row in rows[: len(LAB.tasks)]] == [task.name for task in LAB.tasks]
    assert sum(float(row["points"]) for row in rows if row["student"] == "fay") == LAB.points


def test_a_cause_counts_once_for_a_submission():
    message = f"output: off by 0.25\nThat is exactly what comes out when the scores are {NO_SCALE.says}"
    tests = [f"{FIRST.tests}::test_a[{i}]" for i in range(3)]
    results = [GradedSubmission(LAB.folder.name, k, "graded", messages=dict.fromkeys(tests, message)) for k in "ab"]
    command = f"(lab mistake 01 {NO_SCALE.name})"
    assert frequent_causes(LAB, results) == {f"{FIRST.name}: the scores are {NO_SCALE.says} {command}": 2}


def test_similar_files_whatever_the_names():
    renamed = SOLUTION.replace("scores", "logits").replace("weights", "probabilities")
    other = (solution_folder(LAB) / "right" / "row_by_row.py").read_text()
    texts = {"ann": SOLUTION, "bob": renamed, "cec": other, "dan": STUB, "eve": STUB}
    groups = similar_groups({student: syntax_runs(text) for student, text in texts.items()}, syntax_runs(STUB))
    assert [group.students for group in groups] == [("ann", "bob")]


def test_a_chain_of_similar_files_is_one_group():
    """Each is near the next and the ends are not near each other: one line, not one for each pair."""
    files = {f"s{i}": range(4 * i, 4 * i + 100) for i in range(5)} | {"alone": range(1000, 1100)}
    (group,) = similar_groups({name: list(each) for name, each in files.items()}, [])
    assert group.students == ("s0", "s1", "s2", "s3", "s4")
    assert group.share == pytest.approx(96 / 104)


def lab_grade(course, *options):
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(course / "submitted"), "--lab", "01", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_killed_run_continues_where_it_ended(tmp_path):
    texts = {f"s{i:02d}": SOLUTION + f"\n# {i}\n" for i in range(10)}
    submit(tmp_path, texts)
    results = tmp_path / "results" / LAB.folder.name
    killed = lab_grade(tmp_path)
    wait_for(lambda: len(list(results.glob("*.json"))) >= 2 or killed.poll() is not None)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert 2 <= len(before) < len(texts), "it was not killed half way"
    again = lab_grade(tmp_path)
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    after = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(after) == len(texts)
    assert {path: after[path] for path in before} == before, "something was graded twice"
    assert f"{len(before)} were graded before" in printed
    assert all(load(path).points == LAB.points for path in after)


def test_on_a_cluster(tmp_path, course, outcomes):
    """A real scheduler and a worker of two threads, each of which has a grader of its own."""
    submit(tmp_path, TEXTS)
    shutil.copy(course / FILE, tmp_path)  # the same seed: a wrong answer may pass a test by its inputs' luck
    address = tmp_path / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    with (tmp_path / "log").open("w") as log:
        start = {"stdout": log, "stderr": log, "cwd": ROOT}
        module = [sys.executable, "-m"]
        scheduler_command = [*module, "distributed.cli.dask_scheduler", *local, "--port", "0"]
        processes = [subprocess.Popen([*scheduler_command, "--scheduler-file", str(address)], **start)]
        try:
            wait_for(address.exists)
            scheduler = json.loads(address.read_text())["address"]
            worker = [*module, "distributed.cli.dask_worker", scheduler, *local, "--nthreads", "2", "--no-nanny"]
            folder = ["--local-directory", str(tmp_path / "worker")]
            processes.append(subprocess.Popen([*worker, *folder], **start))
            run = lab_grade(tmp_path, "--scheduler", scheduler)
            printed, _ = run.communicate(timeout=400)
            assert run.returncode == 0, printed
        finally:
            for process in processes:  # a worker that is asked to end while its scheduler ends may hang
                process.kill()
                process.wait()
    results = [load(path) for path in (tmp_path / "results" / LAB.folder.name).glob("*.json")]
    expected = {outcome.result.key: outcome.result for outcome in outcomes.values()}
    assert {result.key: result.points for result in results} == {k: r.points for k, r in expected.items()}


def wait_for(condition, seconds=120):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def test_links_and_hidden_folders_are_no_students(tmp_path):
    submit(tmp_path, {"ann": STUB})
    (tmp_path / "submitted" / ".hidden").mkdir()
    shutil.copytree(tmp_path / "submitted" / "ann", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "submitted" / "bob")
    assert [each.student for each in find_submissions(tmp_path / "submitted", [LAB])] == ["ann"]
