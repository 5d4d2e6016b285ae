"""Chapter 03: the states of eight blocks of keys, merged in pairs as a tree."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from labstaff.figures import BLUE, MUTED, ORANGE, Recipe, arrow, box, canvas, say

N_BLOCKS, BLOCK = 8, 64


def tree_data() -> dict[str, Any]:
    """(maximum, sum) of each block of one row of scores, then of the merged pairs, row by row of the tree."""
    scores = np.random.default_rng(3).normal(size=(N_BLOCKS, BLOCK))
    states = [(float(block.max()), float(np.exp(block - block.max()).sum())) for block in scores]
    rows = [states]
    while len(states) > 1:
        states = [_merged(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
        rows.append(states)
    whole = scores.reshape(-1)
    assert abs(states[0][1] - float(np.exp(whole - whole.max()).sum())) < 1e-9
    return {
        "blocks": N_BLOCKS,
        "keys_a_block": BLOCK,
        "rows": [[[round(x, 3) for x in state] for state in row] for row in rows],
    }


def draw_tree(data: dict[str, Any]) -> Figure:
    """Draw the blocks on top and the merged states below, with the branch whose maximum stays marked."""
    figure, ax = plt.subplots(figsize=(5.0, 4.6))
    canvas(ax, 17.9, 13.2)
    places: list[list[float]] = [[1.1 + 2 * at for at in range(data["blocks"])]]
    for row in data["rows"][1:]:
        above = places[-1]
        places.append([(above[2 * at] + above[2 * at + 1]) / 2 for at in range(len(row))])
    for depth, (row, xs) in enumerate(zip(data["rows"], places, strict=True)):
        top = 1.0 + 3.5 * depth
        for at, ((m, total), x) in enumerate(zip(row, xs, strict=True)):
            box(ax, (x - 0.95, top, 1.9, 1.5), f"{m:.2f}\n{total:.1f}", BLUE if depth == 0 else ORANGE)
            if depth + 1 < len(places):
                partner = row[at ^ 1][0]
                arrow(ax, (x, top + 1.6), (places[depth + 1][at // 2], top + 3.4), MUTED, "-" if m > partner else ":")
    say(ax, 0.15, 0.45, f"eight blocks of {data['keys_a_block']} keys: m above, ℓ below", ha="left")
    for depth, text in enumerate(("round 1", "round 2", "round 3"), start=1):
        say(ax, 17.8, 1.75 + 3.5 * depth, text, ha="right", color=MUTED)
    return figure


def _merged(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    m = max(a[0], b[0])
    return m, float(a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m))


FIGURES = {"03_merge_tree": Recipe(tree_data, draw_tree)}
