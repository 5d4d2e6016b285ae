"""The figure of "Attention's memory in six numbers": what one user's cache takes, and what a step reads of it."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labkit.bench.cache_report import GIB, summed
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labstaff.derive.hybrids import MODELS, TOKENS
from labstaff.figures import BLUE, GRID, ORANGE, Recipe


def models_data() -> dict[str, Any]:
    """Bytes of one user's cache at 131,072 tokens, and bytes that a decoding step reads, by model."""
    totals = {
        title: summed(layers_of(read_config(PUBLISHED / f"{name}.json")), TOKENS) for name, title in MODELS.items()
    }
    return {
        "tokens": TOKENS,
        "models": {title: {"cache": x["cache"], "read": x["read"]} for title, x in totals.items()},
    }


def draw_models(data: dict[str, Any]) -> Figure:
    """Draw a line for each model, from what a step reads to what is kept."""
    figure, ax = plt.subplots(figsize=(5.4, 5.0))
    models = data["models"]
    for place, each in enumerate(models.values()):
        cache, read = each["cache"] / GIB, each["read"] / GIB
        ax.plot([read, cache], [place, place], "-", color=GRID, linewidth=2, zorder=1)
        ax.plot(cache, place, "o", color=BLUE, markersize=9, zorder=2, label="" if place else "the cache")
        ax.plot(read, place, "D", color=ORANGE, markersize=5, zorder=3, label="" if place else "a step reads")
        ax.annotate(f"{cache:.1f}", (cache, place), xytext=(9, 0), textcoords="offset points", va="center", size=8.5)
    ax.set_xscale("log", base=2)
    ax.set_xticks([1 / 4, 1, 4, 16], ["1/4", "1", "4", "16"])
    ax.minorticks_off()
    ax.set_yticks(range(len(models)), list(models))
    ax.set(xlabel="GiB of one user with 131,072 tokens", xlim=(0.2, 32), ylim=(len(models) - 0.5, -0.7))
    ax.legend(loc="upper left", fontsize=8.5)
    return figure


FIGURES = {"six_numbers": Recipe(models_data, draw_models)}
