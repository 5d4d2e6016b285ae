"""What Gradescope and Classroom 50 get, as their specifications ask for it."""

from __future__ import annotations

import json

import pytest

from labkit.labs.catalog import find_lab
from labstaff.grader.results import GradedSubmission
from labstaff.grading.classroom50 import write_result
from labstaff.grading.gradescope import VISIBILITIES, write_results

LAB = find_lab("01")
FIRST, SECOND, *_ = LAB.tasks
TOP = {"score", "output", "output_format", "visibility", "tests"}
OF_TEST = {"score", "max_score", "status", "name", "number", "output", "output_format", "visibility"}


def written(tmp_path, status="graded", **changed) -> dict:
    """The file for a submission with a perfect first task, a wrong second one, and nothing else."""
    tests = {f"{task.tests}::test_it": "passed" if task is FIRST else "failed" for task in LAB.tasks}
    messages = {name: "off by 0.5 <script>alert(1)</script>" for name, state in tests.items() if state == "failed"}
    found = {"tests": tests, "messages": messages, "shares": {FIRST.name: 1.0, SECOND.name: 1.005 / SECOND.points}}
    path = tmp_path / "results.json"
    write_results(
        path, LAB, GradedSubmission(LAB.folder.name, "key", status, **{**found, **changed}), "after_published"
    )
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_test_for_each_task(tmp_path):
    data = written(tmp_path, findings=["line 1: imports nowhere"])
    *tasks, for_the_grader = data["tests"]
    assert data.keys() <= TOP and all(test.keys() <= OF_TEST for test in data["tests"]), "its specification's names"
    assert [(test["name"], test["max_score"]) for test in tasks] == [(task.name, task.points) for task in LAB.tasks]
    assert [(test["score"], test["status"]) for test in tasks[:2]] == [(FIRST.points, "passed"), (1.0, "failed")]
    assert data["score"] == sum(test["score"] for test in tasks)
    assert "off by 0.5" in tasks[1]["output"]
    assert {test["output_format"] for test in data["tests"]} == {"text"}, "what a student wrote is not to be rendered"
    assert for_the_grader["output"] == "line 1: imports nowhere"
    assert for_the_grader["visibility"] == "hidden"
    assert "score" not in for_the_grader, "it is nothing that earns points"
    assert {data["visibility"], *(test["visibility"] for test in tasks)} == {"after_published"} <= {*VISIBILITIES}


def test_a_submission_without_code_gets_the_reason(tmp_path):
    reason = "there is no src/profiling.py"
    data = written(tmp_path, "refused", reason=reason, tests={}, messages={}, shares={})
    assert data["score"] == 0
    assert data["output"].endswith(f"not graded: {reason}")
    assert {test["status"] for test in data["tests"]} == {"failed"}


def test_classroom_50_gets_whole_points_and_a_row_for_each_test(tmp_path):
    runner = {
        "CLASSROOM": "autumn",
        "ASSIGNMENT": LAB.folder.name,
        "SUBMISSION_TAG": "submit/2026-06-01T14-32-05Z-a1b2c3d",
        "COMMIT_URL": "https://example.org/commit/a1b2c3d",
        "RELEASE_URL": "https://example.org/releases/tag/submit",
    }
    tests = {f"{task.tests}::test_it": "passed" if task is FIRST else "failed" for task in LAB.tasks}
    graded = GradedSubmission(
        LAB.folder.name, "key", "graded", tests=tests, shares={FIRST.name: 1.0, SECOND.name: 1.99 / SECOND.points}
    )
    write_result(tmp_path / "result.json", LAB, graded, runner)
    data = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert data["schema"] == "classroom50/result/v1"
    texts = ("classroom", "assignment", "submission", "commit", "release", "review", "datetime")
    assert all(isinstance(data[name], str) and data[name] for name in texts)
    assert data["review"] == data["commit"], "without a full diff"
    rows = {row["test-name"]: row for row in data["tests"]}
    assert len(rows) == len(data["tests"]) == 2 * len(LAB.tasks)
    assert all(
        type(row["score"]) is type(row["max-score"]) is int and type(row["passed"]) is bool for row in data["tests"]
    )
    assert rows[FIRST.name] == {
        "test-name": FIRST.name, "passed": True, "score": FIRST.points, "max-score": FIRST.points
    }  # fmt: skip
    assert (rows[SECOND.name]["score"], rows[SECOND.name]["passed"]) == (1, False)
    assert rows[f"{FIRST.tests}::test_it"]["passed"] and not rows[f"{SECOND.tests}::test_it"]["passed"]
    assert data["score"] == FIRST.points + 1 and data["max-score"] == LAB.points
    del runner["CLASSROOM"]
    with pytest.raises(KeyError, match="CLASSROOM"):
        write_result(tmp_path / "result.json", LAB, graded, runner)
