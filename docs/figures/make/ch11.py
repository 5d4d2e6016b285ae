"""Chapter 11's figures: layouts and their work, a timeline of four ranks, bytes and memory of three methods.

Lab 11's solution is run on ranks that are threads, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from benchmarks.harness import solution_module
from labkit.ranks.threads import run_ranks
from labstaff.figures import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PINK, Recipe
from labstaff.ring_timeline import timeline

LAYOUTS = ("contiguous", "zigzag", "striped")
RANK_LOOKS = [(BLUE, ""), (ORANGE, "///"), (GREEN, "..."), (PINK, "xxx")]
N_TOKENS, N_RANKS = 16, 4

HEADS, KV_HEADS, WIDTH, LENGTH = 2, 2, 32, 512
TIMED = {  # layout, causal, the block's share of the smallest one that hides the transfer
    "no mask, block twice the smallest": ("contiguous", False, 2.0),
    "no mask, block half the smallest": ("contiguous", False, 0.5),
    "causal, contiguous": ("contiguous", True, 2.0),
    "causal, zigzag": ("zigzag", True, 2.0),
}
METHODS = {"ring": "ring_attention_forward", "all_gather": "all_gather_attention", "ulysses": "ulysses_attention"}
METHOD_LOOKS = {"ring": (BLUE, "-", "o"), "all_gather": (ORANGE, "--", "s"), "ulysses": (GREEN, "-.", "^")}
RANKS = [2, 4, 8, 16]
MEASURED_HEADS, MEASURED_LENGTH = 16, 512


def layouts_data() -> dict[str, Any]:
    """The rank of each token, and the pairs of each rank and step, by Lab 11's solution."""
    lab = solution_module("11")
    found = {}
    for layout in LAYOUTS:
        held = [part.tolist() for part in lab.shard(torch.arange(N_TOKENS), N_RANKS, layout, dim=0)]
        work = lab.causal_work(N_TOKENS, N_RANKS, layout)
        found[layout] = {"tokens": held, "work": work.tolist(), "ring_takes": int(work.max(0).values.sum())}
    return {"n_tokens": N_TOKENS, "n_ranks": N_RANKS, "layouts": found}


def draw_layouts(data: dict[str, Any]) -> Figure:
    """Draw for each layout the causal matrix, rows by their ranks, and next to it the pairs of ranks and steps."""
    figure, axes = plt.subplots(3, 2, figsize=(5.0, 8.6), width_ratios=[1.3, 1])
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    for row, (layout, found) in zip(axes, data["layouts"].items(), strict=True):
        _draw_matrix(row[0], layout, found["tokens"], data["n_tokens"])
        _draw_work(row[1], found)
    return figure


def _draw_matrix(ax: Axes, layout: str, tokens: list[list[int]], n_tokens: int) -> None:
    for rank, held in enumerate(tokens):
        colour, hatch = RANK_LOOKS[rank]
        for i in held:
            looks = {"facecolor": colour, "alpha": 0.5, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0}
            ax.add_patch(Rectangle((0, i), i + 1, 1, **looks))
            ax.text(-0.4, i + 0.5, str(rank), ha="right", va="center", size=8.5, color=INK)
    ax.plot([0, 0, n_tokens, n_tokens, 0], [0, n_tokens, n_tokens, 0, 0], color=MUTED, linewidth=0.8)
    ax.set(xlim=(-1.6, n_tokens), ylim=(n_tokens, 0), aspect="equal", title=layout, xlabel="key")
    ax.set_ylabel("query, with its rank")
    ax.set_xticks([0.5, n_tokens - 0.5], ["0", str(n_tokens - 1)])
    ax.set_yticks([])
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def _draw_work(ax: Axes, found: dict[str, Any]) -> None:
    most = max(max(row) for row in found["work"])
    for rank, row in enumerate(found["work"]):
        for step, pairs in enumerate(row):
            share = pairs / max(most, 1)
            slowest = pairs == max(each[step] for each in found["work"])
            ax.add_patch(Rectangle((step, rank), 1, 1, facecolor=BLUE, alpha=0.5 * share, linewidth=0))
            ax.add_patch(
                Rectangle((step, rank), 1, 1, facecolor="none", edgecolor=INK if slowest else GRID, linewidth=1.1)
            )
            ax.text(step + 0.5, rank + 0.5, str(pairs), ha="center", va="center", size=9.5, color=INK)
    n = len(found["work"])
    total = sum(map(sum, found["work"]))
    ax.set(xlim=(-0.05, n + 0.05), ylim=(n + 0.05, -0.05), aspect="equal", xlabel="step")
    ax.set_ylabel("rank")
    ax.set_title(f"{total} pairs,\nthe ring takes {found['ring_takes']}", size=9)
    ax.set_xticks([step + 0.5 for step in range(n)], [str(step) for step in range(n)])
    ax.set_yticks([rank + 0.5 for rank in range(n)], [str(rank) for rank in range(n)])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def timeline_data() -> dict[str, Any]:
    """A timeline of four ranks, from real runs of the solution's forward pass, at speeds that fit the block's size."""
    lab = solution_module("11")
    found = {}
    for name, (layout, causal, times_smallest) in TIMED.items():
        ran = run_ranks(
            lambda comm, *given, causal=causal, layout=layout: lab.ring_attention_forward(
                comm, *given, causal=causal, layout=layout
            ),
            _shards(lab, N_RANKS, layout, HEADS, KV_HEADS, LENGTH, WIDTH),
        )
        n = LENGTH // N_RANKS
        block_flops, block_bytes = 4 * n * n * WIDTH * HEADS, 2 * n * KV_HEADS * WIDTH * 4
        played = timeline(ran.operations, block_flops, block_bytes * times_smallest)  # a whole block takes 1
        found[name] = {
            "end": round(played.end, 4),
            "spans": [[[s.kind, round(s.start, 4), round(s.end, 4)] for s in spans] for spans in played.spans],
            "transfers": [[t.sender, t.receiver, round(t.start, 4), round(t.end, 4)] for t in played.transfers],
        }
    return {"n_ranks": N_RANKS, "unit": "the time in which a rank computes a whole block", "runs": found}


def draw_timeline(data: dict[str, Any]) -> Figure:
    """Draw a lane for each rank: filled while it computes, hatched while it waits, below it what it sends."""
    figure, axes = plt.subplots(len(data["runs"]), 1, figsize=(5.6, 8.4))
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    longest = max(run["end"] for run in data["runs"].values())
    for ax, (name, run) in zip(axes, data["runs"].items(), strict=True):
        for rank, spans in enumerate(run["spans"]):
            for kind, start, end in spans:
                looks: dict[str, Any] = (
                    {"color": BLUE, "alpha": 0.65}
                    if kind == "computes"
                    else {"facecolor": "none", "edgecolor": ORANGE, "hatch": "////"}
                )
                ax.barh(rank, end - start, left=start, height=0.5, linewidth=0.6, **looks)
        for sender, _, start, end in run["transfers"]:
            ax.barh(sender + 0.37, end - start, left=start, height=0.16, color=GREEN, edgecolor=PAPER, linewidth=0.8)
        ax.set(xlim=(0, longest * 1.02), ylim=(data["n_ranks"] - 0.4, -0.5))
        ax.set_title(f"{name}: {run['end']:.3g}", size=9.5)
        ax.set_yticks(range(data["n_ranks"]), [f"rank {rank}" for rank in range(data["n_ranks"])])
        ax.grid(axis="y", visible=False)
    axes[-1].set_xlabel("time, in whole blocks computed")
    marks = [Patch(color=BLUE, alpha=0.65, label="computes"), Patch(color=GREEN, label="sends")]
    marks.insert(1, Patch(facecolor="none", edgecolor=ORANGE, hatch="////", label="waits"))
    figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def bytes_data() -> dict[str, Any]:
    """What a rank sends and holds by each method, measured on the solution."""
    lab = solution_module("11")
    found: dict[str, Any] = {name: {"sent": [], "formula": [], "held": []} for name in METHODS}
    for n_ranks in RANKS:
        given = _shards(lab, n_ranks, "zigzag", MEASURED_HEADS, MEASURED_HEADS, MEASURED_LENGTH, WIDTH)
        for name, function in METHODS.items():
            task = getattr(lab, function)
            traffic = run_ranks(lambda comm, *x, task=task: task(comm, *x, causal=True), given).traffic[0]
            sizes = (n_ranks, MEASURED_LENGTH, MEASURED_HEADS, MEASURED_HEADS, WIDTH, 4)
            found[name]["sent"].append(traffic.sent_bytes)
            found[name]["formula"].append(lab.communication_bytes(name, *sizes))
            found[name]["held"].append(traffic.held_bytes)
    keys_and_values = 2 * MEASURED_LENGTH * MEASURED_HEADS * WIDTH * 4
    return {"ranks": RANKS, "keys_and_values": keys_and_values, "methods": found}


def draw_bytes(data: dict[str, Any]) -> Figure:
    """Draw what is sent, and what is held of what came, over the number of ranks."""
    figure, axes = plt.subplots(2, 1, figsize=(5.0, 6.4), sharex=True)
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    whole = data["keys_and_values"]
    for ax, what in zip(axes, ("sent", "held"), strict=True):
        for name, found in data["methods"].items():
            colour, dash, marker = METHOD_LOOKS[name]
            heights = [n_bytes / whole for n_bytes in found[what]]
            ax.plot(data["ranks"], heights, color=colour, linestyle=dash, marker=marker, label=name.replace("_", "-"))
        ax.set_xscale("log", base=2)
        ax.set_xticks(data["ranks"], [str(n) for n in data["ranks"]])
        ax.set_ylim(0, 1.05)
    axes[0].set(title="sent by a rank", ylabel="of all keys and values")
    axes[1].set(title="held by a rank, of what it received", ylabel="of all keys and values", xlabel="ranks")
    axes[0].legend(fontsize=9)
    return figure


def _shards(lab: Any, n_ranks: int, layout: str, heads: int, kv_heads: int, length: int, width: int) -> list[Any]:
    """Each rank's q, k and v."""
    generator = torch.Generator().manual_seed(11)
    whole = [torch.randn(n, length, width, generator=generator) for n in (heads, kv_heads, kv_heads)]
    return list(zip(*(lab.shard(x, n_ranks, layout) for x in whole), strict=True))


FIGURES = {
    "11_layouts": Recipe(layouts_data, draw_layouts),
    "11_timeline": Recipe(timeline_data, draw_timeline),
    "11_bytes": Recipe(bytes_data, draw_bytes),
}
