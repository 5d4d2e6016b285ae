"""Lab 13's counts: board.json is what the engine counts now, `lab check` prints it, and the chapter shows it."""

from __future__ import annotations

import io
import json
from statistics import median

import pytest
from rich.console import Console

from labkit.commands.counts import BOARD_FILE, COLUMNS, cells, count_tables
from labkit.labs.catalog import ROOT, find_lab
from labstaff.authoring.board import board_text, server_module
from labstaff.figures import FIGURES_DIR
from tests.suite_runs import Job

LAB = find_lab("13")
CHAPTER = (ROOT / "docs" / "13_serving.md").read_text(encoding="utf-8")
BOARD = json.loads((LAB.folder / BOARD_FILE).read_text(encoding="utf-8"))
FIRST, SHARED, PREEMPTING = (each["counts"] for each in BOARD["references"])


@pytest.mark.slow
def test_the_file_has_the_current_counts():
    saved = (LAB.folder / BOARD_FILE).read_text(encoding="utf-8")
    assert saved == board_text(LAB), "uv run python -m labstaff.authoring.board"


@pytest.mark.parametrize("trace", ["chat", "documents"])
def test_the_chapter_shows_the_counts(trace):
    lines = [f"*{trace}*: {BOARD['traces'][trace]}.", ""]
    lines += ["| server | " + " | ".join(COLUMNS).replace("\n", " ") + " |", "|---|" + "---:|" * len(COLUMNS)]
    for each in BOARD["references"]:
        lines.append(f"| {each['name']} | {' | '.join(cells(each['counts'][trace]))} |")
    text = "\n".join(lines)
    assert text in CHAPTER, f"\n{text}"


def test_the_chapters_table_of_waits_is_its_figures():
    """Steps and tokens equal the counts; steps to the first token equal those of figure 13_waiting."""
    data = json.loads((FIGURES_DIR / "13_waiting.json").read_text(encoding="utf-8"))
    for trace, servers in data["steps_to_the_first_token"].items():
        for each in BOARD["references"]:
            counts, waits = each["counts"][trace], servers[each["name"]]
            numbers = f"{counts['steps']} | {counts['tokens'] / counts['steps']:.2g} | {median(waits):g} | {max(waits)}"
            assert f"| *{trace}*, {each['name']} | {numbers} |" in CHAPTER


def test_the_chapters_table_of_rates_is_its_figures():
    data = json.loads((FIGURES_DIR / "13_rates.json").read_text(encoding="utf-8"))
    line = data["lines"]["2000"]
    rows = zip(line["at_once"], line["ms_a_step"], line["user"], line["server"], strict=True)
    shown = {n: (n * 2000 * data["token"] / 2**30, ms, user, server) for n, ms, user, server in rows}
    for n in (1, 16, 64, 264):
        caches, ms, user, server = shown[n]
        assert f"| {n} | {caches:.3g} | {ms:.1f} | {user:.0f} | {float(f'{server:.3g}'):,.0f} |" in CHAPTER


@pytest.mark.slow
@pytest.mark.parametrize("job", [Job("lab13", ("--solutions",))], ids=["lab13"])
def test_lab_check_prints_the_counts_below_the_references(job, suite_runs):
    """The solution's counts equal those of the last reference server."""
    run = suite_runs(job)
    console = Console(width=80, record=True, file=io.StringIO())
    for table in count_tables(LAB, run.results):
        console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()]
    for trace in BOARD["traces"]:
        assert ["yours", *cells(PREEMPTING[trace])] in rows
        assert any(row[-len(COLUMNS) :] == cells(FIRST[trace]) for row in rows)
    assert count_tables(LAB, []) == [], "nothing is printed before a trace is served"
    assert count_tables(find_lab("12"), run.results) == []


def test_each_server_adds_something():
    """On both traces a prefix cache computes less, and preemption gets more requests done in time."""
    for trace in BOARD["traces"]:
        assert FIRST[trace]["prefix_tokens"] == 0 < SHARED[trace]["prefix_tokens"]
        assert FIRST[trace]["in_time"] <= SHARED[trace]["in_time"] < PREEMPTING[trace]["in_time"]


PENCIL = {"servers/first_come": (6, 10, {}), "alternatives/reserving": (6, 8, {}), "": (4, 8, {2: "A", 3: "B"})}
"""The chapter's example by server: steps, tokens computed, and who is served in some of the steps."""


@pytest.mark.parametrize("other", PENCIL)
def test_the_chapters_pencil(other):
    """Four blocks of two places, four tokens a step: A with 1 2 3 and B with 1 2 4 want three tokens each."""
    steps = served_by(other, {"A": [1, 2, 3], "B": [1, 2, 4]}, 3)
    n_steps, n_tokens, served = PENCIL[other]
    assert (len(steps), sum(len(tokens) for step in steps for _, tokens in step)) == (n_steps, n_tokens)
    assert {number: "".join(name for name, _ in steps[number]) for number in served} == served


def test_the_chapters_first_question():
    steps = served_by("", {"A": [1, 2, 3], "B": [1, 2, 4], "C": [1, 2, 5]}, 3)
    assert steps[0] == [("A", [1, 2, 3]), ("B", [4])]
    assert [name for name, _ in steps[1]] == ["A", "B", "C"]
    assert [name for name, _ in steps[2]] == ["A"]
    assert [(name, tokens[0]) for name, tokens in steps[3] if name == "C"] == [("C", 5)]


def served_by(other, texts, max_new):
    """The requests and tokens that each step computes, until all are done."""
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
