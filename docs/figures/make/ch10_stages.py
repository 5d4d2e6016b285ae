"""Chapter 10: tiles in transit, by the number of stages."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labstaff.figures import BLUE, ORANGE, Recipe, box

LOAD, PRODUCT, TILES, STAGES = 2, 1, 6, (1, 2, 3)
STAGE_BYTES = 2 * 64 * 64 * 2  # K and V, 64 keys of width 64 in float16


def stages_data() -> dict[str, Any]:
    """When each tile is loaded and multiplied: a load takes two products' time and needs a stage that is free."""
    runs = {}
    for stages in STAGES:
        steps: list[dict[str, Any]] = []
        for tile in range(TILES):
            begin = steps[tile - stages]["product"][1] if tile >= stages else 0
            start = max(begin + LOAD, steps[-1]["product"][1] if steps else 0)
            steps.append({"stage": tile % stages, "load": [begin, begin + LOAD], "product": [start, start + PRODUCT]})
        runs[str(stages)] = {"steps": steps, "shared_bytes": stages * STAGE_BYTES, "end": steps[-1]["product"][1]}
    return {"load": LOAD, "product": PRODUCT, "runs": runs}


def draw_stages(data: dict[str, Any]) -> Figure:
    """Draw a panel for each number of stages: a row for each stage, and one for the products."""
    figure, panels = plt.subplots(3, 1, figsize=(5.0, 5.6), sharex=True, height_ratios=[2, 3, 4])
    for ax, (stages, run) in zip(panels, data["runs"].items(), strict=True):
        for tile, step in enumerate(run["steps"]):
            begin, end = step["load"]
            box(ax, (begin, step["stage"] + 0.1, end - begin, 0.8), f"load {tile}", BLUE, 0.3)
            start, done = step["product"]
            if start > end:
                box(ax, (end, step["stage"] + 0.1, start - end, 0.8), "", BLUE, 0.08)
            box(ax, (start, int(stages) + 0.1, done - start, 0.8), f"{tile}", ORANGE, 0.4)
        names = [f"stage {stage}" for stage in range(int(stages))] + ["products"]
        ax.set(ylim=(len(names), 0), xlim=(0, 18.2))
        ax.set_yticks([at + 0.5 for at in range(len(names))], names)
        ax.set_xticks(range(0, 19, 3))
        ax.tick_params(length=0)
        ax.grid(visible=False)
        plural = "s" if int(stages) > 1 else ""
        ax.set_title(f"{stages} stage{plural}, {run['shared_bytes']:,} B: six tiles in {run['end']} units")
    panels[-1].set_xlabel("time; a product takes 1, a load 2")
    return figure


FIGURES = {"10_stages": Recipe(stages_data, draw_stages)}
