"""Chapter 12: where the matrices of a latent vector stand, before and after absorption."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, Recipe, arrow, box, canvas, say

HEADS, NOPE, ROPE, LATENT, VALUE = 128, 128, 64, 512, 128  # DeepSeek-V2


def absorb_data() -> dict[str, Any]:
    """Numbers that a token needs in a layer of DeepSeek-V2, made and read, and the FLOPs of one query, both ways."""
    made = HEADS * (NOPE + VALUE)
    scores = 2 * HEADS * (NOPE + ROPE + VALUE)
    unpack = 2 * HEADS * (NOPE + VALUE) * LATENT
    absorbed = 2 * HEADS * (LATENT + ROPE + LATENT)
    return {
        "read": LATENT + ROPE,
        "unpacked": {"numbers_made": made, "flops": scores + unpack},
        "absorbed": {"numbers_made": 0, "flops": absorbed},
    }


def draw_absorb(data: dict[str, Any]) -> Figure:
    """Draw both orders of the same three factors, one above the other."""
    figure, panels = plt.subplots(2, 1, figsize=(5.0, 6.6))
    figure.get_layout_engine().set(h_pad=0.08)
    for ax, absorbed in zip(panels, (False, True), strict=True):
        canvas(ax, 14, 8.4)
        box(ax, (0.2, 5.4, 3.2, 1.5), f"c, of each token\n{data['read']} numbers", GREEN, 0.3)
        box(ax, (0.2, 1.4, 3.2, 1.3), "q, of each head", BLUE, 0.3)
        box(ax, (10.6, 1.4, 3.2, 1.3), "o, of each head", BLUE, 0.3)
        if absorbed:
            box(ax, (4.4, 1.2, 2.2, 1.7), "W_UKᵀ q\nonce", ORANGE, 0.3)
            box(ax, (7.4, 1.2, 2.2, 1.7), "W_UV ·\nonce", ORANGE, 0.3)
            box(ax, (4.4, 5.2, 5.2, 1.9), "scores with c, then Σ p c:\none head of keys for all", INK, 0.1)
            for start, end in [((3.4, 2.05), (4.4, 2.05)), ((5.5, 2.95), (5.5, 5.15)), ((3.4, 6.15), (4.4, 6.15)),
                               ((8.5, 5.2), (8.5, 2.95)), ((9.6, 2.05), (10.6, 2.05))]:  # fmt: skip
                arrow(ax, start, end)
            facts = f"made for a token: nothing; {data['absorbed']['flops']:,} FLOPs a token"
        else:
            box(ax, (4.4, 5.2, 2.2, 1.9), "W_UK c\nW_UV c", ORANGE, 0.3)
            box(ax, (7.4, 5.2, 2.2, 1.9), "k and v\nof 128\nheads", ORANGE, 0.3)
            box(ax, (4.4, 1.2, 5.2, 1.7), "scores with k, then Σ p v", INK, 0.1)
            for start, end in [((3.4, 6.15), (4.4, 6.15)), ((6.6, 6.15), (7.4, 6.15)), ((8.5, 5.2), (8.5, 2.95)),
                               ((3.4, 2.05), (4.4, 2.05)), ((9.6, 2.05), (10.6, 2.05))]:  # fmt: skip
                arrow(ax, start, end)
            made, flops = data["unpacked"]["numbers_made"], data["unpacked"]["flops"]
            facts = f"made for a token: {made:,} numbers; {flops:,} FLOPs a token"
        say(ax, 0.2, 7.8, facts, ha="left", color=MUTED)
        ax.set_title(
            "absorbed: the matrices move to q and to o"
            if absorbed
            else "as defined: a key and a value for every token and head"
        )
    return figure


FIGURES = {"12_absorption": Recipe(absorb_data, draw_absorb)}
