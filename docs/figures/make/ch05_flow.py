"""Chapter 05: what one tile of the backward pass reads and writes, and FlashAttention-3's overlap in time."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GREEN, MUTED, ORANGE, PINK, Recipe, arrow, box, canvas, say

BLOCK, WIDTH, BYTES = 64, 64, 4
EXP_PER_S, FLOPS = 3.9e12, 989e12  # of an H100: FlashAttention-3, section 3.1
HEAD_DIM = 128


def flow_data() -> dict[str, Any]:
    """Bytes of each array of a tile, by where it comes from: blocks of 64 × 64 in float32."""
    rows, tile, column = BLOCK * WIDTH * BYTES, BLOCK * BLOCK * BYTES, BLOCK * BYTES
    return {
        "block_q": BLOCK,
        "block_k": BLOCK,
        "d": WIDTH,
        "once_a_block_of_keys": {"K": rows, "V": rows, "dK": rows, "dV": rows},
        "loaded_for_the_tile": {"Q": rows, "dO": rows, "L": column, "D": column},
        "made_and_dropped": {"S": tile, "P": tile, "dP": tile, "dS": tile},
        "added_in_hbm": {"dQ": rows},
    }


def draw_flow(data: dict[str, Any]) -> Figure:
    """Draw the arrays of one tile from top to bottom, each in the colour of how long it stays."""
    figure, ax = plt.subplots(figsize=(5.0, 6.0))
    canvas(ax, 12, 15.6)
    looks = {
        "once_a_block_of_keys": GREEN,
        "loaded_for_the_tile": BLUE,
        "made_and_dropped": ORANGE,
        "added_in_hbm": PINK,
    }
    colours = {name: looks[kind] for kind in looks for name in data[kind]}
    places = {
        "K": (0.2, 0.8), "Q": (2.2, 0.8), "L": (4.2, 0.8), "V": (6.2, 0.8), "dO": (8.2, 0.8), "D": (10.2, 0.8),
        "S": (0.9, 3.8), "dP": (6.2, 3.8), "P": (2.8, 6.4), "dS": (6.2, 9.0),
        "dV": (0.6, 12.0), "dQ": (4.2, 12.0), "dK": (7.8, 12.0),
    }  # fmt: skip
    words = {
        "S": "S = QKᵀ/√d\nline 10", "P": "P = exp(S − L)\nline 11", "dP": "dP = dO Vᵀ\nline 13",
        "dS": "dS = P ∘ (dP − D)\nline 14", "dV": "dV += PᵀdO\nline 12", "dQ": "dQ += dS K/√d\nline 15",
        "dK": "dK += dSᵀQ/√d\nline 16",
    }  # fmt: skip
    widths = dict.fromkeys(("K", "Q", "L", "V", "dO", "D"), 1.6)
    for name, (x, y) in places.items():
        width = widths.get(name, 3.4)
        box(ax, (x, y, width, 1.3), words.get(name, name), colours[name])
    for start, end in [
        ("K", "S"), ("Q", "S"), ("L", "P"), ("V", "dP"), ("dO", "dP"), ("D", "dS"), ("S", "P"), ("P", "dS"),
        ("dP", "dS"), ("P", "dV"), ("dS", "dQ"), ("dS", "dK"),
    ]:  # fmt: skip
        (x0, y0), (x1, y1) = places[start], places[end]
        a, b = x0 + widths.get(start, 3.4) / 2, x1 + widths.get(end, 3.4) / 2
        a, b = a + 0.2 * (b - a) * (widths.get(start, 3.4) > 2), b - 0.16 * (b - a)
        arrow(ax, (a, y0 + 1.38), (b, y1 - 0.08))
    say(ax, 0.2, 0.35, "from HBM", ha="left", color=MUTED)
    rows, square = data["loaded_for_the_tile"]["Q"] // 1024, data["made_and_dropped"]["S"] // 1024
    legend = [
        (GREEN, f"stays for a block of keys, {rows} KiB each: stored once, line 18"),
        (BLUE, f"loaded for this tile: {rows} KiB each; L and D {data['loaded_for_the_tile']['L']} B"),
        (ORANGE, f"made and dropped, never in HBM: {square} KiB each"),
        (PINK, f"read, added to and written back in HBM: 2 · {rows} KiB"),
    ]
    for at, (colour, text) in enumerate(legend):
        box(ax, (0.2, 13.75 + 0.47 * at, 0.45, 0.32), "", colour, 0.4)
        say(ax, 0.9, 13.92 + 0.47 * at, text, ha="left", size=8)
    return figure


def overlap_data() -> dict[str, Any]:
    """When products and softmax of six tiles run, one after the other and with two warpgroups that take turns.

    A product's time is 1; a tile's softmax takes what its exponentials take, by an H100's rates at width 128.
    """
    product = 1.0
    softmax = (1 / EXP_PER_S) / (4 * HEAD_DIM / FLOPS) * product
    serial, clock = [], 0.0
    for tile in range(6):
        serial.append(
            {
                "tile": tile,
                "who": 1,
                "product": [clock, clock + product],
                "softmax": [clock + product, clock + product + softmax],
            }
        )
        clock += product + softmax
    turns, free, ready = [], 0.0, {1: 0.0, 2: 0.0}
    for tile in range(6):
        who = 1 + tile % 2
        start = max(free, ready[who])
        free, ready[who] = start + product, start + product + softmax
        turns.append({"tile": tile, "who": who, "product": [start, free], "softmax": [free, ready[who]]})
    busy = {
        name: 6 * product / max(each["softmax"][1] for each in steps)
        for name, steps in (("serial", serial), ("turns", turns))
    }
    return {
        "d": HEAD_DIM,
        "softmax_over_products": softmax,
        "serial": serial,
        "turns": turns,
        "tensor_cores_busy": busy,
    }


def draw_overlap(data: dict[str, Any]) -> Figure:
    """Draw both schedules: warpgroups and tensor cores in rows, time to the right."""
    figure, panels = plt.subplots(2, 1, figsize=(5.0, 3.9), sharex=True, height_ratios=[2, 3])
    titles = {"serial": "one warpgroup", "turns": "two warpgroups take turns"}
    for ax, (name, title) in zip(panels, titles.items(), strict=True):
        groups = sorted({each["who"] for each in data[name]})
        for each in data[name]:
            row = each["who"] - 1
            for what, colour in (("product", BLUE), ("softmax", ORANGE)):
                start, end = each[what]
                letter = f"{each['tile']}" if what == "product" else "exp"
                box(ax, (start, row + 0.1, end - start, 0.8), letter, colour, 0.4 if what == "product" else 0.25)
            start, end = each["product"]
            box(ax, (start, len(groups) + 0.1, end - start, 0.8), f"{each['tile']}", BLUE, 0.4)
        names = [f"warpgroup {who}" for who in groups] + ["tensor cores"]
        ax.set(ylim=(len(names), 0), xlim=(0, 9.1))
        ax.set_yticks([at + 0.5 for at in range(len(names))], names)
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.set_title(f"{title}: tensor cores busy {100 * data['tensor_cores_busy'][name]:.0f} %")
    panels[-1].set_xlabel("time, in products of a tile (numbers are tiles)")
    return figure


FIGURES = {
    "05_backward_flow": Recipe(flow_data, draw_flow),
    "05_overlap": Recipe(overlap_data, draw_overlap),
}
