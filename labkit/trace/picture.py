"""Draws a trace for a report: the stack of tensors over steps, the peak marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.meters.tracing import Trace

COLOURS = {
    "parameter": "#8a939c",
    "input": "#b8bfc6",
    "before": "#8a939c",
    "optimizer state": "#c278a8",
    "gradient": "#e69f00",
    "activation": "#2f86c9",
    "temporary": "#45ad8b",
    "workspace": "#d9603b",
    "allocated": "#45ad8b",
    "rest": "#b8bfc6",
}
UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"))


def save_picture(path: Path, runs: Sequence[tuple[str, Trace]]) -> None:
    """Draw one run, or several below each other on one scale, and save them in the format of the file's suffix."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(8, 0.4 + 2.8 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), squeeze=False)[:, 0]
    most = max([trace.before_bytes + trace.peak_bytes for _, trace in runs] + [1])
    factor, unit = next(((2**power, unit) for power, unit in UNITS if most >= 2**power), (1, "bytes"))
    for axes, (name, trace) in zip(rows, runs, strict=True):
        _draw(axes, trace, factor)
        axes.set_ylim(0, 1.05 * most / factor)
        axes.set_ylabel(f"{unit} alive")
        axes.set_title(f"{name}: peak {trace.before_bytes + trace.peak_bytes:,} bytes", loc="left", fontsize="medium")
    rows[-1].set_xlabel("operators run")
    used = {life.kind for _, trace in runs for life in trace.lives}
    patches = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in used]
    figure.legend(handles=patches, fontsize="small", loc="outside lower center", ncols=len(patches) or 1)
    figure.savefig(path, dpi=160)


def _draw(axes: Any, trace: Trace, factor: int) -> None:
    from matplotlib.collections import PolyCollection

    bars = list(pieces(trace))
    for kind, colour in COLOURS.items():
        corners = [_corners(bar[1:], factor) for bar in bars if bar[0] == kind]
        axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=0.2))
    axes.set_xlim(0, max(len(trace.steps), 1))
    axes.axhline((trace.before_bytes + trace.peak_bytes) / factor, color="#b3261e", linewidth=0.8, linestyle="--")
    for each in trace.passes[1:]:
        axes.axvline(each.first, color="#5c646c", linewidth=0.8)


def pieces(trace: Trace) -> Iterator[tuple[str, int, int, int, int]]:
    """The kind, first step, end, lower and upper byte of every piece of a block that stays at one height."""
    lives = trace.lives_by_birth()
    comes, goes = defaultdict(list), defaultdict(list)
    for number, life in enumerate(lives):
        comes[life.born].append(number)
        goes[len(trace.steps) if life.died is None else life.died].append(number)
    alive: dict[int, tuple[int, int]] = {}  # each block's first step at its present height, and that height
    for step in range(len(trace.steps) + 1):
        low = 0
        gone = set(goes[step])
        for number in [*alive, *comes[step]] if gone or comes[step] else ():
            life = lives[number]
            since, where = alive.get(number, (step, low))
            if number in gone or where != low or step == len(trace.steps):
                if since < step:
                    yield life.kind, since, step, where, where + life.nbytes
                since = step
            if number in gone:
                alive.pop(number, None)
                continue
            alive[number] = (since, low)
            low += life.nbytes


def _corners(piece: tuple[int, int, int, int], factor: int) -> list[tuple[float, float]]:
    first, end, low, high = piece
    return [(first, low / factor), (end, low / factor), (end, high / factor), (first, high / factor)]
