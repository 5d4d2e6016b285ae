"""Chapter 15's figures: a prefix that two groups of layers share, and what a real trace finds again in a hybrid."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.harness import solution_module
from labkit.bench.cache_report import summed
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.serving.requests import BLOCK, DIVISOR, REAL, make_trace
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

MODEL, GIB = "qwen3-next-80b-a3b", 2**30
INTERVALS = [BLOCK * 2**power for power in range(6)]
"""Tokens of the model from one stored state to the next; a block of the trace is 512."""
BUDGETS = {"no limit": None, "64 GiB": 64 * GIB, "32 GiB": 32 * GIB, "16 GiB": 16 * GIB}
LOOKS = [(INK, ":", "x"), (BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "D")]
HELD = [("attention", 4, {0, 1, 2, 3, 4, 5, 6, 7, 8}), ("state", 8, {1, 3})]
"""The groups of Lab 15's example, for a request of 40 tokens."""
EVICTED = 5
"""The block of attention that the second panel has lost."""

Stored = Callable[[int, int], set[int]]
"""From a prompt's whole blocks, and those that attention finds, to the blocks at whose end a state is stored."""


def hits_data() -> dict[str, Any]:
    """Per cent of the prompts' tokens that are found, by budget: for each interval, and for states at prompts' ends."""
    at_ends: dict[str, Stored] = {
        "attention alone": lambda n, reach: set(range(n)),
        "at the end of each prompt": lambda n, reach: {n - 1},
        "and where prompts part": lambda n, reach: {n - 1, reach - 1},
    }
    found = {}
    for name, budget in BUDGETS.items():
        apart = {every: _share(_each(every // BLOCK), budget) for every in INTERVALS}
        others = {how: _share(rule, budget, free=how == "attention alone") for how, rule in at_ends.items()}
        found[name] = {"intervals": [share for share, _ in apart.values()]}
        found[name] |= {"states": [states for _, states in apart.values()]}
        found[name] |= {how: share for how, (share, _) in others.items()}
    return {"model": MODEL, "intervals": INTERVALS, "found": found}


def draw_hits(data: dict[str, Any]) -> Figure:
    """Draw the share found over the interval, a line for each budget; at the right, states at prompts' ends."""
    figure, axes = plt.subplots(figsize=(5.6, 3.8))
    where = len(data["intervals"]) + 0.4
    for (name, found), (colour, dash, marker) in zip(data["found"].items(), LOOKS, strict=True):
        places = range(len(data["intervals"]))
        axes.plot(places, found["intervals"], marker=marker, linestyle=dash, color=colour, label=name)
        axes.plot([where], [found["and where prompts part"]], marker=marker, color=colour)
    axes.axvline(where - 0.8, color=MUTED, linewidth=0.8)
    axes.set_xticks([*places, where], [*(f"{every:,}" for every in data["intervals"]), "ends of\nprompts"])
    axes.set(xlabel="tokens from one stored state to the next", ylabel="per cent of the prompts' tokens found")
    axes.set_ylim(0, 22)
    axes.legend(title="cache", loc="upper right", bbox_to_anchor=(0.83, 1.0))
    return figure


def groups_data() -> dict[str, Any]:
    """The longest prefix with Lab 15's two groups, by the solution, before and after an eviction."""
    hit = solution_module("15").longest_common_hit
    (kind, block, held), states = HELD
    after = [(kind, block, held - {EVICTED}), states]
    panels = [{"groups": [[k, b, sorted(h)] for k, b, h in each], "hit": hit(each, 40)} for each in (HELD, after)]
    return {"tokens": 40, "panels": panels}


def draw_groups(data: dict[str, Any]) -> Figure:
    """Draw blocks that are held filled, others empty, and the hit as a line, before and after the eviction."""
    figure, panels = plt.subplots(2, 1, figsize=(5.6, 3.6), sharex=True)
    for axes, panel in zip(panels, data["panels"], strict=True):
        for row, (kind, block, held) in enumerate(panel["groups"]):
            colour = (BLUE, ORANGE)[row]
            for number in range(data["tokens"] // block):
                is_held = number in held
                look = {"facecolor": colour if is_held else "none", "edgecolor": MUTED, "alpha": 0.85}
                if kind == "attention":
                    axes.add_patch(Rectangle((number * block, 1.1), block, 0.8, **look))
                else:  # a state is at the end of its block
                    axes.add_patch(Rectangle(((number + 1) * block - 0.8, 0.1), 0.8, 0.8, **look))
        axes.axvline(panel["hit"], color=PINK, linestyle="--")
        axes.set_title(f"{panel['hit']} tokens are found", fontsize=9.5, loc="left")
        axes.set(xlim=(0, data["tokens"]), ylim=(0, 2), yticks=[0.5, 1.5])
        axes.set_yticklabels(["states", "attention"])
        axes.grid(visible=False)
    panels[1].set_xticks(range(0, data["tokens"] + 1, 8))
    panels[1].set_xlabel("tokens of the request")
    return figure


def _each(apart: int) -> Stored:
    return lambda n, reach: set(range(apart - 1, n, apart))


def _share(rule: Stored, budget: int | None, *, free: bool = False) -> tuple[float, float]:
    """Per cent of tokens found, and per cent of the bytes that are states at the end; states cost nothing if `free`.

    One pool; what was used longest ago is evicted first, and of one prompt its end.
    """
    hit_of = solution_module("15").longest_common_hit
    totals = summed(layers_of(read_config(PUBLISHED / f"{MODEL}.json")), 1)
    sizes = {"attention": BLOCK * totals["further token"], "state": 0 if free else totals["fixed"]}
    size, found, used = BLOCK // DIVISOR, 0, 0
    pool: OrderedDict[tuple[str, int], int] = OrderedDict()
    for n_tokens, prefixes in _prompts():
        held = {kind: {b for b, prefix in enumerate(prefixes) if (kind, prefix) in pool} for kind in sizes}
        found += hit_of([(kind, size, blocks) for kind, blocks in held.items()], n_tokens)
        reach = hit_of([("attention", size, held["attention"])], n_tokens) // size
        stored = rule(len(prefixes), reach) | held["state"]
        for b in reversed(range(len(prefixes))):
            for kind in ("attention", "state") if b in stored else ("attention",):
                entry = (kind, prefixes[b])
                used += 0 if entry in pool else sizes[kind]
                pool[entry] = sizes[kind]
                pool.move_to_end(entry)
        while budget is not None and used > budget:
            used -= pool.popitem(last=False)[1]
    states = sum(nbytes for (kind, _), nbytes in pool.items() if kind == "state")
    return round(100 * found / sum(n_tokens for n_tokens, _ in _prompts()), 1), round(100 * states / used, 1)


@functools.cache
def _prompts() -> list[tuple[int, list[int]]]:
    """Of each prompt its tokens, and a number for each prefix of whole blocks: equal prefixes have equal numbers."""
    numbers: dict[tuple[int, ...], int] = {}
    prompts = [request.prompt for request in make_trace(REAL, 0)]
    ends = range(BLOCK // DIVISOR, max(map(len, prompts)) + 1, BLOCK // DIVISOR)
    return [
        (len(prompt), [numbers.setdefault(prompt[:end], len(numbers)) for end in ends if end <= len(prompt)])
        for prompt in prompts
    ]


FIGURES = {"15_groups": Recipe(groups_data, draw_groups), "15_hits": Recipe(hits_data, draw_hits, takes_minutes=True)}
