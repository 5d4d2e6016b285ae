"""The memory of one training step with each attention, by the course's meter; and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.training.steps import Way, loss_of, new_model

ROWS, LENGTH = 2, 1024


def step_peaks(ways: Sequence[Way]) -> dict[str, int]:
    """The peak in bytes of one step, forward and backward, over the weights: 2 rows of 1,024 bytes."""
    rows = torch.arange(ROWS * (LENGTH + 1)).unflatten(0, (ROWS, -1)) % 256
    found = {}
    for way in ways:
        llama = new_model(hybrid=way.hybrid)
        with AllocationMeter() as meter:
            loss_of(llama, rows, way).backward()
        found[way.name] = meter.peak_bytes
    return found


def draw(file: Path, losses: Sequence[float], held_out: float, peaks: dict[str, int]) -> None:
    """Write the figure: the loss over steps, and the peak of one step with each attention."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(range(1, len(losses) + 1), losses, color="#0067a8", linewidth=1.2)
    left.axhline(held_out, color="0.4", linestyle=":")
    left.annotate(
        f"text never seen, at the end: {held_out:.2f}", (1, held_out), xytext=(0, -12), textcoords="offset points"
    )
    left.set(xlabel="step", ylabel="loss, nats per byte", ylim=(0, None))
    bars = right.barh(list(peaks), [each / 2**20 for each in peaks.values()], color="#0067a8")
    right.bar_label(bars, fmt="{:.0f}", padding=3)
    right.invert_yaxis()
    right.margins(x=0.12)
    right.set(xlabel=f"peak of one step of {ROWS} · {LENGTH:,} bytes of text,\nover the weights, MiB")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    plt.close(figure)
