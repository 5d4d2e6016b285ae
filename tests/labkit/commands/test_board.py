"""Board, hints, watch and progress."""

from __future__ import annotations

import io
import re
import threading

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from labkit.commands import check, watch
from labkit.commands.app import app
from labkit.commands.board import next_lines, show_board
from labkit.commands.check import Progress
from labkit.commands.hints import hint_lines
from labkit.labs.catalog import UnknownLab
from labkit.suite.forked import run_forked
from labkit.suite.results import State, SuiteRun, TestResult, add_up, load, store
from tests.student import results, solution_text, stub_text, student_lab


@pytest.fixture
def lab(tmp_path):
    """Lab 01 untouched, in a separate folder."""
    return student_lab(tmp_path)


def test_board(lab, capsys):
    show_board([lab])
    fresh = capsys.readouterr().out
    assert "0 of 6" in fresh
    assert re.search(r"0 of 60 +14 +2 *$", fresh, re.MULTILINE), "points of the tasks, of the report, and hours"
    stub = stub_text().splitlines()
    line = 1 + stub.index(next(each for each in stub if "standard_attention(" in each))
    where = f"labs/lab01_memory_profiling/src/profiling.py, line {line}"
    assert f"next: standard_attention(Q, K, V, mask=None) in {where}" in fresh
    store(lab, add_up(lab, results(lab, standard_attention=10, measure_attention_memory=5)))
    show_board([lab])
    later = capsys.readouterr().out
    for text in ("1 of 6", "25 of 60", "next: measure_attention_memory("):
        assert text in later
    assert "has changed since" not in later
    lab.student_file.write_text("def f(:\n", encoding="utf-8")
    show_board([lab])
    broken = capsys.readouterr().out
    assert "profiling.py has changed since it was last checked" in broken
    assert "lab01: profiling.py has a syntax error in line 1: invalid syntax: def f(:" in broken


def test_board_marks_a_draft(lab, capsys):
    show_board([msgspec.structs.replace(lab, draft=True)])
    assert "Memory profiling (draft)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lab01 = 2027-03-01\n", "2027-03-01"),
        ("lab01 = 2027-03-01 23:59:00\nlab02 = 2027-03-08\n", "2027-03-01 23:59:00"),
        ("lab01 = 'soon'\n", "due.toml: lab01 is no date, such as 2027-03-01"),
        ("lab01 = \n", "due.toml cannot be read: Invalid value (at line 1"),
    ],
)
def test_board_shows_due_dates(lab, capsys, text, shown):
    (lab.folder.parent.parent / "due.toml").write_text(text, encoding="utf-8")
    show_board([lab])
    assert shown in capsys.readouterr().out


def test_board_when_everything_is_done(lab):
    store(lab, add_up(lab, results(lab, **{task.name: 10 for task in lab.tasks})))
    assert str(next_lines([lab], {"lab01": load(lab)})[0]) == "★ Every task is done."


def test_hints_are_shown_one_at_a_time(lab):
    task = lab.tasks[0]
    assert hint_lines(lab, None, again=True) == ["lab01 · standard_attention · no hint shown yet"]
    for number, hint in enumerate(task.hints, start=1):
        lines = hint_lines(lab, None)
        assert lines[0] == f"lab01 · standard_attention · hint {number} of {len(task.hints)}"
        assert lines[2] == hint
        assert not any(other in "\n".join(lines) for other in task.hints if other != hint)
    assert hint_lines(lab, task.name)[2] == task.hints[-1]
    assert "That was the last hint" in hint_lines(lab, task.name)[-1]
    assert len(hint_lines(lab, task.name, again=True)) == len(task.hints)
    with pytest.raises(UnknownLab, match="lab01 has no task 'nothing'; its tasks are: standard_attention,"):
        hint_lines(lab, "nothing")


def test_watch_runs_again_on_each_save_and_shows_changes(lab, monkeypatch):
    n_runs = []

    def run_on_copy(lab, *options, **more):
        n_runs.append(options)
        return run_forked(lab, "--src", str(lab.student_file.parent), *options, **more)

    monkeypatch.setattr(watch, "run_forked", run_on_copy)
    printed = io.StringIO()

    def saves():
        lab.student_file.write_text(solution_text() + "\nbroken = (\n", encoding="utf-8")
        yield 0
        lab.student_file.write_text(solution_text(), encoding="utf-8")
        yield 1
        yield 2

    watch.watch_lab(lab, [lab.tasks[3]], saves=saves(), console=Console(file=printed, width=150))
    text = printed.getvalue()
    first, broken, second, third = text.split("─" * 150)[1:]
    assert "estimate_attention_memory · not implemented yet" in first
    assert "profiling.py has a syntax error in line" in broken
    assert "next: fix this first" in broken and "hint" not in broken
    assert re.search(r"▲ lab01 · estimate_attention_memory · 0 → (\d+) of \1$", second, re.MULTILINE)
    assert "no change: the same tests pass" in third
    assert text.count("watching labs/lab01_memory_profiling/src/profiling.py") == 1
    assert "standard_attention" not in text
    assert len(n_runs) == 2, "what is not begun, and what is no Python, is answered by reading the file"


def test_watch_goes_from_task_to_task(lab, monkeypatch):
    watched = []

    def run_on_copy(lab, *options, tests, **more):
        watched.append(tests)
        return run_forked(lab, "--src", str(lab.student_file.parent), *options, tests=tests, **more)

    monkeypatch.setattr(watch, "run_forked", run_on_copy)
    store(lab, add_up(lab, results(lab, **{task.name: 10 for task in lab.tasks[:3]})))
    printed = io.StringIO()

    def saves():
        lab.student_file.write_text(solution_text(), encoding="utf-8")
        yield 0

    watch.follow_lab(lab, saves=saves(), console=Console(file=printed, width=150))
    text = printed.getvalue()
    names = [task.name for task in lab.tasks[3:]]
    assert re.findall(r"^★ (\w+) is done$", text, re.MULTILINE) == names
    assert text.index("estimate_attention_memory · not implemented yet") < text.index(f"★ {names[0]} is done")
    assert text.rstrip().endswith("★ Lab 01, Memory profiling, is done.")
    assert watched == [[task.tests] for task in lab.tasks[3:]]


def test_progress_names_the_test_and_counts(lab):
    shown = Progress(lab)
    assert shown.line().plain.startswith("lab01 · importing · ")
    run = SuiteRun(n_collected=87)
    shown.on_start("standard_attention", "test_mask", run)
    shown.on_result(TestResult("test_mask", "standard_attention", State.PASSED), run)
    assert shown.line().plain.startswith("lab01 · 1 of 87 tests · test_mask · ")
    assert "Ctrl-C" not in shown.line().plain
    shown.on_result(TestResult("test_loop", "standard_attention", State.TOO_SLOW), run)
    assert shown.line().plain.endswith(" · 1 too slow: Ctrl-C ends the run, and shows what was found")


def test_progress_is_printed_where_it_cannot_be_shown_in_place(lab, monkeypatch):
    printed = threading.Event()
    output = io.StringIO()

    class Signalling(Console):
        def print(self, *args, **options):
            super().print(*args, **options)
            printed.set()

    monkeypatch.setattr(check, "REPORT_SECONDS", 0.01)
    with Progress(lab).shown(Signalling(file=output, width=150)):
        assert printed.wait(60)
    assert output.getvalue().startswith("lab01 · importing · ")


def test_help_lists_students_commands_first_in_whole_sentences():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    students, _, rest = shown.partition("─ Reading and measuring ─")
    readers, _, teaching = rest.partition("─ Teaching ─")
    for section, name in ((students, "check"), (students, "hint"), (readers, "bench"), (teaching, "grade")):
        assert f"│ {name} " in section
    listed = re.findall(r"^│ ([a-z]+)  +[A-Z]", shown, re.MULTILINE)
    assert sorted(listed) == sorted(each.name or each.callback.__name__ for each in app.registered_commands)
