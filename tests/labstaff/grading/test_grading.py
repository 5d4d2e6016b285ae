"""Many submissions at once: in parallel, killed and continued, on a cluster; and the summary of them."""

from __future__ import annotations

import csv

import pytest

from labkit.labs.catalog import find_lab, solution_file, solution_folder
from labstaff.authoring.mistakes import find_mistake
from labstaff.derive.build import derive_stub
from labstaff.grader.grade import Grader
from labstaff.grader.results import GradedSubmission, save
from labstaff.grader.source import syntax_runs
from labstaff.grader.submission import read_submission
from labstaff.grading import parallel
from labstaff.grading.parallel import NoScheduler, Outcome, grade_all
from labstaff.grading.report import total
from labstaff.grading.similar import similar_groups
from labstaff.grading.submitted import find_submissions
from labstaff.grading.summary import frequent_causes, summary_lines, write_table

pytestmark = pytest.mark.slow

LAB = find_lab("01")
FIRST = LAB.tasks[0]
SECRET = bytes(32)
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
    return find_submissions(course / "submitted", [LAB])


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = tmp_path_factory.mktemp("course")
    submit(course, TEXTS)
    return course


@pytest.fixture(scope="module")
def submissions(course):
    return find_submissions(course / "submitted", [LAB])


@pytest.fixture(scope="module")
def outcomes(course, submissions):
    return {each.submitted.student: each for each in grade_all(submissions, course / "results", SECRET)}


def test_each_submission_gets_its_points_and_messages(outcomes):
    points = {student: total(outcome.result, LAB) for student, outcome in outcomes.items()}
    assert points["ann"] == points["fay"] == LAB.points
    assert points["bob"] == points["gus"] == points["dan"] == 0
    assert points["cec"] == LAB.points - FIRST.points, "no result on ordinary inputs is right without the scale"
    assert points["eve"] == LAB.points - next(task.points for task in LAB.tasks if task.name == "analyze_scaling")
    (finding,) = outcomes["dan"].result.findings
    assert finding.startswith("line 1: imports nowhere")
    assert NO_SCALE.says in "\n".join(outcomes["cec"].result.messages.values())
    assert "defines no analyze_scaling" in "\n".join(outcomes["eve"].result.messages.values())


def test_the_same_content_is_graded_once_and_a_stored_result_is_used(outcomes, course, submissions):
    stored = list((course / "results" / LAB.folder.name).glob("*.json"))
    assert len(stored) == len(set(TEXTS.values()))
    again = {each.submitted.student: each for each in grade_all(submissions, course / "results", SECRET)}
    assert all(outcome.is_stored for outcome in again.values())
    assert {s: o.result for s, o in again.items()} == {s: o.result for s, o in outcomes.items()}


def test_on_a_cluster_of_two_workers(outcomes, submissions, tmp_path):
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.worker.daemon": False}),  # a grader is processes of its own
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
    ):
        address = cluster.scheduler_address
        found = {o.submitted.student: o.result for o in grade_all(submissions, tmp_path, SECRET, scheduler=address)}
    assert found == {student: outcome.result for student, outcome in outcomes.items()}
    with pytest.raises(NoScheduler, match="like tcp://FIRST:8786"):
        list(grade_all(submissions, tmp_path / "more", SECRET, scheduler="tcp:/no"))


def graded_at_once(self, submission, seed, findings=()):
    return GradedSubmission(LAB.folder.name, submission.key, "graded")


def test_a_result_that_cannot_be_stored_fails_alone(submissions, monkeypatch, tmp_path):
    def save_if_there_is_space(path, result):
        if result.key == bob:
            raise OSError(28, "No space left on device")
        save(path, result)

    monkeypatch.setattr(Grader, "grade", graded_at_once)
    monkeypatch.setattr(parallel, "save", save_if_there_is_space)
    bob = read_submission(LAB, submissions[1].path).key
    outcomes = {each.submitted.student: each for each in grade_all(submissions, tmp_path, SECRET, unsafe=True)}
    assert {student for student, each in outcomes.items() if each.result is None} == {"bob", "gus"}
    assert "No space left" in outcomes["bob"].problem


def test_a_result_of_another_version_is_not_stored(submissions, monkeypatch, tmp_path):
    monkeypatch.setattr(Grader, "grade", graded_at_once)
    kept_at = parallel.kept_at
    monkeypatch.setattr(parallel, "kept_at", lambda *args: kept_at(*args).with_name("another-version.json"))
    (outcome,) = grade_all(submissions[:1], tmp_path, SECRET, unsafe=True)
    assert "another version of the course" in outcome.problem
    assert not list(tmp_path.rglob("*.json"))


HOSTILE = {
    "sleeps": "import time; time.sleep(10_000)",
    "closes a folder": "import os; os.makedirs('a/b'); os.chmod('a/b', 0); os.chmod('a', 0); os._exit(1)",
    "ends": "import os; os._exit(0)",
    "nests": """
    import os
    for _ in range(3_000):
        os.mkdir('d')
        os.chdir('d')
    os._exit(1)""",
}


@pytest.mark.sandbox
def test_hostile_submissions_hold_up_nobody(monkeypatch, tmp_path):
    """Each has a result within its time, those behind it are graded, and it is said which are under way."""
    monkeypatch.setattr("labstaff.grader.grade.MAX_SECONDS", 60.0)
    texts = {name: f"{SOLUTION}\n\ndef analyze_scaling(*_, **__):\n    {body}\n" for name, body in HOSTILE.items()}
    submissions = submit(tmp_path, {**texts, "x": SOLUTION, "y": SOLUTION + "\n", "z": SOLUTION + "\n\n"})
    seen = set()
    grading = grade_all(
        submissions, tmp_path, SECRET, on_wait=lambda under_way: seen.update(e.submitted.student for e in under_way)
    )
    outcomes = {each.submitted.student: each for each in grading}
    assert {name: each.problem for name, each in outcomes.items() if not each.result} == {}
    points = {name: total(each.result, LAB) for name, each in outcomes.items()}
    assert {name: points[name] for name in "xyz"} == dict.fromkeys("xyz", LAB.points)
    assert all(0 < points[name] < LAB.points for name in HOSTILE), points
    assert "sleeps" in seen


def test_the_summary(outcomes, tmp_path):
    lines = list(summary_lines(LAB, list(outcomes.values())))
    assert lines[0] == "lab01 · Memory profiling: 7 submissions graded"
    assert lines[1] == "  points of 60  0 to 12: 3 · 12 to 24: 0 · 24 to 36: 0 · 36 to 48: 1 · 48 to 60: 3 · median 40"
    assert "3 of 7 pass all tests" in lines[2]
    causes = lines[lines.index("most frequent causes:") + 1 : lines.index("most failed tests:")]
    assert causes[0].startswith(f"     1 × {FIRST.name}: the scores are {NO_SCALE.says}")
    look_at = sorted(line.removeprefix("look at: ") for line in lines if line.startswith("look at"))
    copied = f"{LAB.module}.py is the model solution, comments and blank lines aside"
    assert [look_at[0], look_at[-1]] == [f"ann: {copied}", f"fay: {copied}"]
    assert look_at[1].startswith("dan: line 1: imports nowhere")
    assert look_at[2].startswith(f"dan: no test could run: {LAB.module}.py has a syntax error in line 4")
    assert len(look_at) == 4
    (group,) = [line for line in lines if line.startswith("nearly the same")]
    assert group.startswith("nearly the same: ann, dan, eve, fay, the model solution ("), (
        "the stub that bob and gus left is not compared"
    )
    failed = Outcome(outcomes["ann"].submitted, None, "GradingFailed: no memory")
    assert list(summary_lines(LAB, [failed]))[-1] == "FAILED: ann: GradingFailed: no memory"
    write_table(tmp_path / "points.csv", [failed, *outcomes.values()])
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert [row["student"] for row in rows] == sorted(row["student"] for row in rows)
    assert [row["task"] for row in rows[: len(LAB.tasks)]] == [task.name for task in LAB.tasks]
    assert sum(float(row["points"]) for row in rows if row["student"] == "fay") == LAB.points


def test_a_cause_counts_once_for_a_submission():
    causes = {f"{FIRST.tests}::test_a[{i}]": f"the scores are {NO_SCALE.says}" for i in range(3)}
    results = [GradedSubmission(LAB.folder.name, key, "graded", causes=causes) for key in "ab"]
    command = f"(lab mistake 01 {NO_SCALE.name})"
    assert frequent_causes(LAB, results) == {f"{FIRST.name}: the scores are {NO_SCALE.says} {command}": 2}


def test_a_mistake_that_several_messages_name_among_others_is_one_row():
    stated = ["A; or when B", "B; NaN apart; or when C", "B", "D"]
    causes = {f"{FIRST.tests}::t{i}": text for i, text in enumerate(stated)}
    result = GradedSubmission(LAB.folder.name, "k", "graded", causes=causes)
    assert frequent_causes(LAB, [result]) == {f"{FIRST.name}: B": 1, f"{FIRST.name}: D": 1}


def test_similar_files_whatever_the_names():
    renamed = SOLUTION.replace("scores", "logits").replace("weights", "probabilities")
    other = (solution_folder(LAB) / "alternatives" / "row_by_row.py").read_text()
    texts = {"ann": SOLUTION, "bob": renamed, "cec": other, "dan": STUB, "eve": STUB}
    groups = similar_groups({student: syntax_runs(text) for student, text in texts.items()}, syntax_runs(STUB))
    assert [group.students for group in groups] == [("ann", "bob")]


def test_a_chain_of_similar_files_is_one_group():
    """Each is near the next and the ends are not near each other: one line, not one for each pair."""
    files = {f"s{i}": range(4 * i, 4 * i + 100) for i in range(5)} | {"alone": range(1000, 1100)}
    (group,) = similar_groups({name: list(each) for name, each in files.items()}, [])
    assert group.students == ("s0", "s1", "s2", "s3", "s4")
    assert group.share == pytest.approx(96 / 104)
