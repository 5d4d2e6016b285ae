"""No points, state or flag hangs on a sentence: the same submissions are graded alike where every text is "x"."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labstaff.derive.build import derive_stub
from labstaff.grader import grade, runner
from labstaff.grader.grade import Grader
from labstaff.grader.submission import Submission

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

LAB = find_lab("03")
SOLUTION = solution_file(LAB).read_text(encoding="utf-8")
FIRST, SECOND = (task.name for task in LAB.tasks[:2])


def changed(*lines: str) -> str:
    """The solution, whose second task begins with these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"{SOLUTION}\n_solved = {SECOND}\n\n\ndef {SECOND}(*args):\n{body}    return _solved(*args)\n"


SUBMISSIONS = {
    "right": SOLUTION,
    "untouched": derive_stub(LAB),
    "wrong type": changed("return None"),
    "endless": changed("while True: pass"),
    "ends its process": changed("import os", "os._exit(3)"),
    "memory that no meter sees": f"{SOLUTION}\nWORKSPACE = np.ones(1 << 23)\n",
    "syntax error": "def f(:\n",
    "another name": SOLUTION.replace(f"def {FIRST}(", "def another("),
}
prepare_run = runner._prepare


def in_half_a_second(control: socket.socket) -> None:
    """In a suite's process: end a test early, and have a worker end but a few times."""
    from labkit.suite import limits
    from labstaff.grader import remote

    limits.MAX_TEST_SECONDS, remote.MAX_STARTS = 0.5, 16  # a call with a memory limit starts one too
    prepare_run(control)


def without_texts(control: socket.socket) -> None:
    """The same, and what a submission's exceptions, comparisons and limits say is "x"."""
    from labkit.suite import finder, limits, messages, plugin
    from labkit.testing import memory_limit
    from labstaff.grader import remote

    explain, of_its_kind = messages.explain, remote._of_its_kind

    def explain_in_silence(*args):
        state, failure = explain(*args)
        return state, dataclasses.replace(failure, message="x", cause="", notes=())

    def unusable_in_silence(raised):
        error = of_its_kind(raised)
        if isinstance(error, finder.Unusable):
            error.args = ("x",)
        return error

    plugin.explain, remote._of_its_kind = explain_in_silence, unusable_in_silence
    messages.how_it_ended = lambda status: "x"
    remote.needs_more = memory_limit.needs_more = lambda *_: "x"
    limits.TookTooLong.__str__ = lambda error: "x"
    in_half_a_second(control)


def verdicts(monkeypatch, prepare):
    """By submission: the results of its tests, the points, and for each flag what it is about."""
    monkeypatch.setattr(runner, "_prepare", prepare)
    with Grader([LAB]) as grader:
        graded = {name: grader.grade(Submission(LAB, text.encode()), 1) for name, text in SUBMISSIONS.items()}
    return {name: (each.tests, each.shares, [f.partition(":")[0] for f in each.flags]) for name, each in graded.items()}


def test_no_verdict_is_read_from_a_text(monkeypatch):
    with_texts = verdicts(monkeypatch, in_half_a_second)
    monkeypatch.setattr(grade, "result_lines", lambda result: ("x",))
    monkeypatch.setattr(grade, "ending_text", lambda ended: "x")
    assert verdicts(monkeypatch, without_texts) == with_texts
    whole = {task.name: 1.0 for task in LAB.tasks}
    assert with_texts["right"][1:] == (whole, [])
    assert with_texts["ends its process"][1][FIRST] == 1.0, "its own points and no other's"
    assert with_texts["ends its process"][2] == ["its suite was cut short"], "tests were left out, and run again"
    flags = with_texts["memory that no meter sees"][2]
    assert flags and set(flags) <= set(whole), "one for each task whose memory is measured from outside"
