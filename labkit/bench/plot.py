"""The benchmark's figure: memory over length for each form and width, and times where they were measured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from labkit.bench.rows import Row

MEMORY = (("mem_max_MB", "forward peak", "-"), ("add_mem_MB", "saved for backward", "--"))
TIMES = (("fwd_ms", "forward", "-"), ("bwd_ms", "backward", "--"))


def save_plot(rows: list[Row], path: Path) -> None:
    """Write the figure to `path`, in the format of its suffix, with a panel of times if rows have times."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [row for row in rows if row["status"] == "success"]
    panels = [(MEMORY, "memory (MiB)")]
    if any(row["fwd_ms"] is not None for row in measured):
        panels.append((TIMES, "time (ms, median)"))
    figure = Figure(figsize=(7 * len(panels), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    for ax, (columns, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(ax, measured, columns)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_xlabel("sequence length N")
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _draw(ax: Any, rows: list[Row], columns: tuple[tuple[str, str, str], ...]) -> None:
    groups = defaultdict(list)
    for row in rows:
        groups[row["impl"], row["device"], row["d_model"]].append(row)
    for number, (impl, device, d_model) in enumerate(sorted(groups)):
        for column, meaning, style in columns:
            group = groups[impl, device, d_model]
            points = sorted((row["seq_len"], row[column]) for row in group if row[column] is not None)
            label = f"{impl.replace('_', ' ')}, d {d_model}, {device}: {meaning}"
            lengths, values = [n for n, _ in points], [value for _, value in points]
            if points:
                ax.plot(lengths, values, style, marker="o", color=f"C{number}", label=label)
