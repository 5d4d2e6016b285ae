"""The benchmark's figures: memory over length for each form, and times where they were measured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from labkit.bench.columns import Row

MEMORY = (("mem_max_MB", "forward peak", "-"), ("add_mem_MB", "saved for backward", "--"))
TIMES = (("fwd_ms", "forward", "-"), ("bwd_ms", "backward", "--"))


def save_plots(rows: list[Row], folder: Path) -> list[Path]:
    """Write `memory_over_length.png` to `folder`, and `time_over_length.png` when rows have times."""
    folder.mkdir(parents=True, exist_ok=True)
    done = [row for row in rows if row["status"] == "success"]
    plots = {"memory_over_length.png": (MEMORY, "memory (MiB)")}
    if any(row["fwd_ms"] is not None for row in done):
        plots["time_over_length.png"] = (TIMES, "time (ms, median)")
    return [_save(folder / name, done, lines, label) for name, (lines, label) in plots.items()]


def _save(path: Path, rows: list[Row], lines: tuple[tuple[str, str, str], ...], label: str) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    for number, (key, group) in enumerate(sorted(_groups(rows).items())):
        for column, what, style in lines:
            points = sorted((row["seq_len"], row[column]) for row in group if row[column] is not None)
            if points:
                ax.plot(
                    *zip(*points, strict=True), style, marker="o", color=f"C{number}", label=f"{_name(key)}: {what}"
                )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlabel("sequence length N")
    ax.set_ylabel(label)
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    return path


def _groups(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row["impl"], row["device"], row["d_model"]].append(row)
    return groups


def _name(key: tuple[Any, ...]) -> str:
    impl, device, d_model = key
    return f"{impl.replace('_', ' ')}, d {d_model}, {device}"
