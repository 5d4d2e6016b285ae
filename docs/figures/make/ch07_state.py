"""Chapter 07: which pairs a chunked linear attention computes, and the state that carries the others."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GRID, MUTED, ORANGE, Recipe, arrow, box, canvas, say

N, CHUNK, WIDTH = 16, 4, 64


def state_data() -> dict[str, Any]:
    """Pairs inside chunks, pairs that the state carries, and the state's size for a head of width 64."""
    inside = N // CHUNK * CHUNK * (CHUNK + 1) // 2
    causal = N * (N + 1) // 2
    return {
        "N": N,
        "C": CHUNK,
        "d": WIDTH,
        "d_v": WIDTH,
        "pairs_inside": inside,
        "pairs_by_the_state": causal - inside,
        "state_numbers": WIDTH * WIDTH + WIDTH,
    }


def draw_state(data: dict[str, Any]) -> Figure:
    """Draw the causal matrix with its chunks, and below it the chain of states, chunk by chunk."""
    figure, ax = plt.subplots(figsize=(5.0, 6.9))
    n, c = data["N"], data["C"]
    canvas(ax, 17.4, 24.4)
    for query in range(n):
        for key in range(query + 1):
            same = query // c == key // c
            box(ax, (key + 0.7, query + 0.9, 1, 1), "", ORANGE if same else GRID, 0.5 if same else 0.35)
    for first in range(c, n, c):
        say(ax, 0.7 + first / 2, 0.9 + first + c / 2, "from the state", color=BLUE, weight="bold", size=9)
    say(ax, 0.7, 0.4, f"{n} queries (down), {n} keys (right), chunks of {c}", ha="left")
    top = 19.3
    for at in range(n // c):
        left = 0.7 + at * c
        box(ax, (left + 0.35, top, 2.0, 1.4), f"chunk {at}\nC × C", ORANGE, 0.3)
        if at:
            box(ax, (left - 0.62, top + 2.5, 0.9, 1.4), "S", BLUE, 0.3, weight="bold")
            arrow(ax, (left - 0.1, top + 2.4), (left + 0.55, top + 1.5), BLUE)
            arrow(ax, (left - c + 1.6, top + 1.5), (left - 0.55, top + 2.4), ORANGE)
        if at > 1:
            arrow(ax, (left - c + 0.35, top + 3.2), (left - 0.7, top + 3.2), BLUE)
    say(ax, 0.7, 18.2, "orange: the chunk's keys are added to S", ha="left", color=ORANGE)
    say(ax, 0.7, 18.85, "blue: the next chunk's queries read S", ha="left", color=BLUE)
    say(
        ax,
        8.9,
        top + 4.6,
        f"one S at a time: {data['state_numbers']:,} numbers at d = {data['d']}, whatever N",
        color=MUTED,
    )
    return figure


FIGURES = {"07_state_and_chunks": Recipe(state_data, draw_state)}
