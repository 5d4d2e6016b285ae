"""One verdict everywhere: an answer has the same states, points and words in whichever way it is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from student import LAB, quiet_environment
from twenty import TESTS, TWENTY, WHOLE, Answer

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.apart import run_apart, to_the_end
from labkit.suite.prefork import WarmRunner
from labkit.suite.results import task_points
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import State, Verdict, verdict_from
from labstaff.judge.judging import Judge
from labstaff.judge.submission import Submission

OTHER = find_lab("03")
TEST_SECONDS = "1"
ENDS_WITH_THE_ANSWER = ("pytest",)
"""Modes in which an answer that ends its process ends the run."""


@dataclass(frozen=True)
class Outcome:
    """What an answer got: by test its state and what it was told, by task the points."""

    tests: dict[str, tuple[State, tuple[str, ...]]]
    points: dict[str, float]


def outcome(verdicts: list[Verdict]) -> Outcome:
    """The verdicts of a whole run of the suite."""
    verdicts = [verdict for verdict in verdicts if verdict.task in WHOLE]
    return Outcome(
        {f"{verdict.task}::{verdict.test}": (verdict.state, verdict.lines) for verdict in verdicts},
        {
            task.name: task_points(task, [verdict for verdict in verdicts if verdict.task == task.name])
            for task in LAB.tasks
            if task.name in WHOLE
        },
    )


def by_pytest(folder: Path) -> Outcome:
    """`uv run pytest`, on this lab and another one beside it."""
    told = folder / "verdicts.json"
    command = [sys.executable, "-m", "pytest", "-p", "verdicts_as_data", "--src", str(folder)]
    command += [f"{LAB.suite_file}::{tests}" for tests in TESTS]
    command += [f"{OTHER.suite_file}::TestSafeSoftmax::test_one_number"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**quiet_environment(), "VERDICTS": str(told), "PYTHONPATH": path}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300)
    if not told.exists():
        return Outcome({}, {})
    return outcome([verdict_from(each) for each in json.loads(told.read_text(encoding="utf-8"))])


def by_check(folder: Path) -> Outcome:
    """`lab check` and a report's cells."""
    return outcome(run_apart(LAB, "--src", str(folder), tests=TESTS).verdicts)


def by_watch(runner: WarmRunner, folder: Path) -> Outcome:
    """`lab watch`."""

    def once(more: Sequence[str], _: object) -> SuiteRun:
        return runner.run(LAB.label, "--src", str(folder), *more, tests=TESTS)

    return outcome(to_the_end(once).verdicts)


def by_sandbox(runner: WarmRunner, folder: Path) -> Outcome:
    """`--sandboxed`, which is how the judge runs a suite."""
    return outcome(runner.run(LAB.label, "--src", str(folder), "--sandboxed", tests=TESTS).verdicts)


def by_judge(judge: Judge, folder: Path) -> tuple[dict[str, str], dict[str, float]]:
    """What `lab grade` and nbgrader's autograde record: the messages of tests that fail, and the points."""
    source = (folder / f"{LAB.module}.py").read_bytes()
    result = judge.judge(Submission(LAB, source, "", []), seed=0)
    messages = {name: text for name, text in result.messages.items() if name.split("::")[0] in TESTS}
    return messages, {task: points for task, points in result.tasks.items() if task in WHOLE}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Every answer's outcome by mode: a function of the answer's name."""
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(2) as pool,
    ):
        patch.setenv("ATTENTION_LABS_TEST_SECONDS", TEST_SECONDS)
        with WarmRunner() as runner, WarmRunner(prepare="labstaff.judge.sandbox:keep_boxed") as boxed, Judge() as judge:
            modes: dict[str, Callable[[Path], Any]] = {
                "pytest": by_pytest,
                "check": by_check,
                "watch": lambda folder: by_watch(runner, folder),
                "sandboxed": lambda folder: by_sandbox(boxed, folder),
                "judge": lambda folder: by_judge(judge, folder),
            }
            asked = {}
            for mode, judge_so in modes.items():  # a judge takes one after the other: its turns come one after another
                for answer in TWENTY:
                    folder = tmp_path_factory.mktemp("answer")
                    (folder / f"{LAB.module}.py").write_bytes(answer.source)
                    (folder / f"{OTHER.module}.py").write_bytes(OTHER.answer_file.read_bytes())
                    turn = _one_at_a_time(judge_so) if mode == "judge" else judge_so
                    asked[answer.name, mode] = pool.submit(turn, folder)
            done = {key: future.result() for key, future in asked.items()}
    return lambda answer: {mode: done[answer.name, mode] for mode in modes}


_turn = threading.Lock()


def _one_at_a_time(judge_so: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def alone(folder: Path) -> Any:
        with _turn:
            return judge_so(folder)

    return alone


@pytest.mark.parametrize("answer", TWENTY, ids=[answer.name for answer in TWENTY])
def test_one_verdict(judged, answer: Answer):
    by_mode = judged(answer)
    expected = by_mode["check"]
    assert {state for state, _ in expected.tests.values()} - {State.PASSED} == answer.states
    assert {task for task, points in expected.points.items() if points < WHOLE[task]} == answer.lost
    assert answer.says in "\n".join(line for _, lines in expected.tests.values() for line in lines)
    for mode in ("pytest", "watch", "sandboxed"):
        got = by_mode[mode]
        if mode in ENDS_WITH_THE_ANSWER and answer.name == "crashes":
            assert not got.tests, "what was known is kept"
            continue
        assert got.points == expected.points, mode
        differ = {
            test: (got.tests.get(test), told) for test, told in expected.tests.items() if got.tests.get(test) != told
        }
        assert not differ, mode
        assert got.tests.keys() == expected.tests.keys(), mode
    messages, points = by_mode["judge"]
    assert points == expected.points
    classes = {task.name: task.tests for task in LAB.tasks}
    told = {
        f"{classes[name.split('::')[0]]}::{name.split('::')[1]}": "\n".join(lines)
        for name, (state, lines) in expected.tests.items()
        if state is not State.PASSED
    }
    assert messages == told
