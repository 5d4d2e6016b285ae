"""`lab review`: what it prints, stores and returns, with one right version and two wrong ones."""

from __future__ import annotations

import pytest

from labkit.commands import review as command
from labkit.commands.board import show_board
from labkit.review import versions
from labkit.review.stored import load_review
from labkit.review.versions import Kind, NoVersions, Version
from labstaff.derive.build import derive_review
from tests.student import LAB, solution_text, stub_text, student_lab, with_function

TASK = LAB.tasks[0]
RIGHT = Version("right", (TASK.name,), solution_text())
ZERO = with_function(solution_text(), TASK.name, f"def {TASK.name}(*_):\n    return 0, 0")
HALF = with_function(
    f"{solution_text()}\n_right = {TASK.name}\n",
    TASK.name,
    f"def {TASK.name}(*given):\n    return [x / 2 for x in _right(*given)]",
)
WRONG = (
    Version("zero", (TASK.name,), ZERO, "It is 0.", Kind.EXTREMES, ("- return output", "+ return 0, 0")),
    Version("half", (TASK.name,), HALF, "It is half as large.", Kind.RESULTS, ("- return x", "+ return x / 2")),
)
HEAD = f"import numpy as np\nfrom profiling import {TASK.name}\n\n\ndef test_{TASK.name}():\n"
CALL = f"    x = np.ones((2, 3))\n    O = {TASK.name}(x, x, x)[0]\n"
ROUGH = HEAD + CALL + "    assert np.all(O > 0)\n"
CAREFUL = HEAD + CALL + "    assert np.allclose(O, 1)\n"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Lab 01 in a folder of its own, solved, with three versions."""
    monkeypatch.setattr(versions, "source", lambda _lab: (RIGHT, *WRONG))
    return student_lab(tmp_path, solution_text())


def reviewed(lab, text, capsys, **options):
    """The exit status of `lab review` of `text` for the first task, and what it prints."""
    lab.review_file.write_text(text, encoding="utf-8")
    status = command.review_lab(lab, [lab.tasks[0]], **options)
    return status, capsys.readouterr().out


def test_ladder_grows_and_what_is_found_is_revealed_once(lab, capsys):
    status, out = reviewed(lab, ROUGH, capsys)
    assert status == 1
    assert "your own code: your tests accept it" in out
    assert "right versions: 1 of 1 pass" in out
    assert "1 of 2 found   results 0 of 1 · extremes 1 of 1" in out
    assert f"✓ It is 0. (test_{TASK.name})" in out and "+ return 0, 0" in out
    assert "half" not in out, "what is not found is not told"
    status, out = reviewed(lab, CAREFUL, capsys)
    assert status == 0
    assert "2 of 2 found" in out and "✓ It is half as large." in out
    assert "It is 0." not in out, "it was shown before"
    assert load_review(lab).n_found == {TASK.name: 2}
    show_board([lab])
    assert "2 of 2" in capsys.readouterr().out
    status, out = reviewed(lab, CAREFUL, capsys, everything=True)
    assert "It is 0." in out


def test_read_prints_a_version_that_is_not_found(lab, capsys):
    _, out = reviewed(lab, ROUGH, capsys, read=True)
    assert "return [x / 2 for x in _right(*given)]" in out
    assert "It is half" not in out, "where the mistake is, is the question"
    assert "def _right" not in out and "_right = " in out and f"def {LAB.tasks[1].name}" not in out, "only what it uses"
    _, out = reviewed(lab, CAREFUL, capsys, read=True)
    assert "no wrong version is left" in out


def test_right_version_refused_ends_the_search(lab, capsys):
    status, out = reviewed(lab, HEAD + CALL + "    assert O.shape == (3, 2)\n", capsys)
    assert status == 1
    assert f"right versions: 1 of 1 refused\n    by test_{TASK.name}\n" in out
    assert "review.py:8: assert O.shape == (3, 2)   with O = float64 (2, 3)" in out
    assert "found" not in out and "exp(" not in out
    assert load_review(lab).n_found == {TASK.name: 0}


def test_own_code_may_be_unwritten_or_wrong(lab, capsys):
    lab.student_file.write_text(stub_text(), encoding="utf-8")
    assert "your own code: not written yet" in reviewed(lab, CAREFUL, capsys)[1]
    lab.student_file.write_text(ZERO, encoding="utf-8")
    assert f"your own code: test_{TASK.name} fails" in reviewed(lab, CAREFUL, capsys)[1]


def test_stub_starts_nothing(lab, capsys, monkeypatch):
    monkeypatch.setattr(command, "Runs", None)
    status, out = reviewed(lab, derive_review(LAB), capsys)
    assert status == 1
    assert f"test_{TASK.name} is still to be written: labs/{LAB.folder.name}/review.py" in out


def test_closed_versions_leave_the_own_code(lab, capsys, monkeypatch):
    def closed(_lab):
        raise NoVersions("they open later")

    monkeypatch.setattr(versions, "source", closed)
    _, out = reviewed(lab, CAREFUL, capsys)
    assert "your own code: your tests accept it" in out
    assert "lab01: they open later" in out


def test_unreadable_review_is_one_line(lab, capsys):
    assert reviewed(lab, "def test(:\n", capsys) == (
        1,
        "lab01 · review.py has a syntax error in line 1: invalid syntax: def test(:\n",
    )


def test_ctrl_c_prints_what_is_known(lab, capsys, monkeypatch):
    lines = command.Runs.verdicts

    def interrupted(self, jobs):
        yield from lines(self, jobs)
        if jobs and not jobs[0].version.is_right:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.Runs, "verdicts", interrupted)
    status, out = reviewed(lab, ROUGH, capsys)
    assert status == 130
    assert "interrupted" in out and "1 of 2 found" in out
    assert load_review(lab).n_found == {TASK.name: 1}


def test_a_test_that_reads_source_is_shown(lab, capsys):
    reads = f"{CAREFUL}    import inspect\n    assert inspect.getsource({TASK.name})\n"
    _, out = reviewed(lab, reads, capsys)
    assert "When review.py is graded, your instructor will see:" in out
    assert "uses inspect.getsource" in out
    _, out = reviewed(lab, CAREFUL, capsys)
    assert "instructor" not in out
