"""Chapter 06: where the memory of training a whole model goes, in stacked bars."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labkit.bench.model_memory import MODELS, training_memory
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PINK, Recipe

GIB = 2**30
MODEL, BATCH, SEQ_LEN = "llama-3.2-1b", 1, 4096
BARS = {
    "attention\nwritten out": ("written_out", "none"),
    "attention\nfused": ("fused", "none"),
    "fused, each\nlayer runs\ntwice": ("fused", "layers"),
}
LOOKS = {
    "weights": (MUTED, ""),
    "gradients": (GREEN, ""),
    "optimizer": (BLUE, ""),
    "activations": (PINK, "//"),
    "attention": (ORANGE, "xx"),
    "logits": (PAPER, ".."),
}
MIN_FOR_A_NAME_GIB, MIN_FOR_A_LABEL_GIB = 1.2, 0.1
"""A part from the first size on holds its name; a thinner one is pointed at; one below the second has no height."""


def whole_model_data() -> dict[str, Any]:
    """Bytes of each part, for three ways to train the same model."""
    bars = {
        name.replace("\n", " "): training_memory(MODELS[MODEL], BATCH, SEQ_LEN, attention, checkpoint)
        for name, (attention, checkpoint) in BARS.items()
    }
    return {"model": MODEL, "parameters": MODELS[MODEL].parameters, "batch": BATCH, "seq_len": SEQ_LEN, "bars": bars}


def draw_whole_model(data: dict[str, Any]) -> Figure:
    """Draw one bar for each way, its parts stacked from the weights up."""
    figure, ax = plt.subplots(figsize=(5.0, 6.2))
    for at, parts in enumerate(data["bars"].values()):
        height = 0.0
        for part, nbytes in parts.items():
            colour, hatch = LOOKS[part]
            size = nbytes / GIB
            ax.bar(at, size, bottom=height, width=0.74, color=colour, alpha=0.35, linewidth=0)
            ax.bar(
                at,
                size,
                bottom=height,
                width=0.74,
                facecolor="none",
                edgecolor=INK if colour == PAPER else colour,
                hatch=hatch,
                linewidth=0.9,
            )
            if size >= MIN_FOR_A_NAME_GIB:
                under = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.2, "alpha": 0.85} if hatch else None
                ax.text(at, height + size / 2, f"{part} {size:.1f}", ha="center", va="center", size=8.5, bbox=under)
            elif size >= MIN_FOR_A_LABEL_GIB:
                ax.annotate(
                    f"{part} {size:.1f}",
                    (at, height + size / 2),
                    xytext=(at, height - 2.2),
                    ha="center",
                    size=8.5,
                    arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.9, "shrinkB": 0},
                )
            height += size
        ax.text(at, height + 0.4, f"{height:.1f} GiB", ha="center", va="bottom", weight="bold", size=9.5)
    ax.set_xticks(range(len(BARS)), list(BARS))
    ax.set(ylabel="GiB", ylim=(0, 46), xlim=(-0.5, len(BARS) - 0.5))
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    ax.grid(axis="x", visible=False)
    billions = data["parameters"] / 1e9
    ax.set_title(f"{data['model']}, {billions:.2f}·10⁹ parameters, {data['batch']} × {data['seq_len']:,} tokens")
    return figure


FIGURES = {"06_whole_model": Recipe(whole_model_data, draw_whole_model)}
