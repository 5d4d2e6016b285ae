"""States of the tile loop as figures: one for its own page, and those that chapters 4 and 5 stop at.

Each is drawn from the page's own counts, so that a figure shows what the page shows in the same state.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import quickjs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labstaff.figures import BLUE, FIGURES_DIR, GREEN, INK, MUTED, ORANGE, PAPER, Recipe

COUNTS = FIGURES_DIR.parent / "_static" / "tile_loop" / "counts.js"
CAUSAL = {
    "order": "queries",
    "nQueries": 16,
    "nKeys": 16,
    "d": 4,
    "dV": 4,
    "blockQ": 4,
    "blockK": 4,
    "causal": True,
    "sramBytes": 512,
}
PENCIL = {**CAUSAL, "nQueries": 8, "nKeys": 8, "blockK": 2, "causal": False}
KINDS: dict[str, tuple[Any, str]] = {
    "visited": ((BLUE, 0.4), ""),
    "now": (ORANGE, ""),
    "to come": ("none", ""),
    "skipped": ("none", "////"),
}
GROUPS = {"Q": BLUE, "K": BLUE, "V": BLUE, "S": ORANGE, "P": ORANGE, "P V": ORANGE}
NARROW_SHARE = 30 / 512
"""What is narrower than this share of SRAM gets no name in it."""


def state_data(setting: dict[str, Any], position: int) -> dict[str, Any]:
    """The page's own counts for one step: tiles by state, arrays in SRAM, bytes moved."""
    context = quickjs.Context()
    context.eval(COUNTS.read_text(encoding="utf-8"))
    say = f"""(() => {{
      const settings = {json.dumps(setting)}, loop = tileLoop.makeLoop(settings);
      const rows = Array.from({{length: loop.rowBlocks}}, (_, i) => loop.tilesInRow(i));
      return JSON.stringify({{here: loop.at({position}), rows, total: loop.total.total, needs: loop.needs,
                              columnBlocks: loop.columnBlocks, standard: tileLoop.standard(settings)}});
    }})()"""
    shown = json.loads(context.eval(say))
    here = shown["here"]
    kinds = [
        [_kind(setting["order"], (i, j), visible, (here["i"], here["j"])) for j in range(shown["columnBlocks"])]
        for i, visible in enumerate(shown["rows"])
    ]
    return {
        "setting": setting,
        "position": position,
        "phase": here["phase"],
        "kinds": kinds,
        "alive_bytes": {name: part["bytes"] for name, part in here["alive"].items()},
        "in_use_bytes": here["inUse"],
        "high_water_bytes": here["highWater"],
        "moved_bytes": here["moved"]["total"],
        "total_bytes": shown["total"],
        "standard_bytes": shown["standard"]["total"],
        "matrix_bytes": shown["standard"]["matrixBytes"],
    }


def both_orders_data() -> dict[str, Any]:
    """Chapter 4's example in both orders of the loops, each somewhat past its middle."""
    return {
        "queries outside": state_data(PENCIL, 21),
        "keys outside": state_data({**PENCIL, "order": "keys"}, 22),
    }


def draw_state(data: dict[str, Any]) -> Figure:
    """Draw the matrix of tiles, and below it what SRAM holds of its capacity."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(4.8, 5.9), height_ratios=[5, 1])
    _draw_tiles(above, data)
    _draw_sram(below, data)
    return figure


def draw_both_orders(data: dict[str, Any]) -> Figure:
    """Draw both states, one above the other."""
    figure, axes = plt.subplots(4, 1, figsize=(4.8, 9.4), height_ratios=[5, 1, 5, 1])
    for at, (name, state) in enumerate(data.items()):
        _draw_tiles(axes[2 * at], state, f"{name}: ")
        _draw_sram(axes[2 * at + 1], state)
    return figure


def _kind(order: str, tile: tuple[int, int], visible: int, now: tuple[int, int]) -> str:
    if tile[1] >= visible:
        return "skipped"
    if tile == now:
        return "now"
    before = tile < now if order == "queries" else tile[::-1] < now[::-1]
    return "visited" if before else "to come"


def _draw_tiles(ax: Axes, data: dict[str, Any], name: str = "") -> None:
    n, height, width = (data["setting"][size] for size in ("nQueries", "blockQ", "blockK"))
    for i, row in enumerate(data["kinds"]):
        for j, kind in enumerate(row):
            fill, hatch = KINDS[kind]
            corner = j * width, i * height
            ax.add_patch(Rectangle(corner, width, height, facecolor=fill, hatch=hatch, edgecolor=MUTED, linewidth=0.8))
    if data["setting"]["causal"]:
        ax.step(range(1, n + 1), range(n), where="pre", color=INK, linewidth=1.2, linestyle="-")
    ax.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel="key j", ylabel="query i")
    ax.set_xticks(range(0, n + 1, width))
    ax.set_yticks(range(0, n + 1, height))
    ax.grid(False)
    count = {kind: sum(row.count(kind) for row in data["kinds"]) for kind in KINDS}
    keys = [
        Patch(facecolor=fill, hatch=hatch, edgecolor=MUTED, label=f"{count[kind]} {kind}")
        for kind, (fill, hatch) in KINDS.items()
        if count[kind]
    ]
    ax.legend(handles=keys, loc="center left", bbox_to_anchor=(1.02, 0.5))
    ax.set_title(f"{name}{data['moved_bytes']:,} of {data['total_bytes']:,} B moved")


def _draw_sram(ax: Axes, data: dict[str, Any]) -> None:
    start, capacity = 0, data["setting"]["sramBytes"]
    for name, n_bytes in data["alive_bytes"].items():
        ax.barh(0, n_bytes, left=start, height=0.7, color=GROUPS.get(name, GREEN), edgecolor=PAPER)
        if n_bytes > NARROW_SHARE * capacity:
            ax.text(start + n_bytes / 2, 0, name, ha="center", va="center", color=PAPER, size=9.5)
        start += n_bytes
    ax.set(xlim=(0, capacity), ylim=(-0.5, 0.5), yticks=[], xlabel="bytes of SRAM; narrow pieces: m, l, α")
    ax.set_xticks(range(0, capacity + 1, 64))
    ax.spines["left"].set_visible(False)
    ax.grid(False)
    ax.set_title(f"in SRAM: {data['in_use_bytes']} of {capacity} B")


FIGURES = {
    "tile_loop": Recipe(partial(state_data, CAUSAL, 20), draw_state),
    "04_both_orders": Recipe(both_orders_data, draw_both_orders),
    "05_one_step": Recipe(partial(state_data, CAUSAL, 31), draw_state),
}
