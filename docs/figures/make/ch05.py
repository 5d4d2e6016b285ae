"""Chapter 05's figures: one training step's memory over N and in time, and the worker of each tile.

Lab 05's solution is measured, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.harness import solution_module
from labkit.meters.tensors import AllocationMeter, kept_by_forward
from labstaff.figures import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PINK, Recipe

MIB, KIB = 2**20, 2**10
HEAD_DIM = 64
BLOCK = 256
LENGTHS = [256, 512, 1024, 2048]
TIMELINE_LENGTH = 1024
LOOKS = {
    "naive": ("autograd, textbook", ORANGE, "--", "s"),
    "tiled_autograd": ("autograd, tiled forward pass", PINK, ":", "^"),
    "flash": ("FlashAttention", BLUE, "-", "o"),
}
Attention = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


def memory_over_n_data() -> dict[str, Any]:
    """The bytes that three forms save for the backward pass besides inputs and output, and the peak of a step."""
    points = []
    for n in LENGTHS:
        row: dict[str, Any] = {"N": n}
        for name, attention in forms(BLOCK).items():
            row[f"{name}_saved_bytes"], row[f"{name}_peak_bytes"] = saved_and_peak(attention, n)
        points.append(row)
    return {"d": HEAD_DIM, "dtype": "float32", "block": BLOCK, "points": points}


def draw_memory_over_n(data: dict[str, Any]) -> Figure:
    """Draw the peaks over N on log2 axes, with N·d and N² as guides."""
    figure, axes = plt.subplots(figsize=(5.0, 4.8))
    ns = [point["N"] for point in data["points"]]
    for name, (label, colour, dash, marker) in LOOKS.items():
        peaks = [point[f"{name}_peak_bytes"] / MIB for point in data["points"]]
        axes.plot(ns, peaks, color=colour, linestyle=dash, marker=marker, label=label)
        axes.annotate(
            f"{peaks[-1]:.1f} MiB",
            (ns[-1], peaks[-1]),
            xytext=(6, {"naive": 1, "tiled_autograd": -9, "flash": -3}[name]),
            textcoords="offset points",
            size=9,
        )
    inputs = [3 * n * data["d"] * 4 / MIB for n in ns]
    axes.plot(ns, inputs, color=MUTED, linewidth=1.2, label="the inputs Q, K, V")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ns, [str(n) for n in ns])
    ticks = [2.0**power for power in range(-2, 7)]
    axes.set_yticks(ticks, [f"{tick:g} MiB" for tick in ticks])
    axes.set(xlabel="sequence length N", xlim=(230, 3300))
    axes.set_title(f"peak of a training step over its inputs, d = {data['d']}, float32")
    axes.minorticks_off()
    axes.legend(loc="upper left")
    return figure


def timeline_data() -> dict[str, Any]:
    """Live bytes after every operator of one training step, in KiB, for each form and each of the two passes."""
    n = TIMELINE_LENGTH
    series = {}
    for name, attention in forms(BLOCK).items():
        inputs, dO = tensors(n)
        with AllocationMeter(timeline=True) as meter:
            loss = ending(attention(*inputs), dO)
            passes = [[event.live_bytes // KIB for event in meter.events]]
            meter.events.clear()
            loss.backward()
            passes.append([event.live_bytes // KIB for event in meter.events])
        series[name] = dict(zip(("forward_kib", "backward_kib"), passes, strict=True))
    return {"N": n, "d": HEAD_DIM, "dtype": "float32", "block": BLOCK, "series": series}


def draw_timeline(data: dict[str, Any]) -> Figure:
    """Draw live memory over the operators of a step, each pass stretched to the same width."""
    figure, axes = plt.subplots(figsize=(5.0, 4.4))
    for name, (label, colour, dash, _) in LOOKS.items():
        x: list[float] = []
        y: list[float] = []
        for start, key in enumerate(("forward_kib", "backward_kib")):
            values = data["series"][name][key]
            x += [start + (at + 1) / len(values) for at in range(len(values))]
            y += [value / KIB for value in values]
        axes.plot([0, *x], [0, *y], color=colour, linestyle=dash, label=label, drawstyle="steps-post")
    axes.axvline(1, color=INK, linewidth=1)
    top = max(max(both["backward_kib"]) for both in data["series"].values()) / KIB
    for at, label in ((0.5, "forward"), (1.5, "backward")):
        axes.text(at, 1.04 * top, label, ha="center", color=MUTED)
    axes.set(xlim=(0, 2), ylim=(0, 1.55 * top), ylabel="MiB alive", xlabel="operators, in order")
    axes.set_xticks([])
    axes.set_title(f"one training step, N = {data['N']}, d = {data['d']}, float32")
    axes.legend(loc="upper left")
    return figure


def work_data() -> dict[str, Any]:
    """Which worker has which tile, forward and backward, for a causal sequence of eight blocks."""
    blocks = 8
    visited = [[column <= row for column in range(blocks)] for row in range(blocks)]
    return {
        "blocks": blocks,
        "forward": [[row if seen else None for seen in line] for row, line in enumerate(visited)],
        "backward": [[column if seen else None for column, seen in enumerate(line)] for line in visited],
    }


def draw_work(data: dict[str, Any]) -> Figure:
    """Draw the two assignments as squares, a number and a colour for each worker, white where nothing is done."""
    figure, both = plt.subplots(2, 1, figsize=(4.2, 7.8))
    colours = [BLUE, ORANGE, GREEN, PINK]
    titles = {
        "forward": "forward: a worker for each block of queries",
        "backward": "backward: a worker for each block of keys",
    }
    for axes, (name, title) in zip(both, titles.items(), strict=True):
        for row, line in enumerate(data[name]):
            for column, worker in enumerate(line):
                if worker is None:
                    axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=GRID, linewidth=0.7))
                    continue
                colour = colours[worker % len(colours)]
                axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, alpha=0.3, linewidth=0))
                axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=GRID, linewidth=0.7))
                axes.text(column + 0.5, row + 0.5, str(worker + 1), ha="center", va="center", size=9)
        axes.set(
            xlim=(0, data["blocks"]), ylim=(data["blocks"], 0), aspect="equal", xlabel="keys →", ylabel="← queries"
        )
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
    return figure


FIGURES = {
    "05_memory_over_n": Recipe(memory_over_n_data, draw_memory_over_n),
    "05_timeline": Recipe(timeline_data, draw_timeline),
    "05_who_works_where": Recipe(work_data, draw_work),
}


def forms(block: int) -> dict[str, Attention]:
    """Three ways to the same output and gradients, non-causal; tiles are block × block."""
    flash = solution_module("05")

    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, K, V):  # type: ignore[no-untyped-def]
            O, L = flash.flash_forward(Q, K, V, False, block, block)
            ctx.save_for_backward(Q, K, V, O, L)
            return O

        @staticmethod
        def backward(ctx, dO):  # type: ignore[no-untyped-def]
            return flash.flash_backward(*ctx.saved_tensors, dO, False, block, block)

    def naive(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return (Q @ K.mT * Q.shape[-1] ** -0.5).softmax(-1) @ V

    def tiled_autograd(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return flash.flash_forward(Q, K, V, False, block, block)[0]

    return {"naive": naive, "tiled_autograd": tiled_autograd, "flash": Tiled.apply}


def saved_and_peak(attention: Attention, n: int) -> tuple[int, int]:
    """Bytes kept between the passes, and at the peak of a step with gradients, both over the inputs and dO."""
    inputs, dO = tensors(n)
    kept = kept_by_forward(attention, *inputs)
    with AllocationMeter() as meter:
        ending(attention(*inputs), dO).backward()
    return kept, meter.peak_bytes


def tensors(n: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Q, K and V that need gradients, and dO."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(n, HEAD_DIM, generator=generator) for _ in range(4)]
    return [x.requires_grad_() for x in made[:3]], made[3]


def ending(output: torch.Tensor, dO: torch.Tensor) -> torch.Tensor:
    """A number whose gradient with respect to the output is dO: `backward(dO)` imports for seconds first."""

    class Ending(torch.autograd.Function):
        @staticmethod
        def forward(ctx, output):  # type: ignore[no-untyped-def]
            return output.new_zeros(())

        @staticmethod
        def backward(ctx, _):  # type: ignore[no-untyped-def]
            return dO

    return Ending.apply(output)
