"""Chapter 08's figures: a window by hand, its tiles, and what each form of windowed attention holds over N.

Lab 08's solution is measured, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.nn.attention.flex_attention import create_block_mask

from benchmarks.harness import solution_module
from labkit.meters.tensors import AllocationMeter
from labstaff.figures import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PINK, Recipe

BY_HAND_LEN, BY_HAND_WINDOW = 8, 3
SEQ_LEN, WINDOW, BLOCK = 1024, 256, 64
LENGTHS = [256, 512, 1024, 2048]
SMALL_WINDOW, MASK_BLOCK, HEAD_DIM = 64, 128, 64
STEPS = ("naive_mask", "causal_sdpa", "tiled_window")
LOOKS: dict[str, tuple[str, str, Any, str, int]] = {
    "naive_mask": ("window as an N × N mask", ORANGE, "--", "s", -3),
    "tiled_window": ("window in tiles", BLUE, "-", "o", 1),
    "causal_sdpa": ("no window: causal, fused", GREEN, "-.", "D", -9),
    "building": ("while it is made", PINK, ":", "^", -3),
    "block_mask": ("kept", MUTED, (0, (6, 2)), "v", -3),
}
"""Label, colour, dash, marker, and how far the last point's label is moved up, for each form."""


def by_hand_data() -> dict[str, Any]:
    """Which keys each query of a short sequence sees, and what a rolling cache holds after each token."""
    mask = solution_module("08").window_mask(BY_HAND_LEN, BY_HAND_WINDOW)
    seen = [[j for j, hidden in enumerate(row) if not hidden] for row in mask.tolist()]
    cache: list[int | None] = [None] * BY_HAND_WINDOW
    held = []
    for token in range(BY_HAND_LEN):
        cache[token % BY_HAND_WINDOW] = token
        held.append(list(cache))
    return {"N": BY_HAND_LEN, "window": BY_HAND_WINDOW, "seen": seen, "held": held}


def draw_by_hand(data: dict[str, Any]) -> Figure:
    """Draw the mask as a grid, and below it the places of the cache, a row for each token."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(4.6, 8.4), height_ratios=[8, 8.6])
    _draw_seen(above, data)
    _draw_cache(below, data)
    return figure


def _draw_seen(ax: Axes, data: dict[str, Any]) -> None:
    n = data["N"]
    for i, seen in enumerate(data["seen"]):
        for j in range(n):
            looks: dict[str, Any] = {"facecolor": BLUE, "alpha": 0.55} if j in seen else {"facecolor": "none"}
            ax.add_patch(Rectangle((j, i), 1, 1, linewidth=0, **looks))
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor="none", edgecolor=GRID, linewidth=0.8))
            if j <= i and j not in seen:
                ax.text(j + 0.5, i + 0.5, "×", ha="center", va="center", color=MUTED, size=11)
    ax.set(xlim=(0, n), ylim=(n, 0), xlabel="key", ylabel="query", aspect="equal")
    places = [place + 0.5 for place in range(n)]
    ax.set_xticks(places, [str(place) for place in range(n)])
    ax.set_yticks(places, [str(place) for place in range(n)])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    count = sum(len(seen) for seen in data["seen"])
    ax.set_title(f"window of {data['window']}: {count} pairs (filled), × too old")


def _draw_cache(ax: Axes, data: dict[str, Any]) -> None:
    n, width = data["N"], data["window"]
    for token, held in enumerate(data["held"]):
        for place, content in enumerate(held):
            new = place == token % width
            face = {"facecolor": ORANGE, "alpha": 0.5} if new else {"facecolor": BLUE, "alpha": 0.2}
            if content is not None:
                ax.add_patch(Rectangle((place, token), 1, 1, linewidth=0, **face))
                weight = "bold" if new else "normal"
                ax.text(place + 0.5, token + 0.5, str(content), ha="center", va="center", size=10, weight=weight)
            ax.add_patch(Rectangle((place, token), 1, 1, facecolor="none", edgecolor=GRID, linewidth=0.8))
    ax.set(xlim=(-0.9, width + 0.9), ylim=(n, 0), xlabel=f"place in the cache: token mod {width}", ylabel="after token")
    ax.set_xticks([place + 0.5 for place in range(width)], [str(place) for place in range(width)])
    ax.set_yticks([token + 0.5 for token in range(n)], [str(token) for token in range(n)])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set_title("the cache: bold and orange, just written")


def tiles_data() -> dict[str, Any]:
    """What each tile of a window holds, and how many of each kind there are at two lengths."""
    lab = solution_module("08")
    kinds = lab.classify_tiles(SEQ_LEN, WINDOW, BLOCK)
    rows = ["".join(kind[0] for kind in row) for row in kinds.tolist()]
    counts = [{"N": n, **_counts(lab.classify_tiles(n, WINDOW, BLOCK))} for n in (SEQ_LEN, 8192)]
    return {"N": SEQ_LEN, "window": WINDOW, "block": BLOCK, "tiles": rows, "counts": counts}


def draw_tiles(data: dict[str, Any]) -> Figure:
    """Draw the tiles as squares: full ones filled, partial ones with a cross, empty ones blank."""
    figure, ax = plt.subplots(figsize=(5.0, 5.0))
    for a, row in enumerate(data["tiles"]):
        for b, kind in enumerate(row):
            face = {"f": BLUE, "p": "none", "e": "none"}[kind]
            ax.add_patch(Rectangle((b, a), 1, 1, facecolor=face, edgecolor=GRID, linewidth=0.7))
            if kind == "p":
                ax.plot([b + 0.25, b + 0.75], [a + 0.25, a + 0.75], color=ORANGE, linestyle="-", linewidth=1.6)
                ax.plot([b + 0.25, b + 0.75], [a + 0.75, a + 0.25], color=ORANGE, linestyle="-", linewidth=1.6)
    count = len(data["tiles"])
    ax.set(xlim=(0, count), ylim=(count, 0), xlabel="block of keys", ylabel="block of queries", aspect="equal")
    ticks = range(0, count, 4)
    ax.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    ax.set_yticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    ax.grid(visible=False)
    key = "filled: full\ncrossed: partial\nblank: empty"
    under = {"facecolor": PAPER, "edgecolor": "none", "pad": 3}
    ax.text(count - 0.3, 1.4, key, ha="right", va="top", color=INK, size=9, bbox=under)
    ax.set_title(f"N = {data['N']}, window {data['window']}, block {data['block']}")
    return figure


def lengths_data() -> dict[str, Any]:
    """Bytes over N: the peak of a training step of three forms, and of a block mask what is made and what is kept."""
    points = [{"form": form, "N": n, "bytes": _step_peak(form, n)} for form in STEPS for n in LENGTHS]
    for n in LENGTHS:
        peak, kept = _block_mask(n)
        points += [{"form": "building", "N": n, "bytes": peak}, {"form": "block_mask", "N": n, "bytes": kept}]
    return {"window": SMALL_WINDOW, "block": MASK_BLOCK, "d": HEAD_DIM, "heads": 1, "points": points}


def draw_lengths(data: dict[str, Any]) -> Figure:
    """Draw bytes over N: above the three training steps, below a block mask while it is made and when it is kept."""
    figure, (steps, masks) = plt.subplots(2, 1, figsize=(5.0, 7.6), sharex=True, height_ratios=[3, 2])
    for form, (label, colour, dash, marker, shift) in LOOKS.items():
        ax = steps if form in STEPS else masks
        points = [point for point in data["points"] if point["form"] == form]
        heights = [point["bytes"] / 1e6 for point in points]
        ax.plot([point["N"] for point in points], heights, color=colour, linestyle=dash, marker=marker, label=label)
        last = f"{heights[-1]:.1f} MB" if heights[-1] > 0.1 else f"{1000 * heights[-1]:.1f} kB"
        ax.annotate(last, (LENGTHS[-1], heights[-1]), xytext=(8, shift), textcoords="offset points", size=9)
    for ax, title in ((steps, "at the peak of a training step"), (masks, "a block mask")):
        ax.set_yscale("log")
        ax.set_xscale("log", base=2)
        ax.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
        ax.minorticks_off()
        ax.set(ylabel="MB", xlim=(230, 3300))
        ax.set_title(title)
        ax.legend(loc="upper left", fontsize=9)
    steps.set(ylim=(0.18, 400), yticks=[1, 10, 100], yticklabels=["1", "10", "100"])
    masks.set(xlabel="N", ylim=(3e-5, 4000), yticks=[1e-4, 0.01, 1, 100], yticklabels=["0.0001", "0.01", "1", "100"])
    return figure


def _counts(kinds: Any) -> dict[str, int]:
    return {kind: int((kinds == kind).sum()) for kind in ("full", "partial", "empty")}


def _step_peak(form: str, n: int) -> int:
    lab = solution_module("08")
    q, k, v = (torch.ones(1, 1, n, HEAD_DIM, requires_grad=True) for _ in range(3))

    def naive() -> torch.Tensor:
        mask = lab.window_mask(n, SMALL_WINDOW)
        return (q @ k.mT * HEAD_DIM**-0.5).masked_fill(mask, -torch.inf).softmax(-1) @ v

    forms: dict[str, Callable[[], torch.Tensor]] = {
        "naive_mask": naive,
        "causal_sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "tiled_window": lambda: lab.sliding_window_attention(q, k, v, SMALL_WINDOW, MASK_BLOCK),
    }
    with AllocationMeter() as meter:
        forms[form]().sum().backward()
    return meter.peak_bytes


def _block_mask(n: int) -> tuple[int, int]:
    def seen(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (j > i - SMALL_WINDOW)

    create_block_mask(seen, None, None, n, n, device="cpu", BLOCK_SIZE=MASK_BLOCK)  # what it imports is not counted
    with AllocationMeter() as meter:
        mask = create_block_mask(seen, None, None, n, n, device="cpu", BLOCK_SIZE=MASK_BLOCK)
    kept = meter.live_bytes
    del mask
    return meter.peak_bytes, kept


FIGURES = {
    "08_by_hand": Recipe(by_hand_data, draw_by_hand),
    "08_tiles": Recipe(tiles_data, draw_tiles),
    "08_memory_over_n": Recipe(lengths_data, draw_lengths),
}
