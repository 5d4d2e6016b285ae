"""States of the page of blocks as figures: one for its own page, and one that chapter 9 stops at.

Each is drawn from the page's own manager, so that a figure shows what the page shows in the same state.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import quickjs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labstaff.figures import BLUE, FIGURES_DIR, GREEN, INK, MUTED, ORANGE, PAPER, PINK, Recipe

FOLDER = FIGURES_DIR.parent / "_static" / "cache_blocks"
OWNERS = {"A": BLUE, "B": ORANGE, "C": GREEN, "D": PINK}
COLUMNS = 5
WIDTH, HEADER = 4.2, 1.6  # of a block, and of the strip with its owners, in places
GAP = 0.5


def state_data(scenario: str, position: int) -> dict[str, Any]:
    """The page's own data for one position: blocks, tables and counts."""
    context = quickjs.Context()
    for name in ("blocks.js", "scenarios.js"):
        context.eval((FOLDER / name).read_text(encoding="utf-8"))
    say = f"""(() => {{
      const {{ operations, blocks, size }} = cacheBlocks.SCENARIOS[{json.dumps(scenario)}];
      const here = cacheBlocks.run(operations, {{ numBlocks: blocks, blockSize: size }})[{position}];
      return JSON.stringify({{ scenario: {json.dumps(scenario)}, position: {position}, block_size: size, ...here }});
    }})()"""
    shown: dict[str, Any] = json.loads(context.eval(say))
    return shown


def draw_state(data: dict[str, Any]) -> Figure:
    """Draw the blocks with their owners and tokens, and the tables below."""
    blocks, size = data["blocks"], data["block_size"]
    n_rows = -(-len(blocks) // COLUMNS)
    height = HEADER + size + 2 * GAP
    figure, ax = plt.subplots(figsize=(5.0, 0.32 * n_rows * height))
    for b, block in enumerate(blocks):
        _draw_block(ax, block, b, size, ((b % COLUMNS) * (WIDTH + GAP), (b // COLUMNS) * (height + GAP)))
    ax.set(xlim=(-0.2, COLUMNS * (WIDTH + GAP)), ylim=(n_rows * (height + GAP), -0.4))
    ax.axis("off")
    tables = [f"{each['name']}: {each['table']}" for each in data["sequences"]]
    ax.set_title("    ".join(tables))
    return figure


def _draw_block(ax: Axes, block: dict[str, Any], number: int, size: int, corner: tuple[float, float]) -> None:
    x, y = corner
    owners, share = block["owners"], WIDTH / max(1, len(block["owners"]))
    ax.text(x, y + 0.5, f"{number} #" if block["findable"] else f"{number}", va="center", size=9, color=INK)
    for k, name in enumerate(owners):
        ax.add_patch(Rectangle((x + k * share, y + 1), share, HEADER - 0.4, color=OWNERS[name], linewidth=0))
        ax.text(x + (k + 0.5) * share, y + 1.6, name, ha="center", va="center", color=PAPER, size=9, weight="bold")
    if not owners:
        ax.text(x + WIDTH / 2, y + 1.6, "cached" if block["findable"] else "free", ha="center", va="center", size=9)
    for place in range(size):
        top = y + HEADER + 0.6 + place
        filled = place < len(block["tokens"])
        ax.add_patch(Rectangle((x, top), WIDTH, 1, facecolor="none", edgecolor=MUTED, linewidth=0.8))
        if filled:
            ax.text(x + 0.2, top + 0.55, block["tokens"][place], va="center", size=9)


FIGURES = {
    "cache_blocks": Recipe(partial(state_data, "tour", 12), draw_state),
    "09_copy_on_write": Recipe(partial(state_data, "tour", 8), draw_state),
}
