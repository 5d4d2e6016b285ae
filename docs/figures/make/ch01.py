"""Chapter 01, measured figures: memory over N, and which N×N arrays are alive when."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

KIB, MIB = 2**10, 2**20
HEAD_DIM = 64
A100_L2_MIB = 40

Arrays = dict[str, Any]
Steps = list[tuple[str, Callable[[Arrays], object]]]

# Three forms of the same attention, as operations on a dict of arrays: what a name keeps alive stays in the dict.
# 1/sqrt(d) is in Q before the count starts.
NAMED: Steps = [
    ("S = QKᵀ", lambda a: a.update(scores=a["Q"] @ a["K"].T)),
    ("S − m", lambda a: a.update(shifted=a["scores"] - a["scores"].max(axis=-1, keepdims=True))),
    ("exp", lambda a: a.update(exps=np.exp(a["shifted"]))),
    ("÷ ℓ", lambda a: a.update(weights=a["exps"] / a["exps"].sum(axis=-1, keepdims=True))),
    ("PV", lambda a: a.update(output=a["weights"] @ a["V"])),
]
REBOUND: Steps = [
    ("S = QKᵀ", lambda a: a.update(x=a["Q"] @ a["K"].T)),
    ("S − m", lambda a: a.update(x=a["x"] - a["x"].max(axis=-1, keepdims=True))),
    ("exp", lambda a: a.update(x=np.exp(a["x"]))),
    ("÷ ℓ", lambda a: a.update(x=a["x"] / a["x"].sum(axis=-1, keepdims=True))),
    ("PV", lambda a: a.update(output=a["x"] @ a["V"])),
]
IN_PLACE: Steps = [
    ("S = QKᵀ", lambda a: a.update(x=a["Q"] @ a["K"].T)),
    ("S − m", lambda a: np.subtract(a["x"], a["x"].max(axis=-1, keepdims=True), out=a["x"])),
    ("exp", lambda a: np.exp(a["x"], out=a["x"])),
    ("÷ ℓ", lambda a: np.divide(a["x"], a["x"].sum(axis=-1, keepdims=True), out=a["x"])),
    ("PV", lambda a: a.update(output=a["x"] @ a["V"])),
]


def memory_over_n_data() -> dict[str, Any]:
    """Bytes of real NumPy arrays: the inputs, and the peak of two forms of attention."""
    lengths = [256, 512, 1024, 2048, 4096]
    points = [
        {
            "N": n,
            "inputs_bytes": sum(array.nbytes for array in _inputs(n).values()),
            "named_peak_kib": _peak_kib(NAMED, n),
            "in_place_peak_kib": _peak_kib(IN_PLACE, n),
        }
        for n in lengths
    ]
    return {"d": HEAD_DIM, "dtype": "float32", "points": points}


def draw_memory_over_n(data: dict[str, Any]) -> Figure:
    """Draw bytes over N on log2 axes: lines from formulas, points from measurement."""
    figure, axes = plt.subplots(figsize=(5.0, 4.8))
    ns = 2.0 ** np.arange(8, 15)
    d, measured = data["d"], data["points"]
    seen = [point["N"] for point in measured]
    series = [
        ("named temporaries, 4N² + Nd", 4 * ns**2 + ns * d, "named_peak_kib", KIB, ORANGE, "-", "s"),
        ("in place, N² + Nd", ns**2 + ns * d, "in_place_peak_kib", KIB, BLUE, "--", "o"),
        ("inputs Q, K, V, 3Nd", 3 * ns * d, "inputs_bytes", 1, GREEN, "-.", "^"),
    ]
    for label, elements, key, unit, colour, dash, marker in series:
        axes.plot(ns, 4 * elements, color=colour, linestyle=dash)
        axes.plot(seen, [point[key] * unit for point in measured], marker, color=colour, label=label)
    axes.axhline(A100_L2_MIB * MIB, color=MUTED, linestyle=":", linewidth=1.2)
    axes.text(240, 1.1 * A100_L2_MIB * MIB, f"A100’s L2 cache, {A100_L2_MIB} MiB", va="bottom", color=MUTED, size=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ns, [f"{int(n)}" for n in ns])
    ticks = [2.0**k * MIB for k in range(-2, 13, 2)]
    axes.set_yticks(ticks, [_mib_label(tick) for tick in ticks])
    axes.set(xlabel="sequence length N", ylim=(0.12 * MIB, 8192 * MIB), xlim=(220, 18500))
    axes.set_title(f"bytes alive at the peak, one head, d = {d}, float32")
    axes.minorticks_off()
    axes.legend(loc="upper left", handletextpad=0.3)
    at = {point["N"]: point for point in measured}[4096]
    for key, unit, beside in (
        ("named_peak_kib", KIB, False),
        ("in_place_peak_kib", KIB, True),
        ("inputs_bytes", 1, True),
    ):
        amount = at[key] * unit
        axes.annotate(
            f"{amount / MIB:.0f} MiB",
            (4096, amount),
            xytext=(9, -5) if beside else (-8, 5),
            textcoords="offset points",
            ha="left" if beside else "right",
            size=9,
        )
    return figure


def alive_when_data() -> dict[str, Any]:
    """Peak of each step of three forms of attention, and bytes alive after it, in whole MiB at N = 4096."""
    n = 4096
    forms = {"named temporaries": NAMED, "one name, rebound": REBOUND, "in place": IN_PLACE}
    return {
        "N": n,
        "d": HEAD_DIM,
        "dtype": "float32",
        "matrix_mib": n * n * 4 // MIB,
        "forms": {
            name: [
                {"step": step, "peak_mib": round(peak / MIB), "alive_after_mib": round(after / MIB)}
                for step, peak, after in _run(steps, n)
            ]
            for name, steps in forms.items()
        },
    }


def draw_alive_when(data: dict[str, Any]) -> Figure:
    """Draw, for each form and step, the N×N arrays alive as blocks and the measured peak as a mark."""
    one = ["x"]
    blocks = {
        "named temporaries": [["S"], ["S", "S−m"], ["S", "S−m", "E"], *[["S", "S−m", "E", "P"]] * 2],
        "one name, rebound": [one, ["old x", "new x"], ["old x", "new x"], ["old x", "new x"], one],
        "in place": [one] * 5,
    }
    colours = {"S": BLUE, "S−m": GREEN, "E": PINK, "P": ORANGE, "x": BLUE, "old x": BLUE, "new x": ORANGE}
    figure, rows = plt.subplots(3, 1, figsize=(5.0, 7.2), sharex=True, height_ratios=[5.1, 3.1, 2.1])
    matrix = data["matrix_mib"]
    for axes, (name, steps) in zip(rows, data["forms"].items(), strict=True):
        for x, (step, names) in enumerate(zip(steps, blocks[name], strict=True)):
            for level, label in enumerate(names):
                axes.bar(x, 0.94, bottom=level + 0.03, width=0.8, color=colours[label], alpha=0.3, linewidth=0)
                axes.text(x, level + 0.5, label, ha="center", va="center", size=9)
            top = step["peak_mib"] / matrix
            axes.plot([x - 0.42, x + 0.42], [top, top], color=INK, linestyle="-", linewidth=2)
            axes.text(x, top + 0.1, f"{step['peak_mib']} MiB", ha="center", va="bottom", size=9)
        highest = max(step["peak_mib"] for step in steps)
        axes.set_title(f"{name}: peak {highest} MiB = {highest / matrix:.2f} N²", weight="bold", pad=8)
        axes.set(
            ylim=(0, {"named temporaries": 4.8, "one name, rebound": 2.8, "in place": 1.8}[name]), ylabel="N² arrays"
        )
        axes.set_yticks(range(len(max(blocks[name], key=len)) + 1))
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
    rows[-1].set_xticks(range(5), [step["step"] for step in data["forms"]["in place"]])
    rows[-1].set_xlabel("step, left to right in time")
    return figure


FIGURES = {
    "01_memory_over_n": Recipe(memory_over_n_data, draw_memory_over_n),
    "01_alive_when": Recipe(alive_when_data, draw_alive_when),
}


def _inputs(n: int) -> Arrays:
    generator = np.random.default_rng(0)
    arrays: Arrays = {name: generator.standard_normal((n, HEAD_DIM), dtype=np.float32) for name in "QKV"}
    arrays["Q"] *= np.float32(HEAD_DIM**-0.5)
    return arrays


def _run(steps: Steps, n: int) -> list[tuple[str, int, int]]:
    """Return (step, peak bytes during it, bytes alive after it), inputs not counted."""
    small, arrays, seen = _inputs(16), _inputs(n), []
    for _, operation in steps:  # once outside the count: imports and caches are not the operation's memory
        operation(small)
    tracemalloc.start()
    try:
        for step, operation in steps:
            tracemalloc.reset_peak()
            operation(arrays)
            after, peak = tracemalloc.get_traced_memory()
            seen.append((step, peak, after))
    finally:
        tracemalloc.stop()
    return seen


def _peak_kib(steps: Steps, n: int) -> int:
    """Return the peak in KiB, cut to whole pages of 4 KiB: Python's own objects, under 2 KiB, fall away."""
    return max(peak for _, peak, _ in _run(steps, n)) // (4 * KIB) * 4


def _mib_label(amount: float) -> str:
    mib = amount / MIB
    return f"{mib:.0f} MiB" if mib >= 1 else f"{mib:g} MiB"
