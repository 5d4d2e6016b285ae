"""A class' board through the real judge: honest servers, one that breaks, and some that would have better counts."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.labs.catalog import find_lab, solution_file, solution_folder
from labstaff.grading.many import find_submissions, judge_all
from labstaff.judge.judging import Judge
from labstaff.pytest_plugin import variant_text

pytestmark = pytest.mark.slow

LAB = find_lab("13")
SOLUTION = solution_file(LAB).read_text(encoding="utf-8")
SETTINGS = "        return dict(self._settings)\n"
PLAN = "        return self._scheduler.plan()\n"
WRITE = "self._cache.write(layer, blocks, places, k, v)"
HONEST = {
    "first": variant_text(LAB, solution_folder(LAB) / "servers" / "first_come.py"),
    "prefix": variant_text(LAB, solution_folder(LAB) / "right" / "reserving.py"),
    "preemption": SOLUTION,
}
FEWER = (SETTINGS, '        return {**self._settings, "bits": 2}\n')
FORGED = {
    "says fewer bits": [FEWER],
    "says fewer bits and makes its cache later": [
        FEWER,
        ("self._cache = CACHE(", "self._cache, self._make = None, lambda: CACHE("),
        (WRITE, f"self._cache = self._cache or self._make()\n        {WRITE}"),
    ],
    "says computed": [
        (
            PLAN,
            "        plan = self._scheduler.plan()\n"
            '        for w in plan["work"]:\n'
            '            w["start"], w["tokens"] = w["start"] + len(w["tokens"]) - 1, w["tokens"][-1:]\n'
            "        return plan\n",
        )
    ],
    "gives counts of its own": [(PLAN, '        return {**self._scheduler.plan(), "counts": {"in_time": 99}}\n')],
}
BREAKS = {
    "broken": "of the completion of request",
    "says fewer bits": "the bytes that the server holds from the beginning",
    "says fewer bits and makes its cache later": "the bytes that the steps keep beside the cache",
    "says computed": "and holds nothing",
    "gives counts of its own": "has counts, which the handout does not name",
}


def changed(*changes: tuple[str, str]) -> str:
    """The solution with passages changed, each of which stands there once."""
    text = SOLUTION
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


TEXTS = {
    **HONEST,
    "broken": changed((WRITE, WRITE.replace("k, v", "v, k"))),
    **{student: changed(*changes) for student, changes in FORGED.items()},
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The folder of a course whose submissions the judge has run the board's tests of."""
    course = tmp_path_factory.mktemp("course")
    for student, text in TEXTS.items():
        folder = course / "submitted" / student / LAB.folder.name
        (folder / "src").mkdir(parents=True)
        (folder / "src" / LAB.answer_file.name).write_text(text, encoding="utf-8")
        (folder / "board.json").write_text(json.dumps({"traces": {}, "references": []}), encoding="utf-8")
    run = Judge._run

    def run_the_boards(judge, lab, file, seed, tests, cpu_seconds):
        return run(judge, lab, file, seed, ("TestServer::test_traces_under_the_budget",), cpu_seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "_run", run_the_boards)
        outcomes = list(judge_all(find_submissions(course / "submitted", [LAB]), course / "judged", workers=1))
    assert [outcome.problem for outcome in outcomes] == [""] * len(TEXTS)
    for outcome in outcomes:
        expected = BREAKS.get(outcome.handed_in.student, "")
        assert bool(outcome.judged.messages) == bool(expected)
        assert all(expected in message for message in outcome.judged.messages.values()), outcome.judged.messages
    return course


@pytest.fixture(scope="module")
def rows(course):
    """The table that `lab counts` writes."""
    said = CliRunner().invoke(app, ["counts", str(course / "submitted"), str(course / "counts.csv"), "--lab", "13"])
    assert said.exit_code == 0, said.output
    assert said.output.endswith(f"counts of {len(HONEST)} of {len(TEXTS)} students\n")
    with (course / "counts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_honest_servers_have_their_counts_on_traces_of_the_courses_seed(rows):
    mine = {(row["student"], row["trace"]): row for row in rows if row["student"] in HONEST}
    assert {row["status"] for row in mine.values()} == {"counted"}
    for trace in ("chat", "documents"):
        first, prefix, preemption = (mine[student, trace] for student in HONEST)
        assert {row["tokens"] for row in (first, prefix, preemption)} == {first["tokens"]}, "one trace for everybody"
        assert first["prefix_tokens_not_computed"] == "0"
        assert int(prefix["prefix_tokens_not_computed"]) > 0 == int(prefix["tokens_computed_again"])
        assert int(preemption["requests_in_time"]) >= int(prefix["requests_in_time"])
        assert int(preemption["peak_bytes"]) <= int(preemption["cache_bytes"])
    kept = json.loads((LAB.folder / "board.json").read_text(encoding="utf-8"))["references"][0]["counts"]
    told = {trace: kept[trace]["tokens"] for trace in kept}
    assert {trace: int(mine["first", trace]["tokens"]) for trace in kept} != told, "not the traces that students know"


@pytest.mark.parametrize("student", BREAKS)
def test_others_have_none(rows, student):
    mine = [row for row in rows if row["student"] == student]
    assert [(row["trace"], row["status"], row["requests_in_time"]) for row in mine] == [
        ("chat", "nothing counted", ""),
        ("documents", "nothing counted", ""),
    ]
