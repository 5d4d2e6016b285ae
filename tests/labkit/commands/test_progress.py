"""What a student sees of their progress: results, board, hints, watch."""

from __future__ import annotations

import io
import shutil
import threading

import pytest
from rich.console import Console

from labkit.commands import check
from labkit.commands.board import next_lines, show_board
from labkit.commands.check import Progress
from labkit.commands.hints import hint_lines
from labkit.labs.catalog import UnknownLab, find_lab
from labkit.suite.results import TaskResult, add_up, lab_points, load, next_task, store, task_points
from labkit.suite.verdict import Kind, State, Verdict
from labkit.suite.words import WHY_CAPPED, change_lines, run_lines
from tests.student import LAB as REAL_LAB
from tests.student import solution_text, stub_text


@pytest.fixture
def lab(tmp_path):
    """Lab 01 untouched, in a house of its own."""
    folder = tmp_path / "labs" / REAL_LAB.folder.name
    shutil.copytree(REAL_LAB.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    found = find_lab("01", tmp_path)
    found.answer_file.write_text(stub_text(), encoding="utf-8")
    return found


def verdicts(lab, **passed):
    """Ten verdicts a task: as many pass as named; a task not named is not started."""
    return [
        Verdict(
            f"test_{i}",
            task.name,
            _state(passed.get(task.name), i),
            () if i < passed.get(task.name, 0) else (f"off {i}",),
        )
        for task in lab.tasks
        for i in range(10)
    ]


def _state(n_passed, i):
    if n_passed is None:
        return State.NOT_STARTED
    return State.PASSED if i < n_passed else State.WRONG


def test_points_are_the_share_of_tests_that_pass(lab):
    results = add_up(lab, verdicts(lab, standard_attention=10, measure_attention_memory=5, analyze_scaling=0))
    assert results["standard_attention"] == TaskResult("standard_attention", 10, 10, started=True)
    assert results["profile_memory_scaling"] == TaskResult("profile_memory_scaling", 0, 10, False, most_share=0.5)
    assert lab_points(lab, results) == 20 + 5
    assert next_task(lab, results).name == "measure_attention_memory"
    assert [name for name, result in results.items() if result.done] == ["standard_attention"]


@pytest.mark.parametrize(
    ("failed", "earned"),
    [
        ({}, 20),
        ({Kind.EXACT: 1}, 10),
        ({Kind.EXACT: 15}, 20 * 5 / 20),
        ({Kind.ROBUST: 1}, 15),
        ({Kind.SMALL: 2, Kind.REFUSES: 1}, 15),
        ({Kind.REFUSES: 1}, 19),
        ({Kind.ROBUST: 1, Kind.EXACT: 1}, 10),
    ],
    ids=str,
)
def test_a_wrong_result_never_earns_more_than_half(lab, failed, earned):
    task = lab.tasks[0]
    kinds = [kind for kind, n in failed.items() for _ in range(n)]
    told = [Verdict(f"test_{i}", task.name, State.WRONG, kind=kind) for i, kind in enumerate(kinds)]
    told += [Verdict(f"test_right_{i}", task.name, State.PASSED) for i in range(20 - len(told))]
    assert task_points(task, told) == earned
    assert lab_points(lab, add_up(lab, told)) == earned
    said = [line for line in run_lines(lab, told) if "at most" in line]
    assert len(said) == (earned in (10, 15)), said
    why = {10: "a result on ordinary inputs is wrong", 15: WHY_CAPPED.get(kinds[0]) if kinds else ""}
    assert all(line == f"  at most {earned:g} of its 20 points while {why[earned]}" for line in said)


def test_a_task_earns_nothing_before_a_result_on_random_inputs_is_right(lab):
    """An answer that repeats the examples, or does nothing, passes tests too."""
    task = lab.tasks[0]
    examples = [Verdict(f"test_{i}", task.name, State.PASSED) for i in range(10)]
    left_alone = Verdict("test_left_alone", task.name, State.PASSED, drawn=True, kind=Kind.ROBUST)
    wrong = Verdict("test_random", task.name, State.WRONG, ("off",), drawn=True)
    repeated = [*examples, left_alone, wrong]
    assert task_points(task, repeated) == 0
    assert "  no points yet: no result on inputs drawn at random is right" in run_lines(lab, repeated)
    assert "0 of 20 points" in "\n".join(run_lines(lab, repeated))
    right = Verdict("test_another", task.name, State.PASSED, drawn=True)
    assert task_points(task, [*repeated, right]) == 10


def test_a_task_earns_nothing_while_a_library_does_its_work(lab):
    task = lab.tasks[0]
    right = [Verdict(f"test_{i}", task.name, State.PASSED, drawn=True) for i in range(9)]
    wrong = [Verdict("test_edge", task.name, State.WRONG, (f"edge {i}",), kind=Kind.ROBUST) for i in range(3)]
    borrowed = Verdict("test_memory", task.name, State.WRONG, ("calls another's",), kind=Kind.OWN)
    assert task_points(task, [*right, *wrong, borrowed]) == 0
    lines = run_lines(lab, [*right, *wrong, borrowed])
    assert "  no points: a library does the work that is yours to write" in lines
    assert "      calls another's" in lines, "what takes all points away is told first"


def test_results_are_kept_task_by_task(lab):
    assert load(lab) == {}
    store(lab, add_up(lab, verdicts(lab, standard_attention=3)))
    only_one = [v for v in verdicts(lab, estimate_attention_memory=10) if v.task == "estimate_attention_memory"]
    store(lab, add_up(lab, only_one))
    kept = load(lab)
    assert (kept["standard_attention"].passed, kept["estimate_attention_memory"].passed) == (3, 10)
    assert len(kept) == len(lab.tasks)


@pytest.mark.parametrize("text", ["", "{", "[{}]", "7", '[{"task": 1}]'])
def test_a_spoilt_file_of_results_is_as_none(lab, text):
    store(lab, {})
    (lab.folder.parent.parent / ".lab" / "lab01.json").write_text(text, encoding="utf-8")
    assert load(lab) == {}


def test_board(lab, capsys):
    show_board([lab])
    fresh = capsys.readouterr().out
    assert "0 of 6" in fresh
    line = 1 + stub_text().splitlines().index(next(x for x in stub_text().splitlines() if "standard_attention(" in x))
    assert (
        f"next: standard_attention(Q, K, V, mask=None) in labs/lab01_memory_profiling/src/profiling.py, line {line}"
        in fresh
    )
    store(lab, add_up(lab, verdicts(lab, standard_attention=10, measure_attention_memory=5)))
    show_board([lab])
    later = capsys.readouterr().out
    assert "1 of 6" in later
    assert "25 of 60" in later
    assert "next: measure_attention_memory(" in later
    assert "has changed since" not in later
    lab.answer_file.write_text(stub_text() + "\n# more\n", encoding="utf-8")
    show_board([lab])
    assert "profiling.py has changed since it was last checked" in capsys.readouterr().out


def test_board_when_everything_is_done(lab):
    store(lab, add_up(lab, verdicts(lab, **{task.name: 10 for task in lab.tasks})))
    assert str(next_lines([lab], {"lab01": load(lab)})[0]) == "★ Every task is done."


def test_board_of_a_file_that_does_not_parse(lab, capsys):
    lab.answer_file.write_text("def f(:\n", encoding="utf-8")
    show_board([lab])
    said = capsys.readouterr().out
    assert "lab01: profiling.py has a syntax error in line 1: invalid syntax: def f(:" in said
    assert "next: standard_attention(" in said


def test_hints_come_one_at_a_time(lab):
    task = lab.tasks[0]
    assert hint_lines(lab, None, again=True) == ["lab01 · standard_attention · no hint shown yet"]
    for number, hint in enumerate(task.hints, start=1):
        lines = hint_lines(lab, None)
        assert lines[0] == f"lab01 · standard_attention · hint {number} of {len(task.hints)}"
        assert lines[2] == hint
        assert not any(other in "\n".join(lines) for other in task.hints if other != hint)
    assert hint_lines(lab, task.name)[2] == task.hints[-1]
    assert "That was the last one" in hint_lines(lab, task.name)[-1]
    assert len(hint_lines(lab, task.name, again=True)) == len(task.hints)
    with pytest.raises(UnknownLab, match="lab01 has no task 'nothing'; its tasks are: standard_attention,"):
        hint_lines(lab, "nothing")


def test_what_a_run_changed(lab):
    before = add_up(lab, verdicts(lab, standard_attention=4, analyze_scaling=9))
    after = add_up(lab, verdicts(lab, standard_attention=10, analyze_scaling=8))
    assert change_lines(lab, before, after) == [
        "▲ lab01 · standard_attention · 4 → 10 of 10",
        "▼ lab01 · analyze_scaling · 9 → 8 of 10",
    ]
    assert change_lines(lab, after, after) == []


def test_a_run_of_one_task_speaks_of_that_task_only(lab):
    own = [v for v in verdicts(lab, plot_memory_scaling=7) if v.task == "plot_memory_scaling"]
    lines = run_lines(lab, own)
    assert lines[0] == "lab01 · plot_memory_scaling · 7 of 10 tests pass"
    assert lines[-1].startswith("next: plot_memory_scaling")
    assert not [line for line in lines if "standard_attention" in line]


def test_many_failures_are_told_by_name(lab):
    own = [v for v in verdicts(lab, standard_attention=0) if v.task == "standard_attention"]
    lines = run_lines(lab, own)
    assert lines[-4] == "  ✗ and 7 more of test_3, test_4, test_5, test_6 … (-v shows all)"
    assert len([line for line in run_lines(lab, own, everything=True) if "✗" in line]) == 10


def test_watch_runs_again_on_each_save_and_says_what_changed(lab, monkeypatch):
    """On a copy of the student's file, which `--src` names."""
    from labkit.commands import watch
    from labkit.suite.apart import ForkedRuns

    class OnTheCopy(ForkedRuns):
        def run(self, *options, **more):
            return super().run("--src", str(lab.answer_file.parent), *options, **more)

    monkeypatch.setattr(watch, "ForkedRuns", OnTheCopy)
    heard = io.StringIO()

    def saves():
        lab.answer_file.write_text(solution_text(), encoding="utf-8")
        yield 1
        yield 2

    watch.watch_lab(lab, [lab.tasks[3]], saves=saves(), console=Console(file=heard, width=150))
    text = heard.getvalue()
    first, second, third = text.split("─" * 150)[1:]
    assert "estimate_attention_memory · not implemented yet" in first
    assert "▲ lab01 · estimate_attention_memory · 0 → 9 of 9" in second
    assert "no change in what passes" in third
    assert text.count("watching labs/lab01_memory_profiling/src/profiling.py") == 1
    assert "standard_attention" not in text


def test_progress_names_the_test_and_counts(lab):
    shown = Progress(lab)
    assert shown.line().plain.startswith("lab01 · importing · ")
    shown.on_start("standard_attention", "test_mask", 87)
    assert shown.line().plain.startswith("lab01 · 0 of 87 tests · test_mask · ")
    shown.on_verdict(Verdict("test_mask", "standard_attention", State.PASSED))
    assert shown.line().plain.startswith("lab01 · 1 of 87 tests · test_mask · ")


def test_progress_is_printed_where_there_is_no_terminal(lab, monkeypatch):
    heard, printed = io.StringIO(), threading.Event()

    class Heard(Console):
        def print(self, *args, **options):
            super().print(*args, **options)
            printed.set()

    monkeypatch.setattr(check, "REPORT_SECONDS", 0.01)
    with Progress(lab).shown(Heard(file=heard, width=150)):
        assert printed.wait(60)
    assert heard.getvalue().startswith("lab01 · importing · ")
