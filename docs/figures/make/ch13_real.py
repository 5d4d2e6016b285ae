"""Chapter 13's figure of the real trace: who is served well by three servers, and what a larger cache finds again."""

from __future__ import annotations

from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.serving.drive import serve_plans
from labkit.serving.engine import token_bytes
from labkit.serving.goodput import goodput, latencies
from labkit.serving.model import SPEC
from labkit.serving.requests import LIMITS, REAL, make_trace, prefix_tokens
from labstaff.authoring.board import REFERENCES
from labstaff.figures import BLUE, GREEN, INK, ORANGE, Recipe

SEEDS = (0, 1)
"""Of the order of the requests that come together."""
BLOCK, BITS = 8, 8
"""The settings of all three servers."""
BOUNDS = range(1, 25)
"""Steps to the first token."""
EACH = 1.5
"""Steps per further token, at most."""
MAX_TOKENS = LIMITS[REAL]["max_tokens"]
NUM_BLOCKS = LIMITS[REAL]["nbytes"] // (BLOCK * token_bytes(SPEC, BITS))
SIZES = (250, NUM_BLOCKS, 800, 1600, 3200, 6400)
"""Blocks of the caches."""


def real_data() -> dict[str, Any]:
    """Goodput by seed, server and bound; tokens of prompts found by size of the cache."""
    traces = {seed: make_trace(REAL, seed) for seed in SEEDS}
    servers = {
        str(seed): {name: _goodput(other, trace) for name, other in REFERENCES.items()}
        for seed, trace in traces.items()
    }
    trace = traces[0]
    return {
        "requests": len(trace),
        "num_blocks": NUM_BLOCKS,
        "steps_per_further_token": EACH,
        "steps_to_the_first_token": list(BOUNDS),
        "servers": servers,
        "prompt_tokens": sum(len(each.prompt) for each in trace),
        "came_before": prefix_tokens(trace, answers=False),
        "found": {str(size): _found(trace, size) for size in SIZES},
    }


def draw_real(data: dict[str, Any]) -> Figure:
    """Draw goodput over the bound, a line for each server; below, the share found over the cache's size."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(5.0, 6.4))
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    looks = [(ORANGE, "--", 3.0), (GREEN, "-.", 1.6), (BLUE, "-", 1.8)]
    for (name, found), (colour, dash, width) in zip(data["servers"]["0"].items(), looks, strict=True):
        above.step(
            data["steps_to_the_first_token"],
            found["goodput"],
            where="post",
            color=colour,
            linestyle=dash,
            linewidth=width,
            label=name,
        )
    above.axhline(data["requests"], color=INK, linestyle=":", linewidth=1)
    above.set(title=f"served well, of {data['requests']} requests, with {data['num_blocks']} blocks", ylim=(0, 270))
    above.set(xlabel="bound on the steps to the first token", ylabel="requests", xlim=(1, 24))
    above.legend(loc="lower right")
    share = 100 / data["prompt_tokens"]
    sizes = [int(size) for size in data["found"]]
    below.plot(sizes, [share * each for each in data["found"].values()], "o-", color=BLUE)
    below.axhline(share * data["came_before"], color=INK, linestyle=":", linewidth=1)
    below.annotate(
        "what came before", (sizes[0], share * data["came_before"]), xytext=(0, 4), textcoords="offset points", size=8.5
    )
    below.set_xscale("log", base=2)
    below.set_xticks(sizes, [f"{size:,}" for size in sizes])
    below.minorticks_off()
    below.set(title="found in the cache, of the prompts' tokens", xlabel="blocks of the cache, of 8 tokens")
    below.set(ylabel="per cent", ylim=(0, 23))
    return figure


def _goodput(other: str, trace: Any) -> dict[str, Any]:
    scheduler = solution_module("13", other).Scheduler(NUM_BLOCKS, BLOCK, MAX_TOKENS)
    found = latencies(scheduler, trace, NUM_BLOCKS, BLOCK, MAX_TOKENS)
    first = [each.first for each in found.values()]
    return {
        "goodput": [goodput(found, bound, EACH) for bound in BOUNDS],
        "median_first": median(first),
        "worst_first": max(first),
        "worst_each": float(max(each.each for each in found.values())),
    }


def _found(trace: Any, size: int) -> int:
    return serve_plans(
        solution_module("13").Scheduler(size, BLOCK, MAX_TOKENS), trace, size, BLOCK, MAX_TOKENS
    ).prefix_tokens


FIGURES = {"13_real": Recipe(real_data, draw_real, takes_minutes=True)}
