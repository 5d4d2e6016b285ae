"""Lab 13's board: its file is what the engine counts now, the suite counts the same, and the chapter shows it."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.apart import run_apart
from labkit.suite.counts import BOARD_FILE, COLUMNS, read_board, trace_of
from labstaff.answers.board import REFERENCES, board_text, counted_board, main, markdown

LAB = find_lab("13")


@pytest.fixture(scope="module")
def counted():
    return counted_board(LAB)


def test_the_file_is_what_is_counted_now(counted):
    kept = (LAB.folder / BOARD_FILE).read_text(encoding="utf-8")
    assert kept == board_text(counted), "uv run python -m labstaff.answers.board"


def test_the_suite_counts_the_same():
    """Its test of the board, in a process of its own: what a student's `lab board 13` runs."""
    run = run_apart(LAB, "--solutions", "-m", "board")
    assert [line for verdict in run.verdicts for line in verdict.lines] == []
    solution = next(each for each in read_board(LAB).references if REFERENCES[each.name] == "")
    assert {trace_of(verdict.test): verdict.counts for verdict in run.verdicts} == solution.counts


def test_the_chapter_shows_the_board(counted):
    text = (ROOT / "docs" / "13_serving.md").read_text(encoding="utf-8")
    assert markdown(counted) in text, f"\n{markdown(counted)}"


def test_each_server_adds_something(counted):
    """On both traces: a prefix cache computes less, preemption gets more done in time."""
    columns = {column.name: column for column in COLUMNS}
    first, shared, preempting = (each.counts for each in counted.references)
    for trace in counted.traces:
        found, in_time = (columns[name] for name in ("prefix_tokens_not_computed", "requests_in_time"))
        assert found.of(first[trace]) == 0 < found.of(shared[trace])
        assert in_time.of(shared[trace]) >= in_time.of(first[trace])
        assert in_time.of(preempting[trace]) > in_time.of(shared[trace])


def test_a_stale_file_is_said(counted, monkeypatch, capsys):
    monkeypatch.setattr("labstaff.answers.board.counted_board", lambda lab: counted)
    assert main(["--check"]) == 0
    fewer = type(counted)(counted.traces, counted.references[:2])
    monkeypatch.setattr("labstaff.answers.board.counted_board", lambda lab: fewer)
    assert main(["--check"]) == 1
    assert "board.json is out of date" in capsys.readouterr().out
