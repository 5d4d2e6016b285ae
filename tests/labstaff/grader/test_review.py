"""Grading a review: its points, and what a review in the sandbox can do."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.labs.catalog import find_lab, review_assignment
from labkit.review.versions import Version
from labkit.suite.source_check import check_source
from labstaff.grader import review
from labstaff.grader.review import grade_review, task_share
from labstaff.grader.source import Source
from labstaff.grader.submission import Submission
from tests.student import LAB, solution_text, with_function

TASK = LAB.tasks[0].name
RIGHT = Version("right", (TASK,), solution_text())
WRONG = Version("wrong", (TASK,), with_function(solution_text(), TASK, f"def {TASK}(*_):\n    return 0, 0"), "It is 0.")
SEED = 2**255 + 1  # as large as a course's hidden one
HEAD = f"import numpy as np\nfrom profiling import {TASK}\n\n\ndef test_{TASK}():\n"
CAREFUL = f"{HEAD}    x = np.ones((2, 3))\n    assert np.allclose({TASK}(x, x, x)[0], 1)\n"


def versions(n_right, n_wrong):
    """So many versions of a task, by number."""
    return [Version(str(i), ("a",), "", "wrong." * (i >= n_right)) for i in range(n_right + n_wrong)]


@pytest.mark.parametrize(
    ("failed", "share"),
    [
        ({"0": "", "1": ""}, 0.0),
        ({"0": "", "1": "", "2": "test_a"}, 0.1),
        ({"0": "", "1": "", **{str(i): "test_a" for i in range(2, 10)}}, 0.8),
        ({"0": "", "1": "", **{str(i): "test_a" for i in range(2, 11)}}, 1.0),
        ({"0": "test_a", "1": "", "2": "test_a"}, 0.0),
        ({"0": "", "2": "test_a"}, 0.0),
        ({}, 0.0),
    ],
    ids=["none found", "one", "eight", "nine", "a right one refused", "a right one not run", "nothing run"],
)
def test_share_is_what_is_found_and_full_from_nine_in_ten(failed, share):
    assert task_share(versions(2, 10), failed) == share


def test_points_of_a_review_are_its_own():
    assignment = review_assignment(LAB)
    assert assignment.folder.name == "lab01_review" == find_lab("lab01_review").folder.name
    assert assignment.points == pytest.approx(LAB.review_points)
    assert LAB.points != assignment.points


def test_versions_are_made_once_for_all_threads(monkeypatch):
    made = []

    def one_of_each(lab):
        time.sleep(0.05)  # so that two threads would both be in it
        made.append(lab)
        return (RIGHT, WRONG)

    monkeypatch.setattr(review, "versions_of", one_of_each)
    review._made.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(review._asked, [LAB] * 4)) == [[RIGHT, WRONG]] * 4
    finally:
        review._made.cache_clear()
    assert made == [LAB]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("import inspect\n    assert 'max' in inspect.getsource(standard_attention)", True),
        ("assert standard_attention.__code__.co_names", True),
        ("assert 'max' in open('profiling.py').read()", True),
        ("x = np.ones((2, 3))\n    assert standard_attention(x, x, x)[0].shape == (2, 3)", False),
    ],
)
def test_source_check_shows_what_reads_sources(line, shown):
    assert bool(check_source(f"{HEAD}    {line}\n", review_assignment(LAB))) == shown


@pytest.fixture(scope="module")
def grade():
    """Grades the text of a review on one right and one wrong version of a task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(review, "_asked", lambda _lab: [RIGHT, WRONG])

        def graded(text):
            submission = Submission(review_assignment(LAB), text.encode())
            return grade_review(LAB, submission, SEED, Source([], [], submission.source), False)

        yield graded


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("text", "share", "right", "wrong"),
    [
        (CAREFUL, 1.0, "passed", "passed"),
        pytest.param(f"print('x' * 10**6)\n{CAREFUL}", 1.0, "passed", "passed", marks=pytest.mark.slow),
        pytest.param(f"{HEAD}    pass\n", 0.0, "passed", "failed", marks=pytest.mark.slow),
        (f"{HEAD}    assert False\n", 0.0, "failed", "failed"),
        pytest.param(f"import nothing_of_that_name\n{CAREFUL}", 0.0, "failed", "failed", marks=pytest.mark.slow),
        pytest.param(
            f"{HEAD}    import os\n    os.kill(os.getppid(), 9)\n", 0.0, "failed", "failed", marks=pytest.mark.slow
        ),
        pytest.param(
            f"{HEAD}    import subprocess\n    subprocess.run(['true'])\n",
            0.0,
            "failed",
            "failed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{HEAD}    assert not __import__('pathlib').Path('/course/solutions').exists()\n",
            0.0,
            "passed",
            "failed",
            marks=pytest.mark.slow,
        ),
        pytest.param("def test(:\n", 0.0, "failed", "failed", marks=pytest.mark.slow),
    ],
    ids=["careful", "prints", "asserts nothing", "refuses", "import", "kill", "process", "solutions", "syntax"],
)
def test_graded_in_the_sandbox(grade, text, share, right, wrong):
    result = grade(text)
    assert result.shares[TASK] == share
    tests = LAB.tasks[0].tests
    assert result.tests[f"{tests}::right"] == right
    assert result.tests[f"{tests}::wrong"] == wrong
