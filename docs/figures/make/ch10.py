"""Chapter 10's figures: a tile's lanes over a matrix that it does not divide, and the compiler's report on blocks.

The second compiles Lab 10's solution by `lab kernel`, so its data can be made again only where `solutions/` is,
and only under the version of Triton that the lock file names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labstaff.figures import BLUE, INK, MUTED, ORANGE, PAPER, Recipe

ROWS, WIDTH, TILE = 11, 5, 8  # a matrix of 11 × 5, and tiles of 8 × 8 lanes
BLOCKS = ["64x32", "64x64", "128x64", "128x128"]
LOOKS = {4: (ORANGE, "o", "-"), 8: (BLUE, "s", "--")}


def lanes_data() -> dict[str, Any]:
    """For each program, the lanes with an element, and the element whose address each of the others would have."""
    programs = []
    for program in range(-(-ROWS // TILE)):
        lanes = [(program * TILE + i, j) for i in range(TILE) for j in range(TILE)]
        inside = [i < ROWS and j < WIDTH for i, j in lanes]
        elements = [i * WIDTH + j for i, j in lanes]
        programs.append({"inside": inside, "elements": elements})
    return {"rows": ROWS, "width": WIDTH, "tile": TILE, "programs": programs}


def draw_lanes(data: dict[str, Any]) -> Figure:
    """Draw both programs' lanes, one below the other, each with the number of the element at its address."""
    tile, last = data["tile"], data["rows"] * data["width"] - 1
    figure, axes = plt.subplots(len(data["programs"]), 1, figsize=(5.0, 8.6))
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    for number, (ax, program) in enumerate(zip(axes, data["programs"], strict=True)):
        for lane, (inside, element) in enumerate(zip(program["inside"], program["elements"], strict=True)):
            i, j = divmod(lane, tile)
            past = element > last
            looks: dict[str, Any] = {"facecolor": BLUE, "alpha": 0.45} if inside else {"facecolor": "none"}
            ax.add_patch(Rectangle((j, i), 1, 1, linewidth=0, **looks))
            ax.add_patch(
                Rectangle((j, i), 1, 1, fill=False, edgecolor=MUTED, linewidth=0.8, hatch="//" if past else "")
            )
            ink = INK if inside else ORANGE
            behind: Any = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.2} if past else None
            ax.text(j + 0.5, i + 0.5, str(element), ha="center", va="center", size=8.5, color=ink, bbox=behind)
        _plain(ax, tile, f"program {number}: rows {number * tile} to {number * tile + tile - 1}")
    return figure


def _plain(ax: Axes, tile: int, title: str) -> None:
    ax.set(xlim=(-0.1, tile + 0.1), ylim=(tile + 0.1, -0.1), aspect="equal", xticks=[], yticks=[])
    ax.set_title(title, size=10)
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)


def compiler_data() -> dict[str, Any]:
    """The report of `lab kernel` on Lab 10's forward kernel, float16, d = 64, causal, two stages."""
    target = f"{solution_file(find_lab('10'))}:flash_forward"
    options = ["--blocks", ",".join(BLOCKS), "--causal", "--warps", "4,8", "--stages", "2", "--format", "json"]
    run = subprocess.run(
        [sys.executable, "-m", "labkit.commands.cli", "kernel", target, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    kept = ("block_q", "block_k", "arch", "num_warps", "shared", "registers", "stack", "products")
    return {"rows": [{name: row[name] for name in kept} for row in json.loads(run.stdout)]}


def draw_compiler(data: dict[str, Any]) -> Figure:
    """Draw registers and stack over the blocks, a column for each architecture."""
    figure, axes = plt.subplots(2, 2, figsize=(5.0, 5.6), sharex=True, sharey="row")
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    for column, arch in enumerate((80, 90)):
        for num_warps, (colour, mark, dash) in LOOKS.items():
            rows = [row for row in data["rows"] if row["arch"] == arch and row["num_warps"] == num_warps]
            names = [f"{row['block_q']}×\n{row['block_k']}" for row in rows]
            for ax, what in ((axes[0, column], "registers"), (axes[1, column], "stack")):
                heights = [row[what] for row in rows]
                ax.plot(names, heights, color=colour, marker=mark, linestyle=dash, label=f"{num_warps} warps")
        axes[0, column].axhline(255, color=MUTED, linewidth=1, linestyle=":")
        axes[0, column].set(title=f"sm_{arch}", ylim=(0, 290))
        axes[1, column].set(xlabel="block_q × block_k")
    axes[0, 0].set(ylabel="registers a thread")
    axes[1, 0].set(ylabel="stack, bytes a thread")
    axes[0, 0].annotate("255 there are", (0, 255), xytext=(0, 4), textcoords="offset points", size=8.5)
    axes[1, 1].legend(loc="upper left", fontsize=8.5)
    return figure


FIGURES = {
    "10_lanes": Recipe(lanes_data, draw_lanes),
    "10_compiler": Recipe(compiler_data, draw_compiler),
}
