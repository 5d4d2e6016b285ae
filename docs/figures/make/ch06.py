"""Chapter 06's figures: a chain's peak over its segments, one attention's step over N and in time, a stack of layers.

Lab 05's and Lab 06's solutions are measured, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

LAYERS = 64
SEGMENTS = [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 21, 26, 32, 43, 64]
WIDTH = 4096
HEAD_DIM = 64
BLOCK = 128
LENGTHS = [128, 256, 512, 1024]
TIMELINE_LENGTH = 512
TIMELINE_POINTS = 160
STACK_LENGTH, STACK_WIDTH = 256, 32
STACK_LAYERS = [1, 2, 4, 8]
LOOKS = {
    "written_out": ("written out", ORANGE, "--", "s"),
    "tiled": ("in tiles", PINK, ":", "^"),
    "checkpointed": ("written out, checkpointed", GREEN, "-.", "D"),
    "rows_checkpointed": ("rows, each checkpointed", MUTED, (0, (6, 2)), "v"),
    "flash": ("FlashAttention", BLUE, "-", "o"),
}


def chain_data() -> dict[str, Any]:
    """Peak of a chain of layers in activations, and layers run in all, measured over the number of segments."""
    lab = solution_module("06")
    rows = []
    for segments in [None, *SEGMENTS]:
        ran = [0]

        def layer(h: torch.Tensor, ran: list[int] = ran) -> torch.Tensor:
            ran[0] += 1
            return torch.tanh(h)

        x = torch.ones(WIDTH, requires_grad=True)
        with AllocationMeter() as meter:
            if segments is None:
                y = x
                for _ in range(LAYERS):
                    y = layer(y)
            else:
                y = lab.checkpoint_sequential([layer] * LAYERS, segments, x)
            y.sum().backward()
            del y
        model = None if segments is None else segments + math.ceil(LAYERS / segments)
        peak = meter.peak_bytes / (4 * WIDTH)
        rows.append({"segments": segments, "model": model, "peak": peak, "layers_run": ran[0]})
    return {"layers": LAYERS, "plain": rows[0], "checkpointed": rows[1:]}


def draw_chain(data: dict[str, Any]) -> Figure:
    """Draw measured peaks over the model's curve and its two terms."""
    n, rows = data["layers"], data["checkpointed"]
    figure, ax = plt.subplots(figsize=(5.0, 4.4))
    k = [row["segments"] for row in rows]
    ax.plot(k, k, color=MUTED, linestyle=":", label="kept: k")
    ax.plot(k, [math.ceil(n / i) for i in k], color=MUTED, linestyle="-.", label="recomputed: ⌈n / k⌉")
    ax.plot(k, [row["model"] for row in rows], color=BLUE, linestyle="-", label="their sum")
    ax.plot(k, [row["peak"] for row in rows], "o", color=ORANGE, linestyle="none", label="measured")
    ax.axhline(data["plain"]["peak"], color=INK, linestyle="--", linewidth=1.2)
    ax.text(1, data["plain"]["peak"] * 1.06, "measured without checkpoints", color=INK, size=9)
    for scale in (ax.set_xscale, ax.set_yscale):
        scale("log", base=2)
    ticks = [2**i for i in range(7)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set(xlabel="segments k", ylabel="activations alive at the peak", ylim=(0.9, 100))
    ax.set_title(f"a chain of n = {n} layers")
    ax.legend(loc="lower center")
    return figure


def lengths_data() -> dict[str, Any]:
    """Of one step of each form of attention, over N: bytes kept, peak bytes, and the arithmetic of its products."""
    measured = [(name, n) for name in LOOKS for n in LENGTHS] + [("tiled_checkpointed", TIMELINE_LENGTH)]
    points = [{"form": name, "N": n, **step(name, n)} for name, n in measured]
    return {"d": HEAD_DIM, "block": BLOCK, "points": points}


def draw_lengths(data: dict[str, Any]) -> Figure:
    """Draw the peak of a step over N, one line a form."""
    figure, ax = plt.subplots(figsize=(5.0, 4.8))
    for name, (label, colour, dash, marker) in LOOKS.items():
        points = [point for point in data["points"] if point["form"] == name]
        ax.plot(
            [point["N"] for point in points],
            [point["peak_bytes"] / 2**20 for point in points],
            marker=marker,
            color=colour,
            linestyle=dash,
            label=label,
        )
    _log_axes(ax, LENGTHS)
    ax.set(xlabel="N", ylabel="peak of one step, MiB")
    ax.legend(loc="upper left")
    return figure


def timeline_data() -> dict[str, Any]:
    """Bytes alive after each operator of a step, for each form: the largest of each of a number of equal stretches."""
    curves = {}
    for name in LOOKS:
        inputs = random_inputs(TIMELINE_LENGTH)
        with AllocationMeter(timeline=True) as meter:
            loss = forms()[name](*inputs).sum()
            n_forward = len(meter.events)
            loss.backward()
        live = [event.live_bytes for event in meter.events]
        bins = min(TIMELINE_POINTS, len(live))
        bounds = [len(live) * i // bins for i in range(bins + 1)]
        curves[name] = {
            "operators": len(live),
            "forward_share": n_forward / len(live),
            "live_bytes": [max(live[a:b]) for a, b in pairwise(bounds)],
        }
    return {"N": TIMELINE_LENGTH, "d": HEAD_DIM, "block": BLOCK, "curves": curves}


def draw_timeline(data: dict[str, Any]) -> Figure:
    """Draw the bytes alive in the course of a step, one panel a form, the backward pass on a shaded ground."""
    curves = data["curves"]
    figure, panels = plt.subplots(len(curves), 1, figsize=(5.0, 8.2), sharex=True, sharey=True)
    for ax, (name, curve) in zip(panels, curves.items(), strict=True):
        label, colour, _, _ = LOOKS[name]
        live = [value / 2**20 for value in curve["live_bytes"]]
        at = [(i + 0.5) / len(live) for i in range(len(live))]
        ax.plot(at, live, color=colour, linestyle="-", linewidth=1.4)
        ax.axvline(curve["forward_share"], color=MUTED, linestyle=":", linewidth=1.2)
        ax.set_title(f"{label}: {max(live):.2f} MiB, {curve['operators']:,} operators")
    panels[0].set_ylim(0, None)
    panels[len(curves) // 2].set_ylabel("MiB alive")
    panels[-1].set_xlabel("share of the step's operators (dotted: forward ends)")
    return figure


def stack_data() -> dict[str, Any]:
    """Peak of a step through a stack of attention layers, over their number, checkpointed layer by layer or not."""
    checkpoint = solution_module("06").checkpoint
    made = forms()
    rows = []
    for name in ("written_out", "flash"):
        for checkpointed in (False, True):
            for layers in STACK_LAYERS:
                rows.append(
                    {
                        "form": name,
                        "checkpointed": checkpointed,
                        "layers": layers,
                        "peak_bytes": _stack_peak(made[name], layers, checkpoint if checkpointed else _call),
                    }
                )
    return {"N": STACK_LENGTH, "d": STACK_WIDTH, "points": rows}


def draw_stack(data: dict[str, Any]) -> Figure:
    """Draw the peak over the number of layers: two forms, each with and without checkpoints."""
    figure, ax = plt.subplots(figsize=(5.0, 4.6))
    looks = {
        ("written_out", False): ("written out", ORANGE, "--", "s"),
        ("written_out", True): ("written out, each layer checkpointed", GREEN, "-.", "D"),
        ("flash", False): ("FlashAttention", BLUE, "-", "o"),
        ("flash", True): ("FlashAttention, each layer checkpointed", PINK, ":", "^"),
    }
    for key, (label, colour, dash, marker) in looks.items():
        points = [p for p in data["points"] if (p["form"], p["checkpointed"]) == key]
        ax.plot(
            [p["layers"] for p in points],
            [p["peak_bytes"] / 2**20 for p in points],
            marker=marker,
            color=colour,
            linestyle=dash,
            label=label,
        )
    ax.set(xlabel="layers", ylabel="peak of one step, MiB", ylim=(0, 3), xticks=STACK_LAYERS)
    ax.set_title(f"N = {data['N']}, d = {data['d']}, float32")
    ax.legend(loc="upper left", fontsize=9)
    return figure


@cache
def forms() -> dict[str, Callable[..., torch.Tensor]]:
    """The forms of attention compared, by the names in LOOKS and `tiled_checkpointed`."""
    checkpoint = solution_module("06").checkpoint

    def rows_checkpointed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.cat([checkpoint(written_out, rows, k, v) for rows in q.split(BLOCK)])

    return {
        "written_out": written_out,
        "tiled": tiled,
        "checkpointed": lambda q, k, v: checkpoint(written_out, q, k, v),
        "tiled_checkpointed": lambda q, k, v: checkpoint(tiled, q, k, v),
        "rows_checkpointed": rows_checkpointed,
        "flash": solution_module("05").FlashAttention.apply,
    }


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with the built-in softmax: autograd keeps one N×N tensor, the weights."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Online softmax over tiles, differentiated by autograd."""
    outputs = []
    for rows in q.split(BLOCK):
        m = rows.new_full((len(rows), 1), -math.inf)
        l, o = torch.zeros_like(m), torch.zeros_like(rows)
        for keys, values in zip(k.split(BLOCK), v.split(BLOCK), strict=True):
            s = rows @ keys.mT / math.sqrt(q.shape[-1])
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, factor = (s - m_new).exp(), (m - m_new).exp()
            l, o, m = factor * l + p.sum(-1, keepdim=True), factor * o + p @ values, m_new
        outputs.append(o / l)
    return torch.cat(outputs)


def step(form: str, n: int) -> dict[str, Any]:
    """What a forward and a backward pass of one form hold and compute."""
    inputs = random_inputs(n)
    with AllocationMeter() as meter, ProductMeter() as products:
        output = forms()[form](*inputs)
        kept = meter.live_bytes - meter.block_of(output).nbytes
        loss = output.sum()
        del output
        loss.backward()
    share = products.flops / (2 * n * n * HEAD_DIM)
    return {"kept_bytes": kept, "peak_bytes": meter.peak_bytes, "products": share}


def random_inputs(n: int, d: int = HEAD_DIM) -> list[torch.Tensor]:
    """Q, K and V of one head, (n, d), float32."""
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(n, d, generator=generator).requires_grad_() for _ in range(3)]


def _stack_peak(attention: Callable[..., torch.Tensor], layers: int, through: Callable[..., torch.Tensor]) -> int:
    x = random_inputs(STACK_LENGTH, STACK_WIDTH)[0]
    with AllocationMeter() as meter:
        h = x
        for _ in range(layers):
            h = through(lambda h: h + attention(h, h, h), h)
        h.sum().backward()
        del h
    return meter.peak_bytes


def _call(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    return fn(*args)


def _log_axes(ax: Any, ticks: list[int]) -> None:
    for scale in (ax.set_xscale, ax.set_yscale):
        scale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.minorticks_off()


FIGURES = {
    "06_segments": Recipe(chain_data, draw_chain),
    "06_step_over_n": Recipe(lengths_data, draw_lengths),
    "06_step_in_time": Recipe(timeline_data, draw_timeline),
    "06_stack_of_layers": Recipe(stack_data, draw_stack),
}
