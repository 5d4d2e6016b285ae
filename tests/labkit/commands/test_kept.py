"""What is kept between runs, and what `lab check` does with a file: in a student's own tree, as a student runs it."""

from __future__ import annotations

import pytest

from tests.student import LAB, House, solution_text, stub_text, with_function

pytestmark = pytest.mark.slow

ATTENTION = "standard_attention"
HEAD = f"_solved = {ATTENTION}\n\n\ndef {ATTENTION}(Q, K, V, mask=None):\n"
WRONG_WITH_A_BATCH = (
    HEAD + "    output, weights = _solved(Q, K, V, mask)\n    return (output, weights * (1 + (Q.ndim > 2)))"
)
"""Wrong in the middle of the suite: some tests before and after it pass."""
CRASH = HEAD + ("    import ctypes\n    if Q.ndim > 3:\n        ctypes.string_at(0)\n    return _solved(Q, K, V, mask)")


HALF_RIGHT = with_function(solution_text(), ATTENTION, WRONG_WITH_A_BATCH)


@pytest.fixture
def house(tmp_path):
    """Lab 01 half right."""
    made = House(tmp_path)
    made.write(HALF_RIGHT)
    return made


@pytest.fixture(scope="module")
def judged_house(tmp_path_factory):
    """Lab 01 half right, and judged: nothing in it may change."""
    made = House(tmp_path_factory.mktemp("house"))
    made.write(HALF_RIGHT)
    made.pytest("-p", "no:cacheprovider")
    return made


def all_of(result):
    """What a command said."""
    return result.stdout + result.stderr


def test_a_whole_run_is_kept(house):
    house.pytest()
    passed, total = house.kept()[ATTENTION]
    assert 0 < passed < total
    assert set(house.kept()) == {task.name for task in LAB.tasks}
    assert f"{passed} of {total} tests pass" in house.check().stdout


@pytest.mark.parametrize(
    "narrowed",
    [
        ("-x",),
        ("-k", "test_mask"),
        ("-k", "odd_lengths or worked_example", "--strict-markers"),
        ("SUITE::TestStandardAttention::test_odd_lengths",),
        ("--deselect", f"labs/{LAB.folder.name}/tests/test_profiling.py::TestStandardAttention::test_batch"),
        ("--maxfail=1",),
    ],
    ids=" ".join,
)
def test_a_part_of_a_task_is_not_kept_and_has_no_points(judged_house, narrowed):
    before = judged_house.kept()
    assert len(before) == len(LAB.tasks)
    run = judged_house.pytest(*narrowed)
    assert judged_house.kept() == before, all_of(run)
    assert "lab01: a task has points when every test of it was run" in run.stdout
    assert "tests were run, " in run.stdout


def test_last_failed_is_not_kept(house):
    house.pytest()
    before = house.kept()
    house.write(solution_text())
    run = house.pytest("--lf")
    assert "tests were run, " in run.stdout
    assert house.kept() == before


def test_whole_tasks_of_a_narrowed_run_are_kept(house):
    house.pytest("SUITE::TestEstimateAttentionMemory")
    (kept,) = house.kept().items()
    assert kept[0] == "estimate_attention_memory"
    assert kept[1][0] == kept[1][1] > 0


def test_a_crash_in_the_middle_keeps_what_was_known(house):
    house.pytest()
    before = house.kept()
    house.write(with_function(solution_text(), ATTENTION, CRASH))
    assert house.pytest().returncode < 0
    assert house.kept() == before


def test_a_crash_ends_check_and_names_the_test(house):
    house.write(with_function(solution_text(), ATTENTION, CRASH))
    run = house.check("estimate_attention_memory", ATTENTION)
    assert run.returncode == 1
    assert "✗ test_batch[B2x3-full]\n      its process ended: SIGSEGV (memory that is not its own)" in run.stdout
    assert "lab01: a task has points when every test of it was run" in run.stdout
    assert set(house.kept()) == {"estimate_attention_memory"}, "the task that was done before"
    assert not run.stderr


def test_check_stops_at_the_first_failure(house):
    run = house.check("-x")
    assert run.returncode == 1
    assert run.stdout.count("✗") == 1
    assert "lab01: a task has points when every test of it was run" in run.stdout


@pytest.mark.parametrize(
    ("ending", "told"),
    [("import os\nos._exit(3)\n", "it left with status 3"), ("import ctypes\nctypes.string_at(0)\n", "SIGSEGV")],
    ids=["exits", "crashes"],
)
def test_check_of_an_import_that_ends_the_process(house, ending, told):
    house.write(solution_text() + ending)
    run = house.check()
    assert run.returncode == 1
    assert f"lab01 · importing profiling.py ends the process: {told}" in run.stdout, all_of(run)
    assert "0 of 6 tasks done, 0 of 60 points" in run.stdout


def test_a_syntax_error_keeps_what_was_known_and_is_told_at_once(house):
    house.pytest()
    before = house.kept()
    house.write(solution_text() + "def f(:\n")
    line = len(solution_text().splitlines()) + 1
    said = f"profiling.py has a syntax error in line {line}: invalid syntax: def f(:"
    assert f"lab01 · {said}" in house.pytest().stdout
    assert house.kept() == before
    (house.lab.suite_file).write_text("raise SystemExit('the suite was run')\n", encoding="utf-8")
    run = house.check()
    assert run.returncode == 1
    assert f"lab01 · {said}" in run.stdout, "check reads the file first, and needs no suite"
    assert house.kept() == before
    board = house.command()
    assert said in board.stdout
    assert "5 of 6" in board.stdout


def test_one_task(house):
    run = house.check(ATTENTION)
    assert f"lab01 · {ATTENTION} · " in run.stdout
    assert "estimate" not in run.stdout
    assert set(house.kept()) == {ATTENTION}
    assert house.check("estimate_attention_memory", "analyze_scaling").returncode == 0
    wrong = house.check("nothing")
    assert wrong.returncode == 1
    assert all_of(wrong).splitlines() == [
        f"lab: lab01 has no task 'nothing'; its tasks are: {', '.join(task.name for task in LAB.tasks)}"
    ]


def test_every_failure_on_demand(house):
    house.write(solution_text().replace("* Q.dtype.type(Q.shape[-1] ** -0.5)", ""))
    assert "(-v shows all)" in house.check(ATTENTION).stdout
    told = house.check(ATTENTION, "-v").stdout
    assert "shows all" not in told
    assert told.count("✗") > 10


def test_prints_on_demand(house):
    house.write(with_function(solution_text(), ATTENTION, HEAD + "    print('here')\n    return 1"))
    quiet = house.check(ATTENTION)
    assert "here" not in quiet.stdout
    assert "(your code printed 1 line: -s shows them)" in quiet.stdout
    shown = house.check(ATTENTION, "-s")
    assert shown.stdout.count("here") > 20
    assert "your code printed" not in shown.stdout
    assert "test session starts" not in shown.stdout


@pytest.mark.parametrize("opened", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_debugger_in_check(house, opened):
    house.write(with_function(solution_text(), ATTENTION, HEAD + f"    {opened}\n    return _solved(Q, K, V, mask)"))
    refused = house.check(ATTENTION)
    assert "a debugger needs a terminal of its own: uv run lab check 01 -s" in refused.stdout, all_of(refused)
    typed = house.check(ATTENTION, "-s", typed="p 'shape', Q.shape\n" + "c\n" * 100)
    assert "('shape', (1, 2))" in typed.stdout
    assert f"lab01 · {ATTENTION} · done" in typed.stdout, all_of(typed)


def test_results_that_cannot_be_kept(house):
    (house.folder / ".lab").write_text("a file where a folder should be", encoding="utf-8")
    for run in (house.check(), house.pytest()):
        assert run.returncode == 1
        assert "the results of lab01 could not be kept: " in run.stdout
        assert "Traceback" not in all_of(run)


def test_results_that_cannot_be_read(house):
    house.pytest()
    (house.folder / ".lab" / "lab01.json").write_text("{", encoding="utf-8")
    board = house.command()
    assert board.returncode == 0
    assert ".lab/lab01.json holds no results: uv run lab check 01 makes it anew" in board.stdout
    house.check()
    assert house.kept()


def test_done_is_celebrated(house):
    house.write(solution_text())
    report = f"labs/{LAB.folder.name}/report.ipynb"
    for run in (house.check(), house.pytest()):
        assert run.returncode == 0
        assert "★ Lab 01, Memory profiling, is done: all of its " in run.stdout
        assert f"The report is left, 24 points: {report}" in run.stdout
    assert f"★ Every task is done.\n  What is left are the reports: {report}" in house.command().stdout
    house.write(stub_text())
    assert "★" not in house.check().stdout


def test_what_the_instructor_will_be_shown_is_shown_beforehand(house):
    house.write(solution_text() + "\n\nimport ctypes\n")
    run = house.check("estimate_attention_memory")
    line = len((solution_text() + "\n\nimport ctypes").splitlines())
    assert run.stdout.splitlines()[:2] == [
        "When profiling.py is graded, your instructor will be shown:",
        f"  line {line}: imports ctypes",
    ]
    assert run.returncode == 0
