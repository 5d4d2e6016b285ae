"""Tells what stands in the matplotlib Axes that a function drew in, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def axes_drawn_in(
    plot: Callable[..., Any], results: Any, *, given: bool = True, others_current: bool = False
) -> dict[str, Any]:
    """Call `plot(results, ax=…)`, or without `ax` while other Axes are there. What then stands in the Axes drawn in.

    Where the result is no Axes, it is handed back, and told is what stands in the Axes that were there.
    With `others_current`, pyplot's current Axes are of a further figure, made later than the Axes given; what stands in
    them is told too.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.axes
    import matplotlib.pyplot as plt

    plt.close("all")
    try:
        there = plt.subplots()[1]
        others = plt.figure().add_subplot() if others_current else None
        n_figures = len(plt.get_fignums())
        result = plot(results, ax=there) if given else plot(results)
        is_axes = isinstance(result, matplotlib.axes.Axes)
        return {
            "is_axes": is_axes,
            "result": None if is_axes else result,
            "is_there_before": result is there,
            "n_new_figures": len(plt.get_fignums()) - n_figures,
            "others": None if others is None else _told(others),
            "results": results,
            **_told(result if is_axes and not given else there),
        }
    finally:
        plt.close("all")


def _told(axes: Any) -> dict[str, Any]:
    legend = axes.get_legend()
    return {
        "lines": [(line.get_label(), *map(np.asarray, line.get_data())) for line in axes.get_lines()],
        "scales": {"x": axes.xaxis.get_scale(), "y": axes.yaxis.get_scale()},
        "bases": {
            "x": getattr(axes.xaxis.get_transform(), "base", None),
            "y": getattr(axes.yaxis.get_transform(), "base", None),
        },
        "labels": {"x": axes.get_xlabel(), "y": axes.get_ylabel()},
        "legend": None if legend is None else [text.get_text() for text in legend.get_texts()],
    }
