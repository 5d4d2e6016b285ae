"""Reviews of any quality, run on one right and one wrong version of a task."""

from __future__ import annotations

import functools
import time

import pytest

from labkit.review import plugin, runs
from labkit.review.file import read_review
from labkit.review.runs import Job, Runs
from labkit.review.stored import Verdict
from labkit.review.versions import Version
from labkit.suite import limits
from tests.student import LAB, solution_text, student_lab, with_function

TASK = LAB.tasks[0].name
RIGHT = Version("right", (TASK,), solution_text())
WRONG = Version("wrong", (TASK,), with_function(solution_text(), TASK, f"def {TASK}(*_):\n    return 0, 0"), "It is 0.")
HEAD = "import numpy as np\nfrom profiling import standard_attention\n\n\ndef test_standard_attention():\n"
CALL = "    x = np.ones((2, 3))\n    O = standard_attention(x, x, x)[0]\n"
REVIEWS = {
    "careful": HEAD + CALL + "    assert np.allclose(O, 1)\n",
    "asserts nothing": HEAD + CALL,
    "prints": HEAD + "    print('word\\n' * 10_000)\n" + CALL + "    assert np.allclose(O, 1)\n",
    "asks too much": HEAD + CALL + "    assert O.sum() == 7\n",
    "never ends": HEAD + "    while True:\n        pass\n",
    "never ends when imported": "while True:\n    pass\n\n\n" + HEAD + CALL,
    "cannot be imported": "import nothing_of_that_name\n" + HEAD + CALL,
    "ends the process": "import os\n" + HEAD + "    os._exit(0)\n",
    "exits": HEAD + "    raise SystemExit(0)\n",
    "skips": "import pytest\n" + HEAD + "    pytest.skip()\n",
    "calls it wrongly": HEAD + "    standard_attention(1, 2, 3)\n",
}


def in_a_moment():
    """For the process of a run: short limits."""
    limits.MAX_TEST_SECONDS = plugin.IMPORT_SECONDS = 0.3


def runs_of(folder, text, **options):
    """`Runs` of a review whose file is `text`."""
    lab = student_lab(folder)
    lab.review_file.write_text(text, encoding="utf-8")
    return Runs(lab, read_review(lab), **options)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Of a review about the right version and about the wrong one."""

    @functools.cache
    def verdicts_of(name):
        run = runs_of(tmp_path_factory.mktemp("review"), REVIEWS[name], prepare=in_a_moment)
        said = {job.version.name: verdict for job, verdict in run.verdicts([Job(TASK, RIGHT), Job(TASK, WRONG)])}
        return said["right"], said["wrong"]

    return verdicts_of


def test_careful_review_accepts_right_and_finds_wrong(verdicts):
    right, wrong = verdicts("careful")
    assert right == Verdict()
    assert wrong.failed == "test_standard_attention"
    assert wrong.lines[0] == "review.py:8: assert np.allclose(O, 1)   with O = 0"


def test_review_that_asserts_nothing_accepts_everything(verdicts):
    assert verdicts("asserts nothing") == (Verdict(), Verdict())


@pytest.mark.slow
def test_prints_change_nothing(verdicts):
    right, wrong = verdicts("prints")
    assert right.accepted
    assert not wrong.accepted


def test_refusal_names_line_and_input(verdicts):
    right, _ = verdicts("asks too much")
    assert right.lines[0] == "review.py:8: assert O.sum() == 7   with O = float64 (2, 3)"
    assert "7" in right.lines[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("never ends", "still running after 0.3 s of CPU time", marks=pytest.mark.slow),
        ("never ends when imported", "still running after 0.3 s of CPU time"),
        ("cannot be imported", "it cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("ends the process", "ended their process: it left with status 0"),
        pytest.param("exits", "SystemExit", marks=pytest.mark.slow),
        pytest.param("skips", "no test of this task was run", marks=pytest.mark.slow),
    ],
)
def test_what_does_not_end_in_results_accepts_nothing(verdicts, name, said):
    for verdict in verdicts(name):
        assert said in "\n".join(verdict.lines)


def test_lines_of_a_version_are_not_shown(verdicts):
    right, _ = verdicts("calls it wrongly")
    assert right.lines[0] == "review.py:6: standard_attention(1, 2, 3)"
    assert not [line for line in right.lines if "profiling.py" in line]


def test_what_is_known_is_not_run_again(tmp_path):
    known = {}
    text = REVIEWS["careful"]
    first = runs_of(tmp_path / "first", text, known=known)
    list(first.verdicts([Job(TASK, RIGHT)]))
    again = runs_of(tmp_path / "again", f"# a comment\n{text}", known=known)
    assert [verdict for _, verdict in again.verdicts([Job(TASK, RIGHT)])] == [Verdict()]
    assert again.cpu_seconds == 0
    changed = runs_of(tmp_path / "changed", text.replace("1)", "2)"), known=known)
    assert changed.key(Job(TASK, RIGHT)) not in known


def test_ctrl_c_ends_what_is_under_way_and_keeps_what_is_known(tmp_path, monkeypatch):
    """A test that would wait for ever is killed, not waited for."""
    begun = tmp_path / "begun"
    waits = f"{HEAD}    import pathlib, time\n    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(10_000)\n"
    known: dict[str, Verdict] = {}
    run = runs_of(tmp_path, waits, known=known)
    known[run.key(Job(TASK, RIGHT))] = Verdict()

    def interrupted(_futures):
        while not begun.exists():
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run.verdicts([Job(TASK, RIGHT), Job(TASK, WRONG)]))
    assert list(known.values()) == [Verdict()]


@pytest.mark.slow
def test_seed_decides_what_is_drawn(tmp_path):
    text = HEAD + "    x = np.random.rand()\n    assert x < 0\n"
    lines = []
    for number, seed in enumerate((0, 0, 1)):
        run = runs_of(tmp_path / str(number), text, seed=seed)
        lines += [verdict.lines for _, verdict in run.verdicts([Job(TASK, RIGHT)])]
    assert lines[0] == lines[1] != lines[2]
