"""One verdict everywhere: an answer has the same states, points and words in whichever way it is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from student import LAB, quiet_environment
from twenty import TESTS, TWENTY, WHOLE, Answer

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.apart import run_apart, to_the_end, verdict_from
from labkit.suite.prefork import WarmRunner
from labkit.suite.results import task_points
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import State, Verdict

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
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
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


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Every answer's outcome by mode: a function of the answer's name."""
    modes: dict[str, Callable[[Path], Outcome]] = {"pytest": by_pytest, "check": by_check}
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("ATTENTION_LABS_TEST_SECONDS", TEST_SECONDS)
        with WarmRunner() as runner:
            modes["watch"] = lambda folder: by_watch(runner, folder)
            asked = {}
            for answer in TWENTY:
                for mode, judge in modes.items():
                    folder = tmp_path_factory.mktemp("answer")
                    (folder / f"{LAB.module}.py").write_bytes(answer.source)
                    (folder / f"{OTHER.module}.py").write_bytes(OTHER.answer_file.read_bytes())
                    asked[answer.name, mode] = pool.submit(judge, folder)
            done = {key: future.result() for key, future in asked.items()}
    return lambda answer: {mode: done[answer.name, mode] for mode in modes}


@pytest.mark.parametrize("answer", TWENTY, ids=[answer.name for answer in TWENTY])
def test_one_verdict(judged, answer: Answer):
    by_mode = judged(answer)
    expected = by_mode["check"]
    assert {state for state, _ in expected.tests.values()} - {State.PASSED} == answer.states
    assert {task for task, points in expected.points.items() if points < WHOLE[task]} == answer.lost
    assert answer.says in "\n".join(line for _, lines in expected.tests.values() for line in lines)
    for mode, got in by_mode.items():
        if mode in ENDS_WITH_THE_ANSWER and answer.name == "crashes":
            assert not got.tests, "what was known is kept"
            continue
        assert got.points == expected.points, mode
        differ = {
            test: (got.tests.get(test), told) for test, told in expected.tests.items() if got.tests.get(test) != told
        }
        assert not differ, mode
        assert got.tests.keys() == expected.tests.keys(), mode
