"""Chapter 07: the parallel scan as a tree, and the recall of a state of fixed size."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GREEN, INK, ORANGE, PAPER, Recipe

LEAVES = "abcdefgh"
LENGTHS = [16, 32, 64, 128, 256, 512, 1024, 2048]
WIDTHS = [32, 64]
SEED = 0
LEVEL_HEIGHT = 1.5

Floats = npt.NDArray[np.float64]


def scan_data() -> dict[str, Any]:
    """The sums of an exclusive scan over eight chunks: level by level upwards, then the starts on the way down."""
    up = [list(LEAVES)]
    while len(up[-1]) > 1:
        up.append([left + right for left, right in zip(up[-1][::2], up[-1][1::2], strict=True)])
    down = [[""]]
    for sums in up[-2::-1]:
        down.append([start for at, before in enumerate(down[-1]) for start in (before, before + sums[2 * at])])
    return {
        "up": [[_named(sums) for sums in level] for level in up[:-1]],
        "down": [[_named(sums) for sums in level] for level in down],
        "additions": sum(len(level) // 2 for level in up[:-2]) + sum(len(level) // 2 for level in down[2:]),
        "rounds": (len(up) - 2) + (len(down) - 2),
    }


def draw_scan(data: dict[str, Any]) -> Figure:
    """Draw the sums from top to bottom: pairs are added, then starts are handed down."""
    figure, ax = plt.subplots(figsize=(5.0, 6.6))
    rows = [*data["up"], *data["down"][1:]]
    n_up = len(data["up"])
    for depth, row in enumerate(rows):
        for at, name in enumerate(row):
            _draw_node(ax, _place(at, len(row), depth), name, GREEN if depth < n_up else ORANGE)
    for depth, row in enumerate(data["up"][:-1]):
        for at in range(len(row)):
            _draw_edge(ax, _place(at, len(row), depth), _place(at // 2, len(row) // 2, depth + 1), GREEN, "-")
    for depth, row in enumerate(data["down"][1:-1], start=n_up):
        for at in range(len(row)):
            for child in (2 * at, 2 * at + 1):
                dash = "-" if child == 2 * at else "--"
                _draw_edge(ax, _place(at, len(row), depth), _place(child, 2 * len(row), depth + 1), ORANGE, dash)
    ax.text(-0.4, -0.85, "upwards: neighbours are added in pairs", color=INK, size=9.5, weight="bold")
    middle = (n_up - 0.5) * LEVEL_HEIGHT + 0.5
    ax.text(
        -0.4,
        middle,
        "downwards: each start is handed on (solid),\nor with the left sum added (dashed)",
        color=INK,
        size=9.5,
        weight="bold",
        va="center",
    )
    ax.set(xlim=(-0.6, len(LEAVES) - 0.4), ylim=(len(rows) * LEVEL_HEIGHT - 0.3, -1.2))
    ax.axis("off")
    return figure


def recall_data() -> dict[str, Any]:
    """How many of N keys bring back their own value, by softmax attention and by linear attention, for random keys."""
    points = [
        {"d": width, "N": n, "softmax": _recalled(n, width, _softmax), "linear": _recalled(n, width, _linear)}
        for width in WIDTHS
        for n in LENGTHS
    ]
    return {"seed": SEED, "points": points}


def draw_recall(data: dict[str, Any]) -> Figure:
    """Draw the share over N, a line for each form and width."""
    figure, ax = plt.subplots(figsize=(5.0, 4.4))
    looks = {("softmax", 64): (GREEN, "-", "s"), ("softmax", 32): (GREEN, ":", "^")}
    looks |= {("linear", 64): (BLUE, "-", "o"), ("linear", 32): (BLUE, "--", "v")}
    for (form, width), (colour, dash, marker) in looks.items():
        points = [point for point in data["points"] if point["d"] == width]
        shares = [100 * point[form] for point in points]
        lengths = [point["N"] for point in points]
        ax.plot(lengths, shares, color=colour, linestyle=dash, marker=marker, label=f"{form}, d = {width}")
    ax.set_xscale("log", base=2)
    ax.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    ax.minorticks_off()
    ax.set(xlabel="keys and values N", ylabel="values brought back, %", ylim=(-3, 104))
    ax.set_title("each key asks for its own value")
    ax.legend(loc="lower left")
    return figure


def _named(letters: str) -> str:
    """`a–d` for the sum abcd, `0` for the sum of none."""
    if len(letters) < 2:
        return letters or "0"
    return letters if len(letters) == 2 else f"{letters[0]}–{letters[-1]}"


def _place(at: int, count: int, depth: int) -> tuple[float, float]:
    width = len(LEAVES) / count
    lower = LEVEL_HEIGHT * depth + (0.75 if depth > 2 else 0)
    return (at + 0.5) * width - 0.5, lower


def _draw_node(ax: Axes, place: tuple[float, float], name: str, colour: str) -> None:
    box = {"boxstyle": "round,pad=0.32", "facecolor": PAPER, "edgecolor": colour, "linewidth": 1.4}
    ax.text(*place, name, ha="center", va="center", size=9.5, bbox=box, zorder=3)


def _draw_edge(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, dash: str) -> None:
    ax.plot(*zip(start, end, strict=True), color=colour, linestyle=dash, linewidth=1.3, zorder=1)


def _recalled(n: int, width: int, attention: Any) -> float:
    """The share of keys whose output, less the mean output, points to their own value more than to any other."""
    random = np.random.default_rng(SEED)
    keys, values = random.standard_normal((2, n, width))
    output = attention(keys, keys, values)
    directions = values / np.linalg.norm(values, axis=1, keepdims=True)
    nearest = ((output - output.mean(axis=0)) @ directions.T).argmax(axis=1)
    return float((nearest == np.arange(n)).mean())


def _softmax(queries: Floats, keys: Floats, values: Floats) -> Floats:
    scores = queries @ keys.T / keys.shape[1] ** 0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ values / weights.sum(axis=1, keepdims=True))


def _linear(queries: Floats, keys: Floats, values: Floats) -> Floats:
    weights = _feature_map(queries) @ _feature_map(keys).T
    return np.asarray(weights @ values / weights.sum(axis=1, keepdims=True))


def _feature_map(x: Floats) -> Floats:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


FIGURES = {
    "07_scan": Recipe(scan_data, draw_scan),
    "07_recall": Recipe(recall_data, draw_recall),
}
