"""`lab check` and pytest in a student's tree: what is printed, what is stored, and what stops a run."""

from __future__ import annotations

import pytest

from labkit.suite.finder import MAX_BYTES
from tests.student import LAB, StudentTree, pytest_run, solution_text, stub_text, with_function

pytestmark = pytest.mark.slow

ATTENTION, ESTIMATE = "standard_attention", "estimate_attention_memory"
HEAD = f"_solved = {ATTENTION}\n\n\ndef {ATTENTION}(Q, K, V, mask=None):\n"
ESTIMATE_HEAD = f"_solved = {ESTIMATE}\n\n\ndef {ESTIMATE}(seq_len, d_model, dtype_bytes=4, batch_size=1):\n"
WRONG_WITH_A_BATCH = "    output, weights = _solved(Q, K, V, mask)\n    return (output, weights * (1 + (Q.ndim > 2)))"
"""Wrong in the middle of the suite: some tests before and after it pass."""
CRASH = "    import ctypes\n    if Q.ndim > 3:\n        ctypes.string_at(0)\n    return _solved(Q, K, V, mask)"
IN_PARTS = "lab01: a task has points when every test of it was run"


def attention(body):
    """The solution with another body for one task."""
    return with_function(solution_text(), ATTENTION, HEAD + body)


HALF_RIGHT = attention(WRONG_WITH_A_BATCH)


@pytest.fixture
def tree(tmp_path):
    """Lab 01 half right."""
    return StudentTree(tmp_path, HALF_RIGHT)


@pytest.fixture(scope="module")
def tested_tree(tmp_path_factory):
    """Lab 01 half right after a whole run; tests must not change it."""
    made = StudentTree(tmp_path_factory.mktemp("tree"), HALF_RIGHT)
    made.pytest("-p", "no:cacheprovider")
    return made


def lines_with(run, text):
    """The lines of a run's output that contain `text`."""
    return [line for line in run.stdout.splitlines() if text in line]


def no_traceback(run):
    """A run that shows no traceback, no array, and nothing on stderr."""
    for sign in ("Traceback", "E   ", "_ _ _", "array([", ">   "):
        assert sign not in run.stdout, run.stdout
    assert "Traceback" not in run.stderr
    return run


def test_untouched_stub_is_one_line_a_task(tmp_path):
    run = no_traceback(pytest_run(tmp_path, stub_text()))
    assert run.returncode == 1
    assert len(run.stdout.splitlines()) <= 40
    for task in LAB.tasks:
        (line,) = lines_with(run, f"lab01 · {task.name} · not implemented yet")
        assert ("— start here: labs/lab01_memory_profiling/src/profiling.py:" in line) == (task is LAB.tasks[0])
    assert lines_with(run, "next: standard_attention")


def test_wrong_value_names_quantity_size_place_and_cause(tmp_path):
    wrong = solution_text().replace("* Q.dtype.type(Q.shape[-1] ** -0.5)", "")
    run = no_traceback(pytest_run(tmp_path, wrong, "-k", "test_results and N63-full"))
    assert run.returncode == 1
    for part in (ATTENTION, "weights is off by", "rounding explains", "at [", "the scores are not divided by √d"):
        assert part in run.stdout
    assert len(run.stdout[run.stdout.index("lab01 ·") :].splitlines()) <= 15


def test_a_file_that_cannot_be_used_is_reported_once(tmp_path):
    run = no_traceback(pytest_run(tmp_path, "def f(:\n"))
    assert run.returncode == 1
    assert len(lines_with(run, "profiling.py has a syntax error in line 1: invalid syntax: def f(:")) == 1
    assert lines_with(run, "lab01: 0 of 6 tasks done")


def test_a_file_that_is_too_large_to_be_graded_is_not_tested(tmp_path):
    run = no_traceback(pytest_run(tmp_path, solution_text() + "#" * MAX_BYTES))
    assert run.returncode == 1
    assert len(lines_with(run, "profiling.py is larger than 1 MiB")) == 1


def test_an_endless_loop_stops_no_other_task(tmp_path, monkeypatch):
    loop = "    while True:\n        try:\n            pass\n        except Exception:\n            pass"
    monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "1")
    source = with_function(solution_text(), ESTIMATE, ESTIMATE_HEAD + loop)
    run = no_traceback(pytest_run(tmp_path, source, "-k", "Standard or Estimate"))
    assert run.returncode == 1
    assert lines_with(run, f"{ESTIMATE} was still running after 1 s of CPU time, last seen at profiling.py:")
    assert lines_with(run, "The limit is ten times what the slowest correct solution of this lab needs for a test")
    assert lines_with(run, "lab01 · standard_attention · done")


def test_a_slow_test_fails_no_other(tmp_path, monkeypatch):
    """With code that is slow for one length, every other test of the task runs and passes."""
    slow = "    for _ in range(10**9 if seq_len > 10**6 else 0):\n        pass\n"
    slow += "    return _solved(seq_len, d_model, dtype_bytes, batch_size)"
    monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "4")
    run = no_traceback(pytest_run(tmp_path, with_function(solution_text(), ESTIMATE, ESTIMATE_HEAD + slow), "-v"))
    assert {line.strip() for line in lines_with(run, "  ✗ test_")} == {"✗ test_large_sizes_do_not_overflow"}


def test_an_explicit_traceback_style_brings_pytests_own(tmp_path):
    run = pytest_run(tmp_path, stub_text(), "--tb=short", "-k", "test_mask")
    assert "NotImplementedError" in run.stdout
    assert "test_profiling.py" in run.stdout


def test_a_whole_run_is_stored(tree):
    tree.pytest()
    passed, total = tree.stored()[ATTENTION]
    assert 0 < passed < total
    assert set(tree.stored()) == {task.name for task in LAB.tasks}
    assert f"{passed} of {total} tests pass" in tree.check().stdout


@pytest.mark.parametrize(
    "narrowed",
    [("-x",), ("-k", "test_mask"), ("SUITE::TestStandardAttention::test_results",), ("--lf",)],
    ids=" ".join,
)
def test_a_part_of_a_task_is_not_stored_and_has_no_points(tested_tree, narrowed):
    before = tested_tree.stored()
    assert len(before) == len(LAB.tasks)
    run = tested_tree.pytest(*narrowed)
    assert tested_tree.stored() == before
    if narrowed != ("--lf",):  # the whole run that was recorded had no cache
        assert IN_PARTS in run.stdout
        assert "tests were run, " in run.stdout


def test_whole_tasks_of_a_narrowed_run_are_stored(tree):
    tree.pytest("SUITE::TestEstimateAttentionMemory")
    ((task, (passed, total)),) = tree.stored().items()
    assert task == ESTIMATE
    assert passed == total > 0


def test_a_crash_ends_check_and_names_the_test(tree):
    tree.write(attention(CRASH))
    assert tree.pytest().returncode < 0
    assert tree.stored() == {}
    run = tree.check(ESTIMATE, ATTENTION)
    assert run.returncode == 1
    assert "✗ test_results[B2x3-full]\n      its process ended: SIGSEGV (memory that is not its own)" in run.stdout
    assert IN_PARTS in run.stdout
    assert set(tree.stored()) == {ESTIMATE}, "the task that was done before"
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("ending", "how"),
    [("import os\nos._exit(3)\n", "it left with status 3"), ("import ctypes\nctypes.string_at(0)\n", "SIGSEGV")],
    ids=["exits", "crashes"],
)
def test_an_import_that_ends_the_process(tree, ending, how):
    tree.write(solution_text() + ending)
    run = tree.check()
    assert run.returncode == 1
    assert f"lab01 · importing profiling.py ends the process: {how}" in run.stdout, run.stderr
    assert "0 of 6 tasks done, 0 of 60 points" in run.stdout


def test_a_syntax_error_keeps_stored_results_and_runs_nothing(tested_tree):
    before = tested_tree.stored()
    tested_tree.write(solution_text() + "def f(:\n")
    message = f"profiling.py has a syntax error in line {len(solution_text().splitlines()) + 1}: invalid syntax"
    suite = tested_tree.lab.suite_file.read_text(encoding="utf-8")
    tested_tree.lab.suite_file.write_text("raise SystemExit('the suite was run')\n", encoding="utf-8")
    try:
        run = tested_tree.check()
        board = tested_tree.command()
    finally:
        tested_tree.lab.suite_file.write_text(suite, encoding="utf-8")
        tested_tree.write(HALF_RIGHT)
    assert run.returncode == 1
    assert f"lab01 · {message}" in run.stdout
    assert tested_tree.stored() == before
    assert message in board.stdout
    assert "5 of 6" in board.stdout


def test_untouched_tasks_are_answered_without_a_run(tree):
    """By reading the stub: the suite is not even imported. With the code of one task all is run as usual."""
    tree.write(stub_text())
    suite = tree.lab.suite_file.read_text(encoding="utf-8")
    tree.lab.suite_file.write_text("raise SystemExit('the suite was run')\n", encoding="utf-8")
    run = tree.check()
    assert run.returncode == 1
    first, *others = (line for line in run.stdout.splitlines() if "not implemented yet" in line)
    assert "start here: labs/lab01_memory_profiling/src/profiling.py:" in first
    assert len(others) == len(LAB.tasks) - 1
    assert "lab01: 0 of 6 tasks done, 0 of 60 points" in run.stdout
    assert "— a hint: uv run lab hint 01 standard_attention" in run.stdout
    assert tree.stored()[ATTENTION] == (0, 0)
    tree.environment = tree.environment | {"PYTHONPROFILEIMPORTTIME": "1"}
    imports = tree.check().stderr
    assert "labkit.commands.check" in imports
    assert not any(f" {slow}\n" in imports for slow in ("pytest", "asyncio", "torch", "numpy", "multiprocessing"))
    tree.lab.suite_file.write_text(suite, encoding="utf-8")
    tree.write(stub_text() + f"\n\ndef {ATTENTION}(Q, K, V, mask=None):\n    raise NotImplementedError()\n")
    assert "still raises" not in tree.check(ATTENTION).stdout, "it is defined twice: only a run knows"
    assert tree.stored()[ATTENTION][1] > 0


def test_chosen_tasks_and_options(tree):
    run = tree.check(ATTENTION)
    assert f"lab01 · {ATTENTION} · " in run.stdout
    assert "estimate" not in run.stdout
    assert set(tree.stored()) == {ATTENTION}
    first = tree.check("-x")
    assert first.returncode == 1
    assert first.stdout.count("✗") == 1
    assert IN_PARTS in first.stdout
    tree.write(solution_text().replace("* Q.dtype.type(Q.shape[-1] ** -0.5)", ""))
    assert "(-v shows all)" in tree.check(ATTENTION).stdout
    everything = tree.check(ATTENTION, "-v").stdout
    assert "shows all" not in everything
    assert everything.count("✗") > 10


def test_prints_are_counted_and_shown_on_demand(tree):
    tree.write(attention("    print('here')\n    return 1"))
    quiet = tree.check(ATTENTION)
    assert "here" not in quiet.stdout
    assert "(your code printed 1 line; to see it: -s)" in quiet.stdout
    shown = tree.check(ATTENTION, "-s")
    assert shown.stdout.count("here") > 20
    assert "your code printed" not in shown.stdout
    assert "test session starts" not in shown.stdout


@pytest.mark.parametrize("opened", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_debugger_needs_the_terminal(tree, opened):
    tree.write(attention(f"    {opened}\n    return _solved(Q, K, V, mask)"))
    refused = tree.check(ATTENTION)
    assert "a debugger needs a terminal: uv run lab check 01 -s" in refused.stdout, refused.stderr
    typed = tree.check(ATTENTION, "-s", typed="p 'shape', Q.shape\n" + "c\n" * 100)
    assert "('shape', (" in typed.stdout
    assert f"lab01 · {ATTENTION} · done" in typed.stdout, typed.stderr


def test_results_that_cannot_be_stored_or_read(tree):
    (tree.folder / ".lab").write_text("no folder", encoding="utf-8")
    for run in (tree.check(ESTIMATE), tree.pytest()):
        assert f"lab01 · {ESTIMATE} · done" in run.stdout
        assert "Traceback" not in run.stdout + run.stderr
    assert "the results of lab01 could not be stored: " in run.stdout
    (tree.folder / ".lab").unlink()
    (tree.folder / ".lab").mkdir()
    (tree.folder / ".lab" / "lab01.json").write_text("{", encoding="utf-8")
    board = tree.command()
    assert board.returncode == 0
    assert ".lab/lab01.json holds no results: uv run lab check 01 writes it again" in board.stdout


def test_all_tasks_done(tree):
    tree.write(solution_text())
    report = f"labs/{LAB.folder.name}/report.ipynb"
    for run in (tree.check(), tree.pytest()):
        assert run.returncode == 0
        assert lines_with(run, "lab01: 6 of 6 tasks done, 60 of 60 points")
        assert "★ Lab 01, Memory profiling, is done: all its " in run.stdout
        assert f"Left to do: the report, 14 points: {report}" in run.stdout
        assert not lines_with(run, "next:")
    assert f"★ Every task is done.\n  Only the reports are left: {report}" in tree.command().stdout


def test_findings_of_the_source_check_come_first(tree):
    tree.write(solution_text() + "\n\nimport ctypes\n")
    run = tree.check(ESTIMATE)
    line = len((solution_text() + "\n\nimport ctypes").splitlines())
    assert run.stdout.splitlines()[:2] == [
        "When profiling.py is graded, your instructor will see:",
        f"  line {line}: imports ctypes",
    ]
    assert run.returncode == 0


def test_a_librarys_own_attention_earns_nothing_here_and_when_graded(tree):
    borrowed = (
        "    import torch\n    torch.nn.functional.scaled_dot_product_attention\n    return _solved(Q, K, V, mask)"
    )
    tree.write(attention(borrowed))
    run = tree.check(ATTENTION)
    line = attention(borrowed).splitlines().index("    torch.nn.functional.scaled_dot_product_attention") + 1
    finding = f"line {line}: {ATTENTION} uses a library's own scaled_dot_product_attention"
    assert run.returncode == 1
    assert lines_with(run, finding) and lines_with(run, "no points: a library does the work that is yours to write")
    assert lines_with(run, "lab01: 0 of 1 tasks done, 0 of 20 points")
    assert lines_with(tree.command(), "0 of 60")
