"""Chapter 12's figures from SmolLM2: what a smaller cache costs in perplexity, by Lab 12's solution.

A run takes ten minutes on two cores, so only the slow tests recompute it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.chat.adapters.lab12 import WindowWithSinks
from labkit.chat.setting import Setting
from labkit.model.attention import grouped_attention
from labkit.model.perplexity import perplexity, sample_text
from labkit.model.weights import Model, read_model
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

N_TOKENS, FIRST, NUMBER_BYTES = 2048, 256, 2
WINDOWS, SINKS = (64, 128, 256, 512, 1024), (0, 4)
MARKS = {
    "window": (GREEN, "^", "window", (0, 7, "center")),
    "window with 4 sinks": (GREEN, "v", "window and 4 sinks", (0, -14, "center")),
    "latent": (PINK, "D", "latent vector of so many numbers", (0, 7, "center")),
    "keys by token": (ORANGE, "x", "so many bits, keys by token", (7, 3, "left")),
    "keys by channel": (BLUE, "o", "so many bits, keys by channel", (7, -9, "left")),
}
"""Colour, mark and words of each kind, and where its numbers are written: right, up, and their side."""
HIGHEST = 600
Kept = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@functools.cache
def measured() -> dict[str, Any]:
    """The perplexity and the bytes per token of every scheme, on the sample text."""
    torch.set_num_threads(2)
    model = read_model()
    tokens = model.text.encode(sample_text())[:N_TOKENS]
    full = model.llama.sizes.cache_bytes(1, NUMBER_BYTES)

    def of(kind: str, number: int, token_bytes: float, attend: Any) -> dict[str, Any]:
        found = perplexity(model.llama, tokens, attend, FIRST)
        return {"kind": kind, "number": number, "token_bytes": token_bytes, "perplexity": float(f"{found:.3g}")}

    rows = [of("full", 0, full, None)]
    rows += [of(*each) for each in _kept_schemes(model, full)]
    for sinks, window in itertools.product(SINKS, WINDOWS):
        attend = WindowWithSinks(solution_module("12"), Setting(model.llama.sizes, N_TOKENS, None, window, sinks))
        kind = "window with 4 sinks" if sinks else "window"
        rows.append(of(kind, window, full * (window + sinks) / N_TOKENS, attend))
    return {"model": "SmolLM2-135M-Instruct", "tokens": N_TOKENS, "scored_from": FIRST, "rows": rows}


def _kept_schemes(model: Model, full: int) -> list[tuple[str, int, float, Any]]:
    """The schemes in which every query sees every earlier key, changed."""
    lab, sizes = solution_module("12"), model.llama.sizes

    def quantized(k: torch.Tensor, v: torch.Tensor, bits: int, by_channel: bool) -> tuple[torch.Tensor, torch.Tensor]:
        as_keys, values = lab.dequantize_kv(lab.quantize_kv(k, v, bits, 32))
        if by_channel:
            return as_keys, values
        _, by_token = lab.dequantize_kv(lab.quantize_kv(k, k, bits, 32))
        return by_token, values

    found: list[tuple[str, int, float, Any]] = []
    for name, by_channel in (("keys by token", False), ("keys by channel", True)):
        for bits in (2, 4, 8):
            kept = functools.partial(quantized, bits=bits, by_channel=by_channel)
            found.append((name, bits, full * (bits + 1) / (8 * NUMBER_BYTES), _attend(kept)))
    mean = functools.partial(lab._kept, {"kind": "grouped", "group": sizes.kv_heads})
    found.append(("grouped", sizes.kv_heads, full / sizes.kv_heads, _attend(mean)))
    for rank in (32, 64, 128, 256):
        near = functools.partial(lab._kept, {"kind": "latent", "rank": rank})
        found.append(("latent", rank, sizes.layers * rank * NUMBER_BYTES, _attend(near)))
    return found


def _attend(kept: Kept) -> Any:
    return lambda layer, q, k, v: grouped_attention(q, *kept(k, v))


def draw_budget(data: dict[str, Any]) -> Figure:
    """Draw perplexity over bytes per token, a point for each scheme."""
    figure, ax = plt.subplots(figsize=(5.2, 5.8))
    (whole,) = (row for row in data["rows"] if row["kind"] == "full")
    for kind, (colour, mark, label, (right, up, side)) in MARKS.items():
        rows = [row for row in data["rows"] if row["kind"] == kind]
        points = [(row["token_bytes"], row["perplexity"]) for row in rows]
        ax.plot(*zip(*points, strict=True), mark, color=colour, label=label, zorder=3)
        for row, point in zip(rows, points, strict=True):
            if (kind, row["number"]) != ("keys by token", 8):  # on the same point as by channel
                ax.annotate(
                    f"{row['number']:,}", point, (right, up), textcoords="offset points", size=8, color=MUTED, ha=side
                )
    (mean,) = (row for row in data["rows"] if row["kind"] == "grouped")
    words = f"the mean of {mean['number']} key heads:\n{mean['perplexity']:,.0f}"
    ax.annotate(
        words, (mean["token_bytes"], HIGHEST), (0, -42), textcoords="offset points", ha="center", size=8.5,
        arrowprops={"arrowstyle": "->", "color": INK},
    )  # fmt: skip
    ax.axhline(whole["perplexity"], color=INK, linestyle=":", linewidth=1)
    ax.plot([whole["token_bytes"]], [whole["perplexity"]], "o", color=INK, label="whole cache")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([2**n for n in range(9, 15)], ["512", "1,024", "2,048", "4,096", "8,192", "16,384"])
    ax.set_yticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"])
    ax.minorticks_off()
    ax.set(xlabel=f"bytes per token, of {data['tokens']:,} tokens", ylabel="perplexity", ylim=(19, HIGHEST))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, fontsize=8)
    return figure


def draw_sinks(data: dict[str, Any]) -> Figure:
    """Draw perplexity over the window, without sinks and with four."""
    figure, ax = plt.subplots(figsize=(5.0, 4.2))
    (whole,) = (row["perplexity"] for row in data["rows"] if row["kind"] == "full")
    for kind, colour, look, label in (
        ("window", ORANGE, "s--", "the window alone"),
        ("window with 4 sinks", BLUE, "o-", "the window and the first 4 tokens"),
    ):
        rows = [row for row in data["rows"] if row["kind"] == kind]
        xs, ys = zip(*((row["number"], row["perplexity"]) for row in rows), strict=True)
        ax.plot(xs, ys, look, color=colour, label=label)
    ax.axhline(whole, color=INK, linestyle=":", linewidth=1, label="all tokens")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(WINDOWS, [f"{window:,}" for window in WINDOWS])
    ax.set_yticks([25, 50, 100], ["25", "50", "100"])
    ax.minorticks_off()
    ax.set(xlabel=f"window, of {data['tokens']:,} tokens", ylabel="perplexity")
    ax.legend(loc="upper right")
    return figure


FIGURES = {
    "12_sinks": Recipe(measured, draw_sinks, takes_minutes=True),
    "12_error_over_bytes": Recipe(measured, draw_budget, takes_minutes=True),
}
