"""Runs in forked processes: each starts afresh, none ends the fork server, and torch's own attention earns nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit.labs.catalog import find_lab
from labkit.suite import forked
from labkit.suite.forked import ForkedRunner, run_forked
from labkit.suite.limits import Exceeded, Limit
from labkit.suite.messages import ending_text, result_lines, run_lines
from labkit.suite.results import How, Kind, State, TestResult, task_share
from tests.student import LAB, quiet_environment, solution_text, stub_text

ONE = ("TestEstimateAttentionMemory::test_worked_example",)
ONE_TASK = "estimate_attention_memory"
HEAD = f"def {ONE_TASK}(seq_len, d_model, dtype_bytes=4, batch_size=1):\n"


@pytest.fixture
def run(tmp_path):
    """Runs tests, one by default, on a source text."""
    runner = ForkedRunner()

    def run(source, lab=LAB, tests=ONE, **options):
        (tmp_path / lab.student_file.name).write_text(source, encoding="utf-8")
        return runner.run(lab.label, "--src", str(tmp_path), tests=tests, **options)

    return run


def test_each_run_reads_the_file_again(run):
    assert [result.state for result in run(stub_text()).results] == [State.NOT_STARTED]
    assert [result.state for result in run(solution_text()).results] == [State.PASSED]


def test_results_before_the_end_of_a_process_are_kept(run):
    tests = (*ONE, "TestEstimateAttentionMemory::test_nothing_is_allocated")
    whole = run(solution_text(), tests=tests).results
    ends = f"{solution_text()}\n\nestimate = {ONE_TASK}\n\n\n{HEAD}    import os\n    if seq_len == 1500: os._exit(0)\n"
    ends += "    return estimate(seq_len, d_model, dtype_bytes, batch_size)\n"
    part = run(ends, tests=tests)
    assert [result.kind for result in whole] == [Kind.EXACT, Kind.COST]
    assert part.results == whole[:1]
    assert (part.n_collected, part.ended.how, part.ended.status) == (2, How.DIED, 0)


@pytest.mark.parametrize(
    ("body", "problem", "options"),
    [
        ("    import os\n    os.kill(os.getpid(), 9)\n", "the run ended without a result: SIGKILL (killed)", {}),
        (
            "    import signal\n    signal.alarm(0); signal.setitimer(0, 0)\n    while True: pass\n",
            "the run did not end within 2 s by the clock",
            {"seconds": 2},
        ),
    ],
    ids=["kills itself", "disarms the limit"],
)
def test_a_run_that_dies_is_a_problem_of_that_run(run, body, problem, options):
    died = run(HEAD + body, **options)
    assert ending_text(died.ended) == problem
    assert died.results == []
    assert run(solution_text()).results[0].passed


def in_a_tenth_of_a_second() -> None:
    """In a run's process: end a test early."""
    from labkit.suite import limits

    limits.MAX_TEST_SECONDS = 0.1


def test_after_three_slow_tests_the_rest_of_the_task_is_not_begun(run):
    """The state says so, whatever the tests are; other tasks are tested as usual."""
    endless = f"{solution_text()}\n\n{HEAD}    while True: pass\n"
    tests = ("TestEstimateAttentionMemory", "TestStandardAttention::test_worked_example")
    results = run(endless, tests=tests, prepare=in_a_tenth_of_a_second).results
    own = [result for result in results if result.task == ONE_TASK]
    assert [result.state for result in own[:3]] == [State.TOO_SLOW] * 3
    assert len(own) > 3 and {result.state for result in own[3:]} == {State.NOT_RUN}
    assert {result.failure.exceeded for result in own[3:]} == {Exceeded(Limit.SLOW_TESTS, 3)}
    assert result_lines(own[3]) == ("not run: three tests before it took too long",)
    assert [result.passed for result in results if result not in own] == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_more_memory_than_there_is_raises_in_the_test_that_asks_for_it(tmp_path):
    """Without touching it: nothing but the limit refuses a GiB."""
    n_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30 + 1
    body = f"    import numpy\n    arrays = [numpy.empty(2**30, numpy.uint8) for _ in range({n_gib})]\n"
    (tmp_path / LAB.student_file.name).write_text(HEAD + body, encoding="utf-8")
    tests = (*ONE, "TestEstimateAttentionMemory::test_batch_counts")
    run = run_forked(LAB, "--src", str(tmp_path), tests=tests)
    says = f"{ONE_TASK} raised MemoryError: Unable to allocate 1.00 GiB"
    assert [result_lines(result)[0][: len(says)] for result in run.results] == [says, says]


def test_what_a_run_changes_is_gone_in_the_next(run):
    run("import numpy\nnumpy.float32 = numpy.float64\n" + HEAD + "    pass\n")
    assert run(solution_text()).results[0].passed


def test_what_has_ended_is_not_killed_by_its_number(monkeypatch):
    """The number may be another process's by then."""
    process = forked.CONTEXT.Process(target=os.getpid)
    process.start()
    process.join()
    for kill in ("kill", "killpg"):
        monkeypatch.setattr(os, kill, lambda *_: pytest.fail("killed by its number"))
    forked._kill(process, None)


def test_no_variable_is_gone_while_another_is_set(monkeypatch):
    """Other threads read the environment meanwhile."""
    monkeypatch.delenv("NEW", raising=False)
    monkeypatch.setattr(os.environ, "clear", lambda: pytest.fail("all variables removed"))
    before = dict(os.environ)
    with forked._environment({"NEW": "1", "PATH": "/"}):
        assert dict(os.environ) == before | {"NEW": "1", "PATH": "/"}
    assert dict(os.environ) == before


def test_an_unknown_test_is_a_problem(run):
    ended = run(solution_text(), tests=("TestNothing",)).ended
    assert ended.how is How.FAILED
    assert "not found" in ended.detail


@pytest.mark.parametrize("name", [pytest.param("pytest", marks=pytest.mark.slow), "sitecustomize"])
def test_nothing_is_imported_from_the_current_folder(tmp_path, name):
    """The current folder may be a student's."""
    (tmp_path / f"{name}.py").write_text("import os; os._exit(3)")
    program = (
        "from labkit.suite.forked import ForkedRunner\n"
        "if __name__ == '__main__':\n"
        f"    run = ForkedRunner().run({LAB.label!r}, '--solutions', tests={ONE!r})\n"
        "    assert run.results[0].passed, run"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text(program)
    command = [sys.executable, "-P", str(tmp_path / "elsewhere" / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=quiet_environment(), timeout=120)
    assert done.returncode == 0, done.stderr


TORCHS_OWN = """
import torch

def split_kv_decode(q, k, v, num_splits):
    if num_splits < 1:
        raise ValueError("num_splits")
    group = q.shape[-2] // k.shape[-3]
    expanded = [x.unsqueeze(-3).expand(*x.shape[:-2], group, *x.shape[-2:]).flatten(-4, -3) for x in (k, v)]
    o = torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(-2), *expanded).squeeze(-2)
    scores = (q.unsqueeze(-2) @ expanded[0].mT).squeeze(-2) * q.shape[-1] ** -0.5
    return o, scores.logsumexp(-1)
"""


@pytest.mark.slow
def test_torchs_own_attention_earns_nothing(run):
    """torch's own attention is right and small; some tests find that it is called."""
    lab = find_lab("09")
    results: list[TestResult] = run(TORCHS_OWN, lab, ("TestSplitKvDecode",)).results
    assert sum(result.passed for result in results) > len(results) / 2
    (task,) = (task for task in lab.tasks if task.tests == "TestSplitKvDecode")
    assert task_share(task, results) == 0
    assert any("calls torch's own attention (" in line for line in run_lines(lab, results))
