"""Chapter 09: a block table, from the tokens of a sequence to the blocks of a pool."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labstaff.figures import BLUE, INK, MUTED, ORANGE, Recipe, arrow, box, canvas, say

BLOCK, POOL, TABLE, UNUSED = 2, 8, [5, 2, -1], 0
N_TOKENS = 3


def table_data() -> dict[str, Any]:
    """The chapter's three tokens: for each its entry of the table, its block and its place there."""
    tokens = [
        {"token": t, "entry": t // BLOCK, "block": TABLE[t // BLOCK], "place": t % BLOCK} for t in range(N_TOKENS)
    ]
    return {"block_size": BLOCK, "pool": POOL, "table": TABLE, "tokens": tokens}


def draw_table(data: dict[str, Any]) -> Figure:
    """Draw tokens, table and pool below each other, with an arrow for each look-up."""
    figure, ax = plt.subplots(figsize=(5.0, 4.4))
    size = data["block_size"]
    canvas(ax, 17, 12.6)
    for t in range(len(data["table"]) * size):
        there = t < len(data["tokens"])
        box(
            ax,
            (3.4 + 1.6 * t, 0.9, 1.6, 1.2),
            f"{t}" if there else "",
            BLUE if there else MUTED,
            0.4 if there else 0.05,
        )
    say(ax, 0.1, 1.5, "tokens", ha="left", weight="bold")
    say(ax, 0.1, 4.9, "block table", ha="left", weight="bold")
    for entry, block in enumerate(data["table"]):
        left = 3.4 + 1.6 * size * entry
        say(ax, left + 1.6, 3.1, f"t // {size} = {entry}", color=MUTED)
        box(
            ax,
            (left + 0.6, 4.2, 2.0, 1.4),
            f"{block}".replace("-", "−"),
            ORANGE if block >= 0 else MUTED,
            0.3 if block >= 0 else 0.05,
            weight="bold",
        )
    say(ax, 0.1, 8.0, "pool", ha="left", weight="bold")
    for block in range(data["pool"]):
        left = 0.3 + 2.1 * block
        say(ax, left + 0.9, 8.85, f"block {block}", color=MUTED, size=8)
        for place in range(size):
            owner = next((each for each in data["tokens"] if (each["block"], each["place"]) == (block, place)), None)
            text = f"k{owner['token']}, v{owner['token']}" if owner else ""
            box(ax, (left, 9.3 + 1.1 * place, 1.8, 1.1), text, BLUE if owner else MUTED, 0.4 if owner else 0.05, size=8)
            if owner is None and block in data["table"]:
                ax.add_patch(
                    Rectangle(
                        (left, 9.3 + 1.1 * place), 1.8, 1.1, facecolor="none", edgecolor=INK, hatch="////", linewidth=0
                    )
                )
    for entry, block in enumerate(data["table"]):
        if block >= 0:
            arrow(ax, (3.4 + 1.6 * size * entry + 1.6, 5.75), (0.3 + 2.1 * block + 0.9, 8.5), ORANGE)
            arrow(ax, (3.4 + 1.6 * size * entry + 1.6, 3.45), (3.4 + 1.6 * size * entry + 1.6, 4.1))
    say(ax, 0.3, 12.1, "hatched: what an earlier owner left; −1: no block", ha="left", color=MUTED)
    return figure


FIGURES = {"09_block_table": Recipe(table_data, draw_table)}
