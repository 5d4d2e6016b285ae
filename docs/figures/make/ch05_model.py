"""Chapter 05's figure of SmolLM2's sizes: the memory of a layer for prompts of up to 8,192 tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.chat.adapters.base import TILE, per_query_head
from labkit.meters.allocation import AllocationMeter
from labkit.model.llama import Llama, Sizes
from labkit.model.weights import weight_shapes
from labkit.training.steps import textbook
from labstaff.figures import BLUE, GREEN, INK, ORANGE, Recipe

MIB = 2**20
LENGTHS = (1024, 2048, 4096, 8192)
SMOLLM2 = Sizes(30, 9, 3, 64, width=576, hidden=1536, vocab=49_152, context=8192, rotary_base=100_000.0)


def measured() -> dict[str, Any]:
    """The peak of attention, textbook and in flash order, in one layer of SmolLM2, and of the layer without attention.

    On meta tensors, which have shapes and no numbers: the bytes are the same for any text.
    """
    layer = replace(SMOLLM2, layers=1)
    weights = {name: torch.empty(shape, device="meta") for name, shape in weight_shapes(layer).items()}
    with torch.no_grad(), torch.device("meta"):
        rows = [_peaks(Llama(layer, weights), n) for n in LENGTHS]
    return {"heads": SMOLLM2.heads, "d": SMOLLM2.head_dim, "hidden": SMOLLM2.hidden, "dtype": "float32", "rows": rows}


def _peaks(llama: Llama, n: int) -> dict[str, int]:
    peaks: dict[str, int] = {"tokens": n}

    def metered(name: str, attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            k, v = per_query_head(q, k, v)
            with AllocationMeter() as meter:
                found = attend(layer, q, k, v)
            peaks[name] = meter.peak_bytes
            return found

        return run

    def flash(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return solution_module("05").flash_forward(q, k, v, causal=True, block_q=TILE, block_k=TILE)[0]

    for name, attend in (("textbook_bytes", textbook), ("flash_bytes", flash)):
        llama.blocks(metered(name, attend), torch.arange(n))[0](llama.embed(torch.empty(n, dtype=torch.long)))
    x = llama.embed(torch.empty(n, dtype=torch.long))
    (block,) = llama.blocks(lambda layer, q, k, v: q, torch.arange(n))
    with AllocationMeter() as meter:
        block(x)
    peaks["rest_bytes"] = meter.peak_bytes
    return peaks


def draw(data: dict[str, Any]) -> Figure:
    """Draw the three peaks over the number of tokens, logarithmic."""
    figure, ax = plt.subplots(figsize=(5.2, 4.8))
    tokens = [row["tokens"] for row in data["rows"]]
    looks = {
        "textbook_bytes": ("textbook attention", ORANGE, "s--"),
        "rest_bytes": ("the layer without attention", GREEN, "^-."),
        "flash_bytes": ("attention in flash order", BLUE, "o-"),
    }
    for name, (label, colour, look) in looks.items():
        heights = [row[name] / MIB for row in data["rows"]]
        ax.plot(tokens, heights, look, color=colour, label=label)
        ax.annotate(
            f"{heights[-1]:,.0f} MiB", (tokens[-1], heights[-1]), (7, -3), textcoords="offset points", size=9, color=INK
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(tokens, [f"{n:,}" for n in tokens])
    ax.set_yticks([2**power for power in range(2, 14, 2)], [f"{2**power:,}" for power in range(2, 14, 2)])
    ax.minorticks_off()
    ax.set(xlabel="tokens of the prompt", ylabel="peak in one layer, MiB", xlim=(920, 14500))
    ax.legend(loc="upper left", fontsize=8.5)
    return figure


FIGURES = {"05_real_prompt": Recipe(measured, draw)}
