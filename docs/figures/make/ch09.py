"""Chapter 09's figures: generation step by step, two diagonals, bytes of caches and a roofline.

Lab 09's solution is run, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.harness import solution_module
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labstaff.figures import BLUE, GRID, INK, MUTED, ORANGE, PINK, Recipe

PROMPT, ANSWER = ["The", "cat", "sat", "on"], ["the", "mat", "and", "slept"]
SHAPES = [(5, 5), (2, 5), (1, 5), (5, 3)]  # queries and keys
MODELS: dict[str, dict[str, int]] = {
    "OPT-13B": {"layers": 40, "kv_heads": 40, "head_dim": 128},
    "Llama-2-7B": {"layers": 32, "kv_heads": 32, "head_dim": 128},
    "Llama-3.1-405B": {"layers": 126, "kv_heads": 8, "head_dim": 128},
    "Llama-3.1-8B": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "Llama-3.1-8B, window 4,096": {"layers": 32, "kv_heads": 8, "head_dim": 128, "window": 4096},
    "DeepSeek-V2": {"layers": 60, "kv_heads": 128, "head_dim": 128, "latent_dim": 512, "rope_dim": 64},
}
LENGTHS = [2**power for power in range(8, 18)]
LOOKS = [
    (ORANGE, "-", 1.8),
    (BLUE, "-", 4.5),
    (INK, "--", 1.4),
    (PINK, "-", 1.8),
    (PINK, ":", 1.8),
    (MUTED, (0, (6, 2)), 1.8),
]
"""Of each model's line: colour, dash, width. Two lie on one another, and the wider one shows on both sides."""

ABOVE = {"OPT-13B": 4, "Llama-3.1-405B": -9, "Llama-3.1-8B": 3, "DeepSeek-V2": -4}
"""By how many points a name is moved up from the end of its line."""
CHIPS = {"A100 SXM 40 GB": (312.0, 1.555), "H100 SXM 80 GB": (989.4, 3.35)}  # TFLOP/s in 16 bits, TB/s: chapter 1
HEADS, HEAD_DIM, N_KEYS = 8, 64, 1024
STEPS = {  # queries, key heads
    "decode, 8 on 8": (1, 8),
    "decode, 8 on 2": (1, 2),
    "decode, 8 on 1": (1, 1),
    "prefill": (N_KEYS, 8),
}


def generation_data() -> dict[str, Any]:
    """By step: the tokens that go in, the cached ones, and the one that comes out; and the keys computed in all."""
    text, steps, cached = [*PROMPT, *ANSWER], [], 0
    for number, token in enumerate(ANSWER):
        known = len(PROMPT) + number
        steps.append({"in": text[cached:known], "cached": text[:cached], "out": token})
        cached = known
    with_cache = sum(len(step["in"]) for step in steps)
    without = sum(len(PROMPT) + number for number in range(len(ANSWER)))
    return {"steps": steps, "tokens_computed": {"with the cache": with_cache, "without": without}}


def draw_generation(data: dict[str, Any]) -> Figure:
    """Draw the steps downwards: what is cached already, what goes in, and the token that comes out."""
    n_places = len(PROMPT) + len(ANSWER) - 1
    figure, ax = plt.subplots(figsize=(5.0, 5.0))
    for row, step in enumerate(data["steps"]):
        top, n_cached, n_in = 2.6 * row, len(step["cached"]), len(step["in"])
        ax.text(
            0,
            top - 0.28,
            "prefill: the prompt goes in" if row == 0 else f"decoding step {row}: one token goes in",
            size=9.5,
            weight="bold",
        )
        for place, token in enumerate([*step["cached"], *step["in"]]):
            new = place >= n_cached
            ax.add_patch(
                Rectangle(
                    (place, top), 0.94, 1, facecolor=BLUE if new else MUTED, alpha=0.45 if new else 0.22, linewidth=0
                )
            )
            ax.text(place + 0.47, top + 0.5, token, ha="center", va="center", size=9)
        middle = n_cached + n_in - 0.53
        ax.annotate(
            "",
            (n_places + 0.35, top + 0.5),
            (middle + 0.55, top + 0.5),
            arrowprops={"arrowstyle": "-|>", "color": ORANGE, "linewidth": 1.5},
        )
        ax.text(n_places + 0.45, top + 0.5, step["out"], size=10, weight="bold", color=ORANGE, va="center")
        new = f"{n_in} new keys and values a layer" if row == 0 else "1 new key and value a layer"
        words = new + (f", {n_cached} read from the cache" if n_cached else "")
        ax.text(0, top + 1.42, words, size=8.5, color=MUTED)
    ax.set(xlim=(-0.1, n_places + 1.7), ylim=(2.6 * len(data["steps"]) - 0.7, -0.9))
    ax.axis("off")
    return figure


def diagonals_data() -> dict[str, Any]:
    """Which keys each query sees, from the bottom right as Lab 09's solution counts, and from the top left."""
    lab = solution_module("09")
    found = []
    for n_queries, n_keys in SHAPES:
        q, k, v = torch.zeros(1, n_queries, 1), torch.zeros(1, n_keys, 1), torch.eye(n_keys)[None]
        weights, _ = lab.grouped_query_attention(q, k, v, causal=True)
        top_left = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        seen = {"bottom right": weights, "top left": top_left}
        found.append(
            {"n_queries": n_queries, "n_keys": n_keys}
            | {name: [row.nonzero().flatten().tolist() for row in x[0]] for name, x in seen.items()}
        )
    return {"shapes": found}


def draw_diagonals(data: dict[str, Any]) -> Figure:
    """Draw a row of two grids for each shape, queries downwards and keys to the right."""
    heights = [shape["n_queries"] + 1.6 for shape in data["shapes"]]
    figure, axes = plt.subplots(len(heights), 2, figsize=(5.0, 8.0), height_ratios=heights)
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    for number, shape in enumerate(data["shapes"]):
        for ax, name in zip(axes[number], ("top left", "bottom right"), strict=True):
            _draw_grid(ax, shape["n_queries"], shape["n_keys"], shape[name])
            count = f"{shape['n_queries']} × {shape['n_keys']}"
            ax.set_title(f"from the {name}\n{count}" if number == 0 else count, size=9.5)
            if number == 0:
                ax.set(xlabel="key", ylabel="query")
    return figure


def _draw_grid(ax: Axes, n_queries: int, n_keys: int, seen: list[list[int]]) -> None:
    for i in range(n_queries):
        for j in range(n_keys):
            looks: dict[str, Any] = {"facecolor": BLUE, "alpha": 0.55} if j in seen[i] else {"facecolor": "none"}
            ax.add_patch(Rectangle((j, i), 1, 1, linewidth=0, **looks))
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor="none", edgecolor=MUTED, linewidth=0.8))
        if not seen[i]:
            ax.text(n_keys + 0.2, i + 0.5, "sees nothing", va="center", size=8, color=ORANGE)
    ax.set(xlim=(0, 6.6), ylim=(n_queries, 0), aspect="equal", anchor="NW")
    ax.set_xticks([j + 0.5 for j in range(n_keys)], [str(j) for j in range(n_keys)])
    ax.set_yticks([i + 0.5 for i in range(n_queries)], [str(i) for i in range(n_queries)])
    ax.tick_params(length=0, labelsize=8)
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def caches_data() -> dict[str, Any]:
    """Bytes of one sequence's cache over its length, two bytes a number, by Lab 09's solution."""
    lab = solution_module("09")
    lines = {name: [lab.kv_cache_bytes(tokens=tokens, **sizes) for tokens in LENGTHS] for name, sizes in MODELS.items()}
    a_token = {name: lab.kv_cache_bytes(**sizes) for name, sizes in MODELS.items()}
    return {"tokens": LENGTHS, "bytes_of_a_token": a_token, "bytes": lines}


def draw_caches(data: dict[str, Any]) -> Figure:
    """Draw GiB over tokens, both logarithmic, a line for each model with its name at its end."""
    figure, ax = plt.subplots(figsize=(5.0, 5.6))
    for (name, heights), (colour, dash, width) in zip(data["bytes"].items(), LOOKS, strict=True):
        sizes = [n_bytes / 2**30 for n_bytes in heights]
        ax.plot(data["tokens"], sizes, color=colour, linestyle=dash, linewidth=width)
        words = name.replace(", ", ",\n")
        ax.annotate(
            words,
            (data["tokens"][-1], sizes[-1]),
            xytext=(5, ABOVE.get(name, 0)),
            textcoords="offset points",
            size=8.5,
            color=colour,
            va="center",
            annotation_clip=False,
        )
    ax.axhline(15, color=INK, linewidth=1, linestyle=":")
    ax.annotate("weights of Llama-3.1-8B, 15 GiB", (260, 15), xytext=(0, 4), textcoords="offset points", size=8.5)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(data["tokens"][::3], [f"{tokens:,}" for tokens in data["tokens"][::3]])
    ax.set_yticks([2**-6, 2**-3, 1, 8, 64], ["1/64", "1/8", "1", "8", "64"])
    ax.minorticks_off()
    ax.set(xlabel="tokens of one sequence", ylabel="its cache, GiB", xlim=(220, 131_072), ylim=(2**-6.4, 2**7.4))
    return figure


def roof_data() -> dict[str, Any]:
    """FLOPs of attention's products and the bytes that it moves, counted on the solution, for 16-bit numbers."""
    lab, steps = solution_module("09"), {}
    for name, (n_queries, kv_heads) in STEPS.items():
        q, k, v = (torch.ones(heads, n, HEAD_DIM) for heads, n in ((HEADS, n_queries), *[(kv_heads, N_KEYS)] * 2))
        with ProductMeter() as products, MovedBytes(q=q, k=k, v=v) as moved:
            o, _ = lab.grouped_query_attention(q, k, v)
        n_bytes = (sum(moved.read.values()) + o.nbytes) // 2
        steps[name] = {"flops": products.flops, "bytes": n_bytes, "flop_per_byte": products.flops / n_bytes}
    chips = {
        name: {"tflops": tflops, "tb_s": tb_s, "ridge": tflops / tb_s}
        | {step: min(tflops, each["flop_per_byte"] * tb_s) for step, each in steps.items()}
        for name, (tflops, tb_s) in CHIPS.items()
    }
    return {"heads": HEADS, "d": HEAD_DIM, "N_k": N_KEYS, "steps": steps, "chips": chips}


def draw_roof(data: dict[str, Any]) -> Figure:
    """Draw both chips' roofs, with decoding at their foot and prefill on their flat part."""
    figure, ax = plt.subplots(figsize=(5.0, 5.2))
    x = np.geomspace(0.3, 3000, 300)
    marks = dict(zip(data["steps"], ("o", "s", "D", "*"), strict=True))
    for (name, chip), colour, dash in zip(data["chips"].items(), (BLUE, ORANGE), ("-", "--"), strict=True):
        label = f"{name}: ridge at {chip['ridge']:.0f}"
        ax.plot(x, np.minimum(chip["tflops"], x * chip["tb_s"]), color=colour, linestyle=dash, label=label)
        for step, mark in marks.items():
            size = 11 if mark == "*" else 7
            ax.plot(data["steps"][step]["flop_per_byte"], chip[step], mark, color=colour, markersize=size, zorder=4)
    for number, (step, each) in enumerate(data["steps"].items()):
        ax.axvline(each["flop_per_byte"], color=GRID, linewidth=0.9, linestyle="-", zorder=0)
        side = "right" if step == "prefill" else "left"
        place: dict[str, Any] = {"xytext": (-4 if side == "right" else 4, 0), "textcoords": "offset points"}
        text = f"{step.replace(', ', chr(10))}\n{each['flop_per_byte']:.3g}"
        height = 0.34 if number != 1 else 1.1
        ax.annotate(text, (each["flop_per_byte"], height), size=8.5, ha=side, va="bottom", **place)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(xlim=(0.5, 3000), ylim=(0.3, 4000), xlabel="arithmetic intensity, FLOP per byte", ylabel="TFLOP/s, at most")
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize=8.5)
    return figure


FIGURES = {
    "09_generation": Recipe(generation_data, draw_generation),
    "09_diagonals": Recipe(diagonals_data, draw_diagonals),
    "09_cache_bytes": Recipe(caches_data, draw_caches),
    "09_prefill_and_decode": Recipe(roof_data, draw_roof),
}
