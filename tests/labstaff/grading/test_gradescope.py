"""Results for Gradescope, checked against its specification."""

from __future__ import annotations

import json
import math

import pytest

from labkit.labs.catalog import find_lab
from labstaff.grader.results import GradedSubmission
from labstaff.grading.gradescope import CannotExport, Export, Visibility
from labstaff.grading.parallel import Outcome
from labstaff.grading.submitted import Submitted

LAB = find_lab("01")
FIRST, SECOND, *_ = LAB.tasks
VISIBILITIES = {"hidden", "after_due_date", "after_published", "visible"}
TOP = {
    *("score", "execution_time", "output", "output_format", "test_output_format", "test_name_format"),
    *("visibility", "stdout_visibility", "extra_data", "tests", "leaderboard"),
}
OF_TEST = {
    *("score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags"),
    *("visibility", "extra_data"),
}
FORMATS = {"text", "html", "simple_format", "md", "ansi"}


def breaches(data: object) -> list[str]:
    """Where a `results.json` is not what Gradescope's autograder specification says; nothing when it is."""
    if not isinstance(data, dict):
        return ["it is no object"]
    found = [f"unknown: {key}" for key in data.keys() - TOP]
    tests = data.get("tests", [])
    if "score" not in data and not (tests and all("score" in test for test in tests)):
        found.append("a score is needed, of all or of each test")
    for where, each, known in [("all", data, TOP), *((test.get("name"), test, OF_TEST) for test in tests)]:
        found += [f"{where}: unknown: {key}" for key in each.keys() - known]
        for key in ("score", "max_score", "execution_time"):
            number = each.get(key, 0)
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                found.append(f"{where}: {key} is no number")
        if each.get("score", 0) > each.get("max_score", math.inf):
            found.append(f"{where}: more than the most")
        for key, allowed in (
            ("visibility", VISIBILITIES),
            ("output_format", FORMATS),
            ("status", {"passed", "failed"}),
        ):
            if key in each and each[key] not in allowed:
                found.append(f"{where}: {key} is {each[key]!r}")
        found += [f"{where}: {key}" for key in ("name", "number", "output") if not isinstance(each.get(key, ""), str)]
    return found


def outcome(student="ann", **changed) -> Outcome:
    """A submission with a perfect first task, a wrong second one, and nothing else."""
    tests = {f"{task.tests}::test_it": "passed" if task is FIRST else "failed" for task in LAB.tasks}
    messages = {name: "off by 0.5 <script>alert(1)</script>" for name, state in tests.items() if state == "failed"}
    found = {"tests": tests, "messages": messages, "tasks": {FIRST.name: float(FIRST.points), SECOND.name: 1.005}}
    graded = GradedSubmission(LAB.folder.name, "key", **{"status": "graded", **found, **changed})
    return Outcome(Submitted(student, LAB, LAB.folder), graded)


def written(path, outcomes, **options) -> list[dict]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in Export(path, **options).write(outcomes)]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"flags": ["a link"], "findings": ["line 1: imports nowhere"], "withheld": {SECOND.name: 1.0}},
        {"status": "refused", "reason": "there is no src/profiling.py"},
        {"tasks": {FIRST.name: math.nan, SECOND.name: 1e9}},
        {"tasks": {}, "tests": {}, "messages": {}},
        {"messages": {f"{SECOND.tests}::test_it": "half a character: \udc80"}},
    ],
    ids=["graded", "flagged", "refused", "odd points", "no tests", "not UTF-8"],
)
@pytest.mark.parametrize("visibility", Visibility)
def test_gradescope_can_read_every_result(tmp_path, changed, visibility):
    (data,) = written(tmp_path / "results.json", [outcome(**changed)], visibility=visibility)
    assert breaches(data) == []


def test_a_test_for_each_task(tmp_path):
    (data,) = written(
        tmp_path / "results.json", [outcome(findings=["line 1: imports nowhere"], withheld={SECOND.name: 1.0})]
    )
    *tasks, for_the_grader = data["tests"]
    assert [(test["name"], test["max_score"]) for test in tasks] == [(task.name, task.points) for task in LAB.tasks]
    assert [(test["score"], test["status"]) for test in tasks[:2]] == [(FIRST.points, "passed"), (1.0, "failed")]
    assert data["score"] == sum(test["score"] for test in tasks)
    assert "off by 0.5" in tasks[1]["output"]
    assert {test["output_format"] for test in data["tests"]} == {"text"}, "what a student wrote is not to be rendered"
    assert for_the_grader["output"] == "line 1: imports nowhere"
    assert "1 points are withheld until the instructor has looked at line 1: imports nowhere" in tasks[1]["output"]
    assert for_the_grader["visibility"] == "hidden"
    assert "score" not in for_the_grader, "it is nothing that earns points"


def test_messages_are_shown_when_grades_are_published_unless_asked_for(tmp_path):
    """They may hold numbers of hidden inputs, and Gradescope takes another submission until the due date."""
    (data,) = written(tmp_path / "results.json", [outcome()])
    assert {data["visibility"], *(test["visibility"] for test in data["tests"])} == {"after_published"}


def test_many_submissions_are_a_folder_of_files(tmp_path):
    failed = Outcome(Submitted("cec", LAB, LAB.folder), None, "no memory")
    assert len(written(tmp_path / "out", [outcome("ann"), outcome("bob"), failed])) == 2
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.json")}
    assert files == {f"{student}/{LAB.folder.name}/results.json" for student in ("ann", "bob")}
    with pytest.raises(CannotExport, match="there are 2: name a folder"):
        written(tmp_path / "results.json", [outcome("ann"), outcome("bob")])
    assert not (tmp_path / "results.json").exists()
