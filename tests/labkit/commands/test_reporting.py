"""What a student sees: untouched, half done, done, and every way a file can be broken."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_lab
from labkit.suite.results import task_points
from labkit.suite.verdict import State, explain
from labkit.suite.warm import WarmRunner
from labkit.suite.words import run_lines
from tests.student import LAB, pytest_run, solution_text, stub_text, with_function

pytestmark = pytest.mark.slow

TRACEBACK_SIGNS = ("Traceback", "E   ", "_ _ _", "array([", ">   ")
ESTIMATE = "estimate_attention_memory"
SIGNATURE = "seq_len, d_model, dtype_bytes=4, batch_size=1"
TWO_TASKS = ("TestStandardAttention", "TestEstimateAttentionMemory")


def lines_with(run, text):
    """The lines of a run's output that hold `text`."""
    return [line for line in run.stdout.splitlines() if text in line]


def only(run):
    """No traceback, no array reprs, nothing on stderr."""
    for sign in TRACEBACK_SIGNS:
        assert sign not in run.stdout, run.stdout
    assert not run.stderr
    return run


@pytest.fixture(scope="module")
def warm():
    """A runner for the cases of which only the lines matter."""
    with WarmRunner() as runner:
        yield runner


def told(warm, folder, source):
    """The lines that a run of two tasks on `source` shows; `source` is None for no file at all."""
    if source is not None:
        (folder / LAB.answer_file.name).write_text(source, encoding="utf-8")
    run = warm.run(LAB.label, "--src", str(folder), tests=TWO_TASKS)
    assert not run.problem
    assert not all(verdict.passed for verdict in run.verdicts)
    lines = run_lines(LAB, run.verdicts)
    assert len(lines) <= 30
    for sign in TRACEBACK_SIGNS:
        assert not [line for line in lines if sign in line]
    return lines


def test_untouched(tmp_path):
    run = only(pytest_run(tmp_path, stub_text()))
    assert run.returncode == 1
    assert len(run.stdout.splitlines()) <= 40
    for task in LAB.tasks:
        (line,) = lines_with(run, f"lab01 · {task.name} · not implemented yet")
        assert line.endswith("start here") == (task is LAB.tasks[0])
    assert lines_with(run, "next: standard_attention")
    assert "Scaled dot-product" not in run.stdout, "the docstring came back"


def test_half_done(tmp_path):
    stub = stub_text()
    solution = solution_text()
    start, end = solution.index("def standard_attention"), solution.index("def measure_attention_memory")
    run = only(pytest_run(tmp_path, stub + "\n\n" + solution[start:end]))
    assert run.returncode == 1
    assert lines_with(run, "lab01 · standard_attention · done")
    assert lines_with(run, "measure_attention_memory · not implemented yet — start here")
    assert lines_with(run, "lab01: 1 of 6 tasks done, 20 of 60 points")


def test_done(tmp_path):
    run = only(pytest_run(tmp_path, solution_text()))
    assert run.returncode == 0
    assert lines_with(run, "lab01: 6 of 6 tasks done, 60 of 60 points")
    assert not lines_with(run, "next:")


def test_wrong_value(tmp_path):
    wrong = solution_text().replace("* Q.dtype.type(Q.shape[-1] ** -0.5)", "")
    run = only(pytest_run(tmp_path, wrong, "-k", "test_odd_lengths and N63-full"))
    text = run.stdout
    assert run.returncode == 1
    for part in (
        "standard_attention",
        "weights is off by",
        "rounding explains",
        "at [",
        "the scores are not divided by √d",
    ):
        assert part in text
    assert len(text[text.index("lab01 ·") :].splitlines()) <= 15


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def standard_attention(Q, K, V, mask=None):\n    return Q @\n", "profiling.py has a syntax error in line 2"),
        ("import numpyy\n", "importing profiling.py failed: ModuleNotFoundError: No module named 'numpyy' (line 1"),
        ("1 / 0\n", "importing profiling.py failed: ZeroDivisionError: division by zero (line 1: 1 / 0)"),
        ("import sys\nsys.exit(3)\n", "importing profiling.py failed: SystemExit: 3 (line 2"),
        (
            "from labkit.testing.attention.reference import attention\n",
            "profiling.py imports labkit.testing.attention.reference: an answer stands by itself",
        ),
        ("", "profiling.py defines no standard_attention"),
        (None, "profiling.py cannot be read: No such file"),
    ],
    ids=["syntax", "import", "raises", "exit", "borrows", "empty", "absent"],
)
def test_file_that_cannot_be_used(warm, tmp_path, source, says):
    lines = told(warm, tmp_path, source)
    assert len([line for line in lines if says in line]) == 1, lines
    assert len(lines) <= 6


def test_syntax_error_on_the_terminal(tmp_path):
    run = only(pytest_run(tmp_path, "def f(:\n"))
    assert run.returncode == 1
    assert len(lines_with(run, "profiling.py has a syntax error in line 1: invalid syntax: def f(:")) == 1
    assert lines_with(run, "lab01: 0 of 6 tasks done")


def test_a_missing_function_leaves_the_others_judged(warm, tmp_path):
    renamed = solution_text().replace(f"def {ESTIMATE}", "def estimate")
    text = "\n".join(told(warm, tmp_path, renamed))
    assert f"defines no {ESTIMATE}: was it renamed or deleted?" in text
    assert "lab01 · standard_attention · done" in text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    pass", "the result is None, expected a dict"),
        ("    return 5", "the result is an int, expected a dict"),
        ("    return {'Q_memory': 1}", "the result lacks K_memory, V_memory"),
        ("    return {**_solved(seq_len, d_model, dtype_bytes, batch_size), 'more': 1}", "has more, which the handout"),
        (
            "    return {k: float(v) for k, v in _solved(seq_len, d_model, dtype_bytes, batch_size).items()}",
            "is a float, expected a whole number",
        ),
        ("    return {k: 'many' for k in _solved(seq_len, d_model)}", "Q_memory is 'many', expected 1,048,576"),
        ("    return seq_len.bytes", "estimate_attention_memory raised AttributeError: 'int' object has no attribute"),
        ("    raise SystemExit(0)", "estimate_attention_memory raised SystemExit: 0"),
        ("    print('x\\n' * 5000); return {}", "(your code printed 5,001 lines: -s shows them)"),
    ],
    ids=["None", "number", "too_few_keys", "too_many_keys", "floats", "texts", "raises", "exits", "prints"],
)
def test_function_that_goes_wrong(warm, tmp_path, body, says):
    source = with_function(solution_text(), ESTIMATE, f"_solved = {ESTIMATE}\n\n\ndef {ESTIMATE}({SIGNATURE}):\n{body}")
    text = "\n".join(told(warm, tmp_path, source))
    assert says in text, text
    assert "lab01 · standard_attention · done" in text, "the other task is still judged"


def test_torchs_own_attention_earns_nothing(warm, tmp_path):
    """It is right for every input, and small: only that it is called is found, in some of the tests."""
    lab = find_lab("09")
    source = """
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
    (tmp_path / lab.answer_file.name).write_text(source, encoding="utf-8")
    verdicts = warm.run(lab.label, "--src", str(tmp_path), tests=("TestSplitKvDecode",)).verdicts
    passed = sum(verdict.passed for verdict in verdicts)
    assert passed > len(verdicts) / 2
    task = next(task for task in lab.tasks if task.name == "split_kv_decode")
    assert task_points(task, verdicts) == 0
    lines = run_lines(lab, verdicts)
    assert "  no points: a library does the work that is yours to write" in lines
    assert any("calls torch's own attention (" in line for line in lines), lines


def test_a_long_message_is_told_to_its_end_and_a_hint_follows(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def task():\n    raise ValueError('sizes ' * 30 + 'END')\n", encoding="utf-8")
    namespace = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    with pytest.raises(ValueError, match="END") as caught:
        namespace["task"]()
    caught.value.add_note("Usual cause: sizes")
    state, lines = explain(caught.value, [file])
    assert state is State.CRASHED
    assert lines[1].endswith("sizes END")
    assert lines[2:] == ("at mine.py:2: raise ValueError('sizes ' * 30 + 'END')", "Usual cause: sizes")
    assert max(map(len, lines)) <= 160


def test_endless_loop(tmp_path, monkeypatch):
    source = with_function(
        solution_text(),
        ESTIMATE,
        f"def {ESTIMATE}({SIGNATURE}):\n"
        "    while True:\n        try:\n            pass\n        except Exception:\n            pass",
    )
    monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "1")
    run = only(pytest_run(tmp_path, source, "-k", "Standard or Estimate"))
    assert run.returncode == 1
    assert len(lines_with(run, f"{ESTIMATE} was still running after 1 s of CPU time, last seen at profiling.py:")) == 1
    assert lines_with(
        run,
        "Another test of this task took too long, so this one got a fifth of the time: it is slow, or it never ends",
    )
    assert lines_with(run, "lab01 · standard_attention · done"), "the other tasks are still judged"


def test_a_slow_test_fails_no_other(tmp_path, monkeypatch):
    """Slow for one length only: every other test of the task is run, and passes."""
    slow = (
        f"_solved = {ESTIMATE}\n\n\ndef {ESTIMATE}({SIGNATURE}):\n"
        "    for _ in range(10**9 if seq_len > 10**6 else 0):\n        pass\n"
        "    return _solved(seq_len, d_model, dtype_bytes, batch_size)"
    )
    monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "4")
    run = only(pytest_run(tmp_path, with_function(solution_text(), ESTIMATE, slow), "-v"))
    failed = {line.strip() for line in lines_with(run, "  ✗ test_")}
    assert failed == {"✗ test_large_sizes_do_not_overflow"}, run.stdout


def test_explicit_traceback_style_brings_pytests_own(tmp_path):
    run = pytest_run(tmp_path, stub_text(), "--tb=short", "-k", "test_mask")
    assert "NotImplementedError" in run.stdout
    assert "test_profiling.py" in run.stdout
