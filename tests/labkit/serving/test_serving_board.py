"""Lab 13's board: its file is what the engine counts now, the suite counts the same, and the chapter shows it."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.apart import run_apart
from labkit.suite.counts import BOARD_FILE, COLUMNS, read_board, trace_of
from labstaff.answers.board import REFERENCES, board_text, counted_board, main, markdown, server_module

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


PENCIL = {"servers/first_come": (6, 10, {}), "right/reserving": (6, 8, {}), "": (4, 8, {2: "A", 3: "B"})}
"""The chapter's example by server: steps, tokens computed, and who is served in some of the steps."""


@pytest.mark.parametrize("other", PENCIL)
def test_the_chapters_pencil(other):
    """Four blocks of two places, four tokens a step: A with 1 2 3 and B with 1 2 4 want three tokens each."""
    steps = served_by(other, {"A": [1, 2, 3], "B": [1, 2, 4]}, 3)
    n_steps, n_tokens, told = PENCIL[other]
    assert (len(steps), sum(len(tokens) for step in steps for _, tokens in step)) == (n_steps, n_tokens)
    assert {number: "".join(name for name, _ in steps[number]) for number in told} == told


def test_the_chapters_first_question():
    steps = served_by("", {"A": [1, 2, 3], "B": [1, 2, 4], "C": [1, 2, 5]}, 3)
    assert steps[0] == [("A", [1, 2, 3]), ("B", [4])]
    assert [name for name, _ in steps[1]] == ["A", "B", "C"]
    assert [name for name, _ in steps[2]] == ["A"]
    assert [(name, tokens[0]) for name, tokens in steps[3] if name == "C"] == [("C", 5)]


def served_by(other, texts, max_new):
    """Which tokens of whom are computed, step by step, until all have got theirs."""
    scheduler = server_module(LAB, other).Scheduler(4, 2, 4)
    ends = {name: len(tokens) + max_new for name, tokens in texts.items()}
    for name, tokens in texts.items():
        scheduler.submit(name, list(tokens), max_new)
    steps = []
    while any(len(texts[name]) < end for name, end in ends.items()):
        work = scheduler.plan()["work"]
        steps.append([(piece["id"], list(piece["tokens"])) for piece in work])
        done = [piece["id"] for piece in work if piece["start"] + len(piece["tokens"]) == len(texts[piece["id"]])]
        for name in done:
            texts[name].append(100 * ord(name) + len(texts[name]))
        scheduler.advance({name: texts[name][-1] for name in done})
        assert len(steps) < 20
    return steps


def test_a_stale_file_is_said(counted, monkeypatch, capsys):
    monkeypatch.setattr("labstaff.answers.board.counted_board", lambda lab: counted)
    assert main(["--check"]) == 0
    fewer = type(counted)(counted.traces, counted.references[:2])
    monkeypatch.setattr("labstaff.answers.board.counted_board", lambda lab: fewer)
    assert main(["--check"]) == 1
    assert "board.json is out of date" in capsys.readouterr().out
