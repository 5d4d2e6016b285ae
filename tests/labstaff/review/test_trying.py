"""`python -m labstaff.review`: what it writes, and when it writes nothing."""

from __future__ import annotations

import pytest
import typer

from labkit.review.runs import Runs
from labkit.review.versions import Version
from labstaff.review import __main__ as trying
from tests.student import LAB, solution_text, with_function

TASK = LAB.tasks[0].name
RIGHT = Version("right", (TASK,), solution_text())
ZERO = with_function(solution_text(), TASK, f"def {TASK}(*_):\n    return 0, 0")
VERSIONS = RIGHT, Version("zero", (TASK,), ZERO, "It is 0.")
HEAD = f"import numpy as np\nfrom profiling import {TASK}\n\n\ndef test_{TASK}():\n    x = np.ones((2, 3))\n"


@pytest.fixture
def tried(tmp_path, monkeypatch, capsys):
    """A function that tries a text as the model answer: the exit status, what was written, and what was printed."""
    file, written = tmp_path / "review.py", []
    monkeypatch.setattr(trying, "versions_of", lambda _lab: VERSIONS)
    monkeypatch.setattr(trying, "solution_file", lambda _lab: file)
    monkeypatch.setattr(trying, "write_found", lambda _lab, missed, tests: written.append((missed, tests)))

    def run(text):
        written.clear()
        file.write_text(HEAD + text, encoding="utf-8")
        with pytest.raises(typer.Exit) as ended:
            trying.main(LAB.number)
        return ended.value.exit_code, written[:], capsys.readouterr().out

    return run


def test_what_is_not_found_is_written(tried):
    status, written, out = tried(f"    {TASK}(x, x, x)\n")
    assert (status, written) == (1, [(["zero"], {})])
    assert "not found: zero" in out and "0 of 1 found: at least 95%" in out


def test_nothing_is_written_where_a_right_version_is_refused(tried):
    status, written, out = tried(f"    assert {TASK}(x, x, x)[0].sum() == 7\n")
    assert (status, written) == (1, [])
    assert "right is refused at seed 0" in out
    assert "review.json is left as it is: the model answer refuses a right version" in out


def test_long_answers_are_named(tried):
    lines = "    x = x + 0\n" * (trying.lines_allowed(LAB) + 1)
    assert f"lines: at most {trying.lines_allowed(LAB)}" in tried(f"\n\n{lines}")[2]


ONES = f"\n\ndef test_{TASK}_ones():\n    x = np.ones((2, 3))\n    assert np.allclose({TASK}(x, x, x)[0], 1)\n"


def test_the_test_that_finds_a_mistake_is_written(tried):
    status, written, _ = tried(f"    {TASK}(x, x, x)\n{ONES}")
    assert status == 1, "the other tasks have no tests"
    assert written == [([], {"zero": f"test_{TASK}_ones"})]


@pytest.mark.parametrize("test", [f"test_{TASK}_ones", f"test_{TASK}", "test_of_yore"])
def test_known_test_is_run_first_and_the_others_if_it_does_not_find(tmp_path, monkeypatch, test):
    file, runs = tmp_path / "review.py", []
    file.write_text(f"{HEAD}    {TASK}(x, x, x)\n{ONES}", encoding="utf-8")
    monkeypatch.setattr(trying, "versions_of", lambda _lab: VERSIONS)
    verdict = Runs._verdict
    monkeypatch.setattr(
        Runs, "_verdict", lambda self, run, job, folder: runs.append(job.test) or verdict(self, run, job, folder)
    )
    tried = trying.try_answer(LAB, file, [TASK], seeds=(0,), tests={"zero": test})
    assert (tried.problems, tried.missed, tried.tests) == ([], [], {"zero": f"test_{TASK}_ones"})
    assert runs == (["", test] if test.endswith("ones") else ["", test, ""])
