"""What the pages that chapters 2, 5 and 6 link to show first: the same traces as a stack of tensors over operators."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from labkit.trace.picture import pieces
from labstaff.figures import BLUE, GREEN, GRID, MUTED, ORANGE, PAPER, PINK, Recipe
from labstaff.traces import TRACES

KINDS = {"input": MUTED, "activation": BLUE, "temporary": GREEN, "gradient": ORANGE}
KIB = 2**10


def recipe(name: str) -> Recipe:
    """The recipe of the picture of one of the traces."""

    def data() -> dict[str, Any]:
        _, make = TRACES[name]
        runs = [
            {
                "name": title,
                "peak_bytes": trace.before_bytes + trace.peak_bytes,
                "operators": len(trace.steps),
                "backward": trace.passes[1].first,
                "pieces": {kind: [piece for of, *piece in pieces(trace) if of == kind] for kind in KINDS},
            }
            for title, trace in make()
        ]
        return {"runs": runs}

    return Recipe(data, draw)


def draw(data: dict[str, Any]) -> Figure:
    """Draw a block for each tensor, as high as its bytes, from the operator that makes it to its release."""
    figure, axes = plt.subplots(len(data["runs"]), figsize=(5.0, 5.0))
    most = max(run["peak_bytes"] for run in data["runs"])
    for ax, run in zip(axes, data["runs"], strict=True):
        _draw_run(ax, run)
        ax.set(xlim=(0, run["operators"]), ylim=(0, 1.08 * most / KIB), ylabel="KiB alive")
        ax.set_title(f"{run['name']}: peak {run['peak_bytes'] / KIB:,.0f} KiB")
    axes[-1].set_xlabel("operators, forward and then backward")
    handles = [Patch(color=colour, label=kind) for kind, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), fontsize=8.5)
    return figure


def _draw_run(ax: Axes, run: dict[str, Any]) -> None:
    edge = 0.4 if run["operators"] < 200 else 0
    for kind, pieces_of in run["pieces"].items():
        corners = [
            [(first, low / KIB), (end, low / KIB), (end, high / KIB), (first, high / KIB)]
            for first, end, low, high in pieces_of
        ]
        # One path for all blocks of a kind: a path for each makes the file three times as large.
        outline = Path.make_compound_path(*(Path(each, closed=False) for each in corners))
        ax.add_patch(PathPatch(outline, facecolor=KINDS[kind], edgecolor=PAPER, linewidth=edge))
    ax.axhline(run["peak_bytes"] / KIB, color=PINK, linewidth=1, linestyle="--")
    ax.axvline(run["backward"], color=MUTED, linewidth=1)
    ax.grid(color=GRID)


FIGURES = {f"{name}_walk": recipe(name) for name in TRACES}
