"""Lab 13's real trace: what its file holds, what it says of itself, and what chapter 13 prints of it."""

from __future__ import annotations

import csv
import json
from fractions import Fraction

from labkit.commands.counts import BOARD_FILE
from labkit.labs.catalog import ROOT, find_lab
from labkit.serving.goodput import Latency, goodput, latencies
from labkit.serving.requests import LIMITS, REAL, REAL_FILE, Request, make_trace, prefix_tokens
from labstaff.authoring.board import server_module
from labstaff.figures import FIGURES_DIR

TRACE = make_trace(REAL, 0)
FIGURE = json.loads((FIGURES_DIR / "13_real.json").read_text(encoding="utf-8"))
CHAPTER = " ".join((ROOT / "docs" / "13_serving.md").read_text(encoding="utf-8").split())


def test_the_file_is_small_and_says_where_it_is_from():
    notes = REAL_FILE.with_suffix(".md").read_text(encoding="utf-8")
    with REAL_FILE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert notes.startswith(f"# {REAL_FILE.name}\n\n{len(rows)} requests")
    assert "Apache License 2.0" in notes
    assert "kvcache-ai/Mooncake" in notes
    assert REAL_FILE.stat().st_size < 10_000


def test_lengths_are_divided_and_beginnings_are_kept():
    with REAL_FILE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(len(each.prompt) for each in TRACE) == sum(-(-int(row["input_length"]) // 64) for row in rows)
    assert sum(each.max_new for each in TRACE) == sum(-(-int(row["output_length"]) // 64) for row in rows)
    assert len({each.prompt[:8] for each in TRACE}) == 1, "all begin with block 0"
    assert prefix_tokens(TRACE, answers=False) == FIGURE["came_before"]
    assert max(len(each.prompt) + each.max_new for each in TRACE) <= 8 * 250


def test_a_seed_orders_what_comes_together():
    other = make_trace(REAL, 1)
    assert make_trace(REAL, 0) == TRACE != other
    assert [each.id for each in other] == list(range(len(TRACE)))
    for step in range(TRACE[-1].arrival + 1):
        here, there = (sorted(r.prompt for r in trace if r.arrival == step) for trace in (TRACE, other))
        assert here == there


def test_latencies_and_goodput():
    """One token a step: the second request waits until the first, of two tokens and two to follow, is computed."""
    scheduler = server_module(find_lab("13"), "servers/first_come").Scheduler(2, 2, 1)
    found = latencies(scheduler, [Request(0, 0, (1, 2), 2), Request(1, 1, (3,), 1)], 2, 2, 1)
    assert found == {0: Latency(2, Fraction(1)), 1: Latency(3, Fraction(0))}
    assert [goodput(found, first, 1) for first in (1, 2, 3)] == [0, 1, 2]
    assert goodput(found, 3, 0.5) == 1


def test_the_chapter_shows_the_figures_numbers():
    bounds = FIGURE["steps_to_the_first_token"]
    first_come, _, preempting = FIGURE["servers"]["1"].values()
    at = [bounds.index(bound) for bound in (1, 4, 8, 16)]
    for name, one in FIGURE["servers"]["0"].items():
        shown = [*(one["goodput"][i] for i in at), f"{one['median_first']:g}", one["worst_first"]]
        assert f"| {name} | {' | '.join(map(str, shown))} |" in CHAPTER
        assert one["worst_each"] == 1
    others = [[str(one["goodput"][i]) for i in at] for one in (first_come, preempting)]
    first, third = (f"{', '.join(numbers[:-1])} and {numbers[-1]}" for numbers in others)
    assert f"it is {first} for the first two servers, and {third} for the third" in CHAPTER


def test_the_chapter_shows_the_board_s_counts():
    board = json.loads((find_lab("13").folder / BOARD_FILE).read_text(encoding="utf-8"))
    first_come, shared, preempting = (each["counts"][REAL]["in_time"] for each in board["references"])
    assert first_come == shared
    assert f"In all there are {board['traces'][REAL]}." in CHAPTER
    both = "with first come, first served and with a prefix cache"
    assert f"{first_come} {both}, {preempting} with preemption" in CHAPTER


def test_the_figure_and_the_board_are_of_one_run():
    board = json.loads((find_lab("13").folder / BOARD_FILE).read_text(encoding="utf-8"))
    counts = board["references"][-1]["counts"][REAL]
    assert FIGURE["found"][str(FIGURE["num_blocks"])] == counts["prefix_tokens"]
    assert counts["cache_bytes"] <= LIMITS[REAL]["nbytes"]
