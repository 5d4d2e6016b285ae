"""Many submissions at once: in parallel, killed and resumed, on a cluster; and what an instructor reads of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_lab, solution_file, solution_folder
from labkit.suite.prefork import OVERTIME
from labkit.suite.run import SuiteRun
from labstaff.answers.mistakes import find_mistake
from labstaff.grading.many import Outcome, find_submissions, judge_all
from labstaff.grading.similar import similar_pairs
from labstaff.grading.summary import summary_lines, write_table
from labstaff.judge.judging import ALWAYS, Judge
from labstaff.judge.results import JudgedSubmission, load, path_of
from labstaff.judge.submission import Submission, read_submission

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
    assert LAB.points - LAB.tasks[0].points < points["cec"] < LAB.points
    assert points["eve"] == LAB.points - next(task.points for task in LAB.tasks if task.name == "analyze_scaling")


def test_the_reason_is_kept(outcomes):
    assert any("imports nowhere" in flag for flag in outcomes["dan"].judged.flags)
    assert "not divided by √d" in "\n".join(outcomes["cec"].judged.messages.values())
    assert "defines no analyze_scaling" in "\n".join(outcomes["eve"].judged.messages.values())


def test_the_same_content_is_judged_once(outcomes, course):
    kept = list((course / "judged" / LAB.folder.name).glob("*.json"))
    assert len(kept) == len(TEXTS) - 1


def test_nothing_is_judged_twice(outcomes, course):
    again = list(judge_all(find_submissions(course / "submitted", [LAB]), course / "judged"))
    assert all(outcome.was_kept for outcome in again)
    assert {o.handed_in.student: o.judged for o in again} == {s: o.judged for s, o in outcomes.items()}


def test_another_suite_is_another_judgement(monkeypatch, tmp_path):
    folder = hand_in(tmp_path, {"ann": SOLUTION}) / "ann" / LAB.folder.name
    before = read_submission(LAB, folder).key
    (folder / "src" / "profiling.py").write_text(SOLUTION + "\n")
    assert read_submission(LAB, folder).key != before


def test_the_summary(outcomes, tmp_path):
    said = "\n".join(summary_lines(LAB, list(outcomes.values())))
    assert "6 submissions judged" in said
    assert "3 of 6 pass all tests" in said.splitlines()[1]
    assert "look at: dan: profiling.py line 1: imports nowhere" in said
    assert "nearly the same: ann and fay (100% of their syntax)" in said
    write_table(tmp_path / "points.csv", list(outcomes.values()))
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert len(rows) == len(TEXTS) * len(LAB.tasks)
    assert sum(float(row["points"]) for row in rows if row["student"] == "ann") == LAB.points


def test_a_failure_of_the_judge_is_told_and_not_kept(course):
    handed_in = find_submissions(course / "submitted", [LAB])[0]
    said = list(summary_lines(LAB, [Outcome(handed_in, None, "JudgeFailed: no memory")]))
    assert f"FAILED: {handed_in.student}: JudgeFailed: no memory" in said


def test_a_damaged_result_is_judged_again(tmp_path):
    path = path_of(tmp_path, LAB.folder.name, "abc")
    path.parent.mkdir(parents=True)
    path.write_text('{"lab": "lab01", "key"')
    assert load(path) is None


def test_a_judge_imports_what_its_labs_need(monkeypatch):
    """Torch takes seconds, in two processes, and a NumPy lab needs none of it."""
    made = []

    class Runner:
        def __init__(self, modules, prepare):
            made.append(modules)

        def run(self, lab, *options, seconds):
            return SuiteRun(problem=OVERTIME)

        def close(self):
            made.append("closed")

    monkeypatch.setattr("labstaff.judge.judging.WarmRunner", Runner)
    with Judge(unsafe=True) as judge:
        for number in ("01", "04", "02", "01"):
            judge.judge(Submission(find_lab(number), b"x = 1"), 1)
    first, *then = made
    assert "labkit.suite.prefork_torch" not in first
    assert then == ["closed", tuple(sorted({*first, "labkit.suite.prefork_torch"} - {*ALWAYS})) + ALWAYS, "closed"]


def test_similar_files_whatever_the_names():
    renamed = SOLUTION.replace("scores", "logits").replace("weights", "probabilities")
    other = (solution_folder(LAB) / "right" / "row_by_row.py").read_text()
    pairs = similar_pairs({"ann": SOLUTION.encode(), "bob": renamed.encode(), "cec": other.encode()}, STUB.encode())
    assert [(pair.first, pair.second) for pair in pairs] == [("ann", "bob")]
    assert not similar_pairs({"ann": STUB.encode(), "bob": STUB.encode()}, STUB.encode())


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
    """A real scheduler and two workers, each a process of its own on this machine."""
    hand_in(tmp_path, TEXTS)
    (tmp_path / "judged").mkdir()
    shutil.copy(course / "judged" / "seed", tmp_path / "judged")  # a wrong answer may pass a test by its inputs' luck
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
            worker = [*module, "distributed.cli.dask_worker", scheduler, *here, "--nthreads", "1", "--no-nanny"]
            for i in range(2):
                folder = ["--local-directory", str(tmp_path / f"worker{i}")]
                processes.append(subprocess.Popen([*worker, *folder], **start))
            run = grade(tmp_path, "--scheduler", scheduler)
            said, _ = run.communicate(timeout=400)
            assert run.returncode == 0, said
        finally:
            for process in processes:  # a worker that is asked to end while its scheduler ends may hang
                process.kill()
                process.wait()
    results = {path.stem: load(path) for path in (tmp_path / "judged" / LAB.folder.name).glob("*.json")}
    here_results = {outcome.judged.key: outcome.judged for outcome in outcomes.values()}
    assert {key: result.points for key, result in results.items()} == {k: r.points for k, r in here_results.items()}


def wait_for(there, seconds=120):
    for _ in range(seconds * 20):
        if there():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def test_the_result_survives_a_round_trip(tmp_path):
    judged = JudgedSubmission("lab01", "k", "judged", "", ["f"], {"A::b": "failed"}, {"A::b": "m"}, {"t": 1.5})
    from labstaff.judge.results import save

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
