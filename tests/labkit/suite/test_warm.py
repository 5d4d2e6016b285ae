"""Runs in forked children: each starts afresh, none can take the parent along."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit.suite.verdict import Kind, State
from labkit.suite.warm import WarmRunner
from tests.student import LAB, quiet_environment, solution_text, stub_text

ONE = ("TestEstimateAttentionMemory::test_worked_example",)
ONE_TASK = "estimate_attention_memory"
HEAD = f"def {ONE_TASK}(seq_len, d_model, dtype_bytes=4, batch_size=1):\n"


@pytest.fixture(scope="module")
def warm():
    """One parent for all tests: what one run does must not reach the next."""
    with WarmRunner() as runner:
        yield runner


def judge(warm, folder, source, **options):
    """Run one test on `source`."""
    (folder / LAB.answer_file.name).write_text(source, encoding="utf-8")
    return warm.run(LAB.label, "--src", str(folder), tests=ONE, **options)


def test_each_run_reads_the_file_again(warm, tmp_path):
    assert [v.state for v in judge(warm, tmp_path, stub_text()).verdicts] == [State.NOT_STARTED]
    assert [v.state for v in judge(warm, tmp_path, solution_text()).verdicts] == [State.PASSED]


def test_a_verdict_comes_back_as_it_was(warm, tmp_path):
    """Told as each is reached, and together at the end: a kind is one of `Kind`, and no text like it."""
    (tmp_path / LAB.answer_file.name).write_text(solution_text(), encoding="utf-8")
    tests = (*ONE, "TestEstimateAttentionMemory::test_nothing_is_allocated")
    whole = warm.run(LAB.label, "--src", str(tmp_path), tests=tests).verdicts
    ends = f"{solution_text()}\n\nestimate = {ONE_TASK}\n\n\n{HEAD}    import os\n    if seq_len == 1500: os._exit(0)\n"
    ends += "    return estimate(seq_len, d_model, dtype_bytes, batch_size)\n"
    (tmp_path / LAB.answer_file.name).write_text(ends, encoding="utf-8")
    part = warm.run(LAB.label, "--src", str(tmp_path), tests=tests).verdicts
    assert [verdict.kind for verdict in whole] == [Kind.EXACT, Kind.SMALL]
    assert part == whole[:1]
    assert all(type(verdict.kind) is Kind and type(verdict.state) is State for verdict in (*whole, *part))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    import os\n    os._exit(0)\n", "the run ended without a result"),
        ("    import os\n    os.kill(os.getpid(), 9)\n", "the run ended without a result"),
        (
            "    import signal\n    signal.alarm(0); signal.setitimer(0, 0)\n    while True: pass\n",
            "did not end within 2 s",
        ),
    ],
    ids=["exits", "kills_itself", "disarms_the_limit"],
)
def test_a_run_that_dies_is_reported_and_the_next_goes_on(warm, tmp_path, body, says):
    run = judge(warm, tmp_path, HEAD + body, seconds=2)
    assert says in run.problem
    assert run.verdicts == []
    assert judge(warm, tmp_path, solution_text()).verdicts[0].passed


def test_what_a_run_changes_is_gone_in_the_next(warm, tmp_path):
    judge(warm, tmp_path, "import numpy\nnumpy.float32 = numpy.float64\n" + HEAD + "    pass\n")
    assert judge(warm, tmp_path, solution_text()).verdicts[0].passed


def test_a_test_that_is_not_there_is_a_problem(warm):
    assert "not found" in warm.run(LAB.label, "--solutions", tests=("TestNothing",)).problem


@pytest.mark.parametrize("name", ["pytest", "numpy", "sitecustomize", "hypothesis"])
def test_nothing_is_imported_from_the_current_folder(tmp_path, name):
    """Which may be a student's: the fork server and its runs are isolated from it."""
    (tmp_path / f"{name}.py").write_text("import os; os._exit(3)")
    program = (
        "from labkit.suite.warm import WarmRunner\n"
        "if __name__ == '__main__':\n"
        f"    run = WarmRunner().run({LAB.label!r}, '--solutions', tests={ONE!r})\n"
        "    assert run.verdicts[0].passed, run"
    )
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "program.py").write_text(program)
    command = [sys.executable, "-P", str(tmp_path / "apart" / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=quiet_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
