"""Chapter 07's figures: peak memory of four attentions over N, the saving, and what the causal routes keep.

Lab 07's solution is measured, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.meters.tensors import kept_by_forward, measure_peak
from labstaff.figures import BLUE, GREEN, ORANGE, PINK, Recipe

SHAPE = (1, 1)
HEAD_DIM = 16
LENGTHS = [64, 128, 256, 512, 1024]
CHUNK = 64
KEPT_LENGTHS = [64, 128, 256]
LOOKS = {
    "standard": ("standard", ORANGE, "--", "s"),
    "linear_causal": ("causal, cumsum", PINK, ":", "^"),
    "linear_bidir": ("bidirectional", GREEN, "-.", "D"),
    "linear_chunked": ("causal, in chunks of 64", BLUE, "-", "o"),
}
ROUTES = {
    "standard": "standard_attention",
    "linear_causal": "causal_linear_attention_cumsum",
    "linear_bidir": "linear_attention",
    "linear_chunked": "causal_linear_attention_chunked",
}
KEEPERS = {
    "cumsum": (PINK, ":", "^"),
    "recurrent": (ORANGE, "--", "s"),
    "chunked": (BLUE, "-", "o"),
    "scan": (GREEN, "-.", "D"),
}


def peaks_data() -> dict[str, Any]:
    """Measured and predicted peaks over the inputs in bytes, float32, on the CPU."""
    lab = solution_module("07")
    points = []
    for n in LENGTHS:
        inputs = [torch.ones(*SHAPE, n, HEAD_DIM) for _ in range(3)]
        predicted = lab.linear_attention_memory(*SHAPE, n, HEAD_DIM, 4)
        measured = {name: measure_peak(getattr(lab, ROUTES[name]), *inputs)[0] for name in LOOKS}
        points.append({"N": n, "measured": measured, "predicted": {name: predicted[f"{name}_peak"] for name in LOOKS}})
    return {"d": HEAD_DIM, "points": points}


def draw_peaks(data: dict[str, Any]) -> Figure:
    """Draw measured peaks as markers on the predicted lines."""
    figure, ax = plt.subplots(figsize=(5.0, 4.8))
    lengths = [point["N"] for point in data["points"]]
    for name, (label, colour, dash, marker) in LOOKS.items():
        lines = [[point[kind][name] / 2**20 for point in data["points"]] for kind in ("predicted", "measured")]
        ax.plot(lengths, lines[0], color=colour, linestyle=dash, label=label)
        ax.plot(lengths, lines[1], marker, color=colour, linestyle="none")
    _log_axes(ax, lengths)
    ax.set(xlabel="N", ylabel="peak over the inputs, MiB", title=f"d = {data['d']}: markers measured, lines predicted")
    ax.legend(loc="upper left")
    return figure


def savings_data() -> dict[str, Any]:
    """By how much the standard form's peak exceeds the bidirectional one's: the quotient of the predictions."""
    lab = solution_module("07")
    rows = []
    for n in (512, 1024, 2048, 4096, 8192):
        peaks = lab.linear_attention_memory(4, 8, n, 64, 2)
        rows.append({"N": n, "savings": peaks["standard_peak"] / peaks["linear_bidir_peak"]})
    return {"d": 64, "rows": rows}


def draw_savings(data: dict[str, Any]) -> Figure:
    """Draw the quotients as bars with their values."""
    figure, ax = plt.subplots(figsize=(5.0, 3.6))
    rows = data["rows"]
    bars = ax.bar([f"{row['N']:,}" for row in rows], [row["savings"] for row in rows], color=BLUE)
    ax.bar_label(bars, labels=[f"{row['savings']:.1f}×" for row in rows])
    ax.set(xlabel="N", ylabel="standard / bidirectional", title=f"d = {data['d']}, peak over the inputs")
    return figure


def kept_data() -> dict[str, Any]:
    """What each causal route keeps for its backward pass, in bytes, one head in float32."""
    lab = solution_module("07")
    points = []
    for n in KEPT_LENGTHS:
        inputs = [torch.ones(n, HEAD_DIM, requires_grad=True) for _ in range(3)]
        for name in KEEPERS:
            route = getattr(lab, f"causal_linear_attention_{name}")
            extra = (CHUNK,) if name in ("chunked", "scan") else ()
            points.append({"route": name, "N": n, "kept_bytes": kept_by_forward(route, *inputs, *extra)})
    return {"d": HEAD_DIM, "chunk": CHUNK, "points": points}


def draw_kept(data: dict[str, Any]) -> Figure:
    """Draw the bytes kept over N; routes that keep the same share a line, which names them all and says so."""
    figure, ax = plt.subplots(figsize=(5.0, 4.2))
    together: dict[tuple[int, ...], list[str]] = {}
    for name in KEEPERS:
        kept = tuple(point["kept_bytes"] for point in data["points"] if point["route"] == name)
        together.setdefault(kept, []).append(name)
    for kept, names in together.items():
        colour, dash, marker = KEEPERS[names[0]]
        label = f"{' and '.join(names)}: the same bytes" if len(names) > 1 else names[0]
        sizes = [n_bytes / 2**20 for n_bytes in kept]
        ax.plot(KEPT_LENGTHS, sizes, marker=marker, color=colour, linestyle=dash, label=label)
    _log_axes(ax, KEPT_LENGTHS)
    ax.set(xlabel="N", ylabel="kept for the backward pass, MiB", title=f"d = {data['d']}, chunks of {data['chunk']}")
    ax.set_ylim(top=2.2 * max(max(kept) for kept in together) / 2**20)  # room for the legend
    ax.legend(loc="upper left")
    return figure


def _log_axes(ax: Any, ticks: list[int]) -> None:
    for scale in (ax.set_xscale, ax.set_yscale):
        scale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.minorticks_off()


FIGURES = {
    "07_peaks_over_n": Recipe(peaks_data, draw_peaks),
    "07_memory_savings": Recipe(savings_data, draw_savings),
    "07_kept_for_backward": Recipe(kept_data, draw_kept),
}
