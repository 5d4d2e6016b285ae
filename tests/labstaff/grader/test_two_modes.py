"""A submission gets the same states, messages and points in process and in the sandbox."""

from __future__ import annotations

import functools
import signal
import socket
from dataclasses import dataclass

import pytest

from labkit.suite.forked import ForkedRunner
from labkit.suite.messages import failure_lines, result_lines
from labkit.suite.results import Failure, How, State, TestResult, task_share
from labstaff.grader.sandbox import Sandbox, use
from tests.student import LAB, solution_text, with_function

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

TASKS = {task.name: task for task in LAB.tasks if task.name in ("standard_attention", "estimate_attention_memory")}
"""The others cost time and show nothing more."""

ATTENTION, ESTIMATE = ("(Q, K, V, mask=None)", "(Q, K, V, mask)"), ("(*sizes, **options)", "(*sizes, **options)")


@dataclass(frozen=True)
class Answer:
    """A file, the state of its tests that do not pass, and a part of what they say; neither where all pass."""

    source: bytes
    state: State = State.PASSED
    says: str = ""


def changed(body: str, state: State = State.PASSED, says: str = "", *, estimate: bool = False) -> Answer:
    """The solution with another body for a task; `solved(...)` in it calls the right one."""
    name = "estimate_attention_memory" if estimate else "standard_attention"
    head, call = ESTIMATE if estimate else ATTENTION
    body = body.replace("solved(...)", f"_solved{call}")
    text = with_function(solution_text(), name, f"_solved = {name}\n\n\ndef {name}{head}:\n{body}")
    return Answer(text.encode(), state, says)


CHECK = "\n\nif __name__ == '__main__':\n    raise SystemExit('a self-check')\n"
CRASH = (
    "    if Q.ndim > 3:\n        np.lib.stride_tricks.as_strided(Q, (2**40,), (2**20,)).sum()\n    return solved(...)"
)
SLOW = "    for _ in range(50_000):\n        pass\n    return solved(...)"
ANSWERS = {
    "right": Answer(solution_text().encode()),
    "self-check": Answer((solution_text() + CHECK).encode()),
    "byte-order mark": Answer(("\ufeff" + solution_text()).encode()),
    "CRLF": Answer(solution_text().replace("\n", "\r\n").encode()),
    "prints": changed("    print(Q)\n    return solved(...)"),
    "slow": changed(SLOW, estimate=True),
    "wrong": changed("    O, P = solved(...)\n    return O, 2 * P", State.WRONG, "weights is off by"),
    "endless": changed("    while True: pass", State.TOO_SLOW, "was still running after 2 s of CPU", estimate=True),
    "crashing": changed(CRASH, State.CRASHED, "its process ended: SIGSEGV"),
    "syntax error": Answer(b"def f(:\n", State.UNUSABLE, "profiling.py has a syntax error in line 1"),
}


def outcome(results: list[TestResult]) -> tuple[dict[str, tuple[State, Failure]], dict[str, float]]:
    """By test its state and failure, by task the share of its points."""
    shares = {task.name: task_share(task, (v for v in results if v.task == task.name)) for task in TASKS.values()}
    return {f"{result.task}::{result.test}": (result.state, result.failure) for result in results}, shares


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def in_two_seconds(control: socket.socket | None = None) -> None:
    """In a run's process: end a test early, and use a sandbox."""
    from labkit.suite import limits

    limits.MAX_TEST_SECONDS = 2.0
    if control:
        use(control)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_both_modes_give_the_same(sandbox, answer, tmp_path):
    (tmp_path / f"{LAB.module}.py").write_bytes(answer.source)
    options, tests = ("--src", str(tmp_path)), tuple(task.tests for task in TASKS.values())
    in_process = ForkedRunner().run(LAB.label, *options, tests=tests, prepare=in_two_seconds)
    prepare = functools.partial(in_two_seconds, sandbox.control)
    sandboxed = ForkedRunner().run(LAB.label, *options, "--sandboxed", tests=tests, prepare=prepare)
    assert sandboxed.ended.how is How.FINISHED
    if answer.state is State.CRASHED:  # in process that ends the run
        n = len(in_process.results)
        assert [(v.test, v.state, v.failure) for v in in_process.results] == [
            (v.test, v.state, v.failure) for v in sandboxed.results[:n]
        ]
        assert in_process.ended.status == -signal.SIGSEGV
        assert answer.says in result_lines(sandboxed.results[n])[0]
        return
    assert outcome(in_process.results) == outcome(sandboxed.results)

    states, shares = outcome(in_process.results)
    after_slow_tests = {State.NOT_RUN} if answer.state is State.TOO_SLOW else set()
    assert {state for state, _ in states.values()} <= {State.PASSED, answer.state} | after_slow_tests
    assert any(
        state is answer.state and answer.says in failure_lines(state, failure)[0] for state, failure in states.values()
    )
    assert all(share == 1.0 for share in shares.values()) == (answer.state is State.PASSED)
