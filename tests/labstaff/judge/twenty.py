"""Answers to Lab 01 of every sort, and what becomes of each: the same in every mode (test_one_verdict.py)."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.verdict import State
from tests.student import LAB, solution_text, stub_text, with_function

ATTENTION, ESTIMATE = "standard_attention", "estimate_attention_memory"
HEADS = {
    ATTENTION: "(Q, K, V, mask=None)",
    ESTIMATE: "(seq_len, d_model, dtype_bytes=4, batch_size=1)",
}
CALLS = {ATTENTION: "_solved(Q, K, V, mask)", ESTIMATE: "_solved(seq_len, d_model, dtype_bytes, batch_size)"}
WHOLE = {task.name: task.points for task in LAB.tasks if task.name in HEADS}
"""The points of the two tasks that are judged: the others cost time and say nothing more."""
TESTS = tuple(task.tests for task in LAB.tasks if task.name in WHOLE)
ALL = frozenset(WHOLE)

TEST_SECONDS = "2"
"""The limit of a test while they are judged; by the clock it is ten times that."""

OTHER = find_lab("03")
BESIDE_TESTS = {task.name: task.tests for task in OTHER.tasks if task.name in ("safe_softmax", "online_softmax_stats")}
"""What is judged of another lab in the same run: the task's name, and its class."""

_beside = solution_file(OTHER).read_text(encoding="utf-8")
BESIDE = {
    "": f"{_beside}\n\ndef online_softmax_stats(x_blocks):\n    return x_blocks.nothing\n".encode(),
    "endless": f"{_beside}\n\ndef online_softmax_stats(x_blocks):\n    while True: pass\n".encode(),
}
"""The other lab's file, by the name of the answer that it lies beside: two endless tasks share nothing."""


@dataclass(frozen=True)
class Answer:
    """A file that is handed in, and what becomes of it.

    `states` are those of the tests that do not pass, `lost` the tasks that do not have all their points, and `says` is
    part of a message (nothing where every test passes).
    """

    name: str
    source: bytes
    states: frozenset[State] = frozenset()
    lost: frozenset[str] = frozenset()
    says: str = ""


def changed(name: str, task: str, body: str, state: State, says: str) -> Answer:
    """The solution with another body for `task`; `_solved` is the right one."""
    source = with_function(solution_text(), task, f"_solved = {task}\n\n\ndef {task}{HEADS[task]}:\n{body}")
    return Answer(name, source.encode(), frozenset({state}), frozenset({task}), says)


def passing(name: str, source: str) -> Answer:
    """A file of which every test passes."""
    return Answer(name, source.encode())


def unusable(name: str, source: bytes, says: str, state: State = State.UNUSABLE) -> Answer:
    """A file of which nothing can be judged."""
    return Answer(name, source, frozenset({state}), ALL, says)


SELF_CHECK = """

if __name__ == "__main__":
    import numpy.testing
    import sys
    numpy.testing.assert_allclose(standard_attention(*3 * [np.eye(2)])[1].sum(-1), 1)
    sys.exit(0)
"""
CRASH = """    if Q.ndim > 3:
        np.lib.stride_tricks.as_strided(Q, shape=(2**40,), strides=(2**20,)).sum()
    return _solved(Q, K, V, mask)"""
WAIT = f"""    import time  # and one of the tests asks for a batch of 7
    while batch_size == 7:
        time.sleep(1)
    return {CALLS[ESTIMATE]}"""
SLOW = f"""    for _ in range(50_000):
        pass
    return {CALLS[ESTIMATE]}"""

TWENTY = [
    passing("right", solution_text()),
    passing("right, with a self-check", solution_text() + SELF_CHECK),
    passing("right, with a byte-order mark", "\ufeff" + solution_text()),
    passing("right, with CRLF", solution_text().replace("\n", "\r\n")),
    passing(
        "right, and prints",
        with_function(
            solution_text(),
            ATTENTION,
            f"_solved = {ATTENTION}\n\n\ndef {ATTENTION}{HEADS[ATTENTION]}:\n"
            f"    print(Q)\n    return {CALLS[ATTENTION]}",
        ),
    ),
    passing(
        "right, and slow",
        with_function(solution_text(), ESTIMATE, f"_solved = {ESTIMATE}\n\n\ndef {ESTIMATE}{HEADS[ESTIMATE]}:\n{SLOW}"),
    ),
    Answer("untouched", stub_text().encode(), frozenset({State.NOT_STARTED}), ALL, "still raises NotImplementedError"),
    changed(
        "wrong by a factor",
        ATTENTION,
        "    output, weights = _solved(Q, K, V, mask)\n    return output, 2 * weights",
        State.WRONG,
        "weights is off by",
    ),
    changed("wrong, and prints", ESTIMATE, "    print('x\\n' * 300)\n    return {}", State.WRONG, "lacks Q_memory"),
    changed("returns None", ESTIMATE, "    pass", State.WRONG, "None, expected a dict"),
    changed(
        "raises", ESTIMATE, "    return seq_len.bytes", State.CRASHED, "raised AttributeError: 'int' object has no"
    ),
    changed("raises SystemExit", ESTIMATE, "    raise SystemExit(0)", State.CRASHED, "raised SystemExit: 0"),
    changed(
        "endless",
        ESTIMATE,
        "    while True: pass",
        State.TOO_SLOW,
        f"{ESTIMATE} was still running after {TEST_SECONDS} s of CPU",
    ),
    changed(
        "waits",
        ESTIMATE,
        WAIT,
        State.TOO_SLOW,
        f"{ESTIMATE} was still running after {TEST_SECONDS}0 s by the clock, last seen at",
    ),
    changed("crashes", ATTENTION, CRASH, State.CRASHED, "its process ended: SIGSEGV"),
    Answer(
        "a task is missing",
        solution_text().replace(f"def {ESTIMATE}", "def estimate").encode(),
        frozenset({State.MISSING}),
        frozenset({ESTIMATE}),
        f"defines no {ESTIMATE}: was it renamed",
    ),
    unusable("syntax error", b"def f(:\n", "profiling.py has a syntax error in line 1: invalid syntax: def f(:"),
    unusable(
        "raises at import", solution_text().encode() + b"\n1 / 0\n", "importing profiling.py failed: ZeroDivision"
    ),
    unusable("imports what is not there", b"from numpy import nothing\n", "cannot import name 'nothing'"),
    unusable("not UTF-8", b"# caf\xe9\n", "profiling.py is not UTF-8 text"),
    unusable("empty", b"", "profiling.py defines no standard_attention", State.MISSING),
    Answer(
        "changes its argument",
        with_function(
            solution_text(),
            ATTENTION,
            f"_solved = {ATTENTION}\n\n\ndef {ATTENTION}{HEADS[ATTENTION]}:\n"
            "    result = _solved(Q, K, V, mask)\n    Q *= 2\n    return result",
        ).encode(),
        frozenset({State.WRONG}),
        frozenset({ATTENTION}),
        "Q, an argument, was changed in place",
    ),
]
