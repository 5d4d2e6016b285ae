"""Chapter 04's figures: tiles under a causal mask, traffic over the size of SRAM and over the shape of tiles."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.testing.tiles import io_formulas as forms
from labstaff import io_blocks
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, Recipe

N, D = 4096, 64
KIB, MIB = 2**10, 2**20
SRAM_KIB = [4 * 2 ** (k / 4) for k in range(29)]
GPUS_KIB = {"RTX 4090": 100, "A100": 164, "H100": 228}
ORDERS = {
    "queries outside": (forms.queries_outside_traffic, io_blocks.queries_outside_blocks),
    "keys outside": (forms.keys_outside_traffic, io_blocks.keys_outside_blocks),
    "standard": (forms.naive_traffic, io_blocks.naive_blocks),
}
STYLES = {"queries outside": (BLUE, "-"), "keys outside": (GREEN, "-."), "standard": (ORANGE, "--")}
LENGTH, TILINGS = 24, [(4, 4), (8, 3)]


def tiles_data() -> dict[str, Any]:
    """The position of each tile of a causal score matrix: "below", "crossed" by or "above" the diagonal."""
    panels = []
    for block_q, block_k in TILINGS:
        kinds = [
            [_kind(i, i + block_q - 1, j, j + block_k - 1) for j in range(0, LENGTH, block_k)]
            for i in range(0, LENGTH, block_q)
        ]
        count = {kind: sum(row.count(kind) for row in kinds) for kind in ("below", "crossed", "above")}
        panels.append({"block_q": block_q, "block_k": block_k, "kinds": kinds, "count": count})
    return {"N": LENGTH, "panels": panels}


def _kind(first_row: int, last_row: int, first_column: int, last_column: int) -> str:
    if first_column > last_row:
        return "above"
    return "below" if last_column <= first_row else "crossed"


def draw_tiles(data: dict[str, Any]) -> Figure:
    """Draw one matrix of tiles below the other, with the diagonal and the tiles that J ≤ I would take."""
    figure, axes = plt.subplots(2, 1, figsize=(4.6, 9.0))
    for ax, panel in zip(axes, data["panels"], strict=True):
        _draw_matrix(ax, data["N"], panel)
    return figure


def _draw_matrix(ax: Axes, n: int, panel: dict[str, Any]) -> None:
    height, width = panel["block_q"], panel["block_k"]
    fills: dict[str, tuple[Any, str]] = {
        "below": ((BLUE, 0.35), ""),
        "crossed": ("none", "////"),
        "above": ("none", ""),
    }
    for row, kinds in enumerate(panel["kinds"]):
        for column, kind in enumerate(kinds):
            fill, hatch = fills[kind]
            corner = column * width, row * height
            edge = PAPER if kind == "below" else BLUE
            ax.add_patch(Rectangle(corner, width, height, facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=0.8))
            if (column <= row) != (kind != "above"):
                middle = corner[0] + width / 2, corner[1] + height / 2
                ax.plot(*middle, marker="x", color=ORANGE, markersize=8, markeredgewidth=2)
    ax.step(range(1, n + 1), range(n), where="pre", color=INK, linewidth=1.4, linestyle="-")
    visited = panel["count"]["below"] + panel["count"]["crossed"]
    ax.set_title(f"tiles of {height} × {width}: {visited} visited, {panel['count']['above']} skipped")
    ax.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel="key j", ylabel="query i")
    ax.set_xticks(range(0, n + 1, width))
    ax.set_yticks(range(0, n + 1, height))
    ax.grid(False)


def traffic_data() -> dict[str, Any]:
    """Bytes moved with the best blocks, over the size of SRAM, and where tiled starts to move less than standard."""
    sizes = [round(kib * KIB) for kib in SRAM_KIB]
    moved = {
        name: [form(N, N, D, D, *blocks(size, D)).total for size in sizes] for name, (form, blocks) in ORDERS.items()
    }
    return {
        "N": N,
        "d": D,
        "dtype_bytes": 4,
        "sram_bytes": sizes,
        "traffic_bytes": moved,
        "once_bytes": 4 * N * D * 4,
        "crossover_bytes": {
            name: io_blocks.crossover_bytes(N, D, keys_outside=name == "keys outside") for name in list(ORDERS)[:2]
        },
        "gpus_kib": GPUS_KIB,
    }


def draw_traffic(data: dict[str, Any]) -> Figure:
    """Draw the three curves on logarithmic axes, the floor, and the SRAM of three GPUs."""
    figure, ax = plt.subplots(figsize=(5.0, 4.8))
    sizes = [size / KIB for size in data["sram_bytes"]]
    for name, moved in data["traffic_bytes"].items():
        colour, dash = STYLES[name]
        ax.plot(sizes, [n_bytes / MIB for n_bytes in moved], color=colour, linestyle=dash, label=name)
    crossing = data["crossover_bytes"]["queries outside"]
    at = crossing / KIB, forms.naive_traffic(N, N, D, D, *io_blocks.naive_blocks(crossing, D)).total / MIB
    ax.plot(*at, "o", color=INK, markersize=7, fillstyle="none")
    ax.annotate("they cross", at, xytext=(8, 8), textcoords="offset points", size=9, color=INK)
    floor = data["once_bytes"] / MIB
    ax.axhline(floor, color=MUTED, linestyle=":", linewidth=1.2)
    ax.text(4.2, floor * 1.08, "inputs and output, once", color=MUTED, size=9)
    for name, kib in data["gpus_kib"].items():
        ax.axvline(kib, color=MUTED, linestyle=":", linewidth=1.2)
        ax.text(kib * 0.97, 1150, name, color=MUTED, size=9, rotation=90, ha="right", va="top")
    ax.set(xlim=(4, 512), ylim=(3, 4096), xlabel="SRAM, KiB", ylabel="bytes moved, MiB")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks([2**k for k in range(2, 10)], [f"{2**k}" for k in range(2, 10)])
    ax.set_yticks([2**k for k in range(2, 13, 2)], [f"{2**k:,}" for k in range(2, 13, 2)])
    ax.minorticks_off()
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 0.12))
    ax.set_title(f"one head, N = {data['N']}, d = {data['d']}, float32")
    return figure


def shape_data() -> dict[str, Any]:
    """Bytes moved over block_q, with the largest block_k that still fits, in 100 KiB."""
    sram_bytes = GPUS_KIB["RTX 4090"] * KIB
    capacity, points = sram_bytes // 4, []
    for block_q in [2**k for k in range(8)]:
        outside_q = (capacity - block_q * (3 * D + 3)) // (D + block_q)
        outside_k = (capacity - block_q * (3 * D + 3)) // (2 * D + block_q)
        if outside_k < 1:
            break
        points.append(
            {
                "block_q": block_q,
                "queries outside": {
                    "block_k": outside_q,
                    "traffic_bytes": forms.queries_outside_traffic(N, N, D, D, block_q, outside_q).total,
                },
                "keys outside": {
                    "block_k": outside_k,
                    "traffic_bytes": forms.keys_outside_traffic(N, N, D, D, block_q, outside_k).total,
                },
            }
        )
    standard = forms.naive_traffic(N, N, D, D, *io_blocks.naive_blocks(sram_bytes, D)).total
    return {"N": N, "d": D, "sram_bytes": sram_bytes, "standard_bytes": standard, "points": points}


def draw_shape(data: dict[str, Any]) -> Figure:
    """Draw traffic over block_q for both orders of the loops, each point with its block_k."""
    figure, ax = plt.subplots(figsize=(5.0, 4.4))
    # Where the two lines cross, a number is to the side of its point instead.
    offsets = {("queries outside", 32): (-14, -9), ("queries outside", 64): (-3, -14)}
    offsets |= {("keys outside", 64): (-13, 4), ("keys outside", 128): (-11, -3)}
    for name, marker, below in (("queries outside", "o", False), ("keys outside", "s", True)):
        colour, dash = STYLES[name]
        x = [point["block_q"] for point in data["points"]]
        y = [point[name]["traffic_bytes"] / MIB for point in data["points"]]
        ax.plot(x, y, color=colour, linestyle=dash, marker=marker, label=name)
        for a, b, point in zip(x, y, data["points"], strict=True):
            ax.annotate(
                str(point[name]["block_k"]),
                (a, b),
                xytext=offsets.get((name, point["block_q"]), (0, -14 if below else 7)),
                textcoords="offset points",
                ha="center",
                size=8.5,
                color=colour,
            )
    standard = data["standard_bytes"] / MIB
    ax.axhline(standard, color=ORANGE, linestyle="--", linewidth=1.4)
    ax.text(0.85, standard * 1.1, "standard", color=ORANGE, size=9)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(x, [str(value) for value in x])
    ticks = [2**k for k in range(6, 15, 2)]
    ax.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.set(xlabel="block_q", ylabel="bytes moved, MiB", ylim=(36, 20000), xlim=(0.75, 180))
    ax.minorticks_off()
    ax.legend(loc="upper right")
    ax.set_title(f"SRAM of {data['sram_bytes'] // KIB} KiB; numbers at the points: block_k")
    return figure


FIGURES = {
    "04_causal_tiles": Recipe(tiles_data, draw_tiles),
    "04_traffic_over_sram": Recipe(traffic_data, draw_traffic),
    "04_block_shapes": Recipe(shape_data, draw_shape),
}
