"""Chapter 08's figure from SmolLM2: where in a text a window begins to cost, without and with the first tokens."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy

from benchmarks.harness import solution_module
from labkit.chat.adapters.lab08 import SlidingWindow
from labkit.chat.adapters.lab12 import WindowWithSinks
from labkit.chat.setting import Setting
from labkit.model.attention import CachedAttention
from labkit.model.generate import positions_for
from labkit.model.llama import Attend
from labkit.model.perplexity import sample_text
from labkit.model.weights import Model, read_model
from labstaff.figures import BLUE, INK, MUTED, ORANGE, Recipe

N_TOKENS, WINDOW, SINKS, BIN = 1024, 256, 4, 64
LOOKS = {
    "window": ("the window alone", ORANGE, "s--"),
    "window and sinks": ("the window and the first 4 tokens", BLUE, "o-"),
    "all": ("all tokens", INK, ":"),
}


def measured() -> dict[str, Any]:
    """The mean of −log p over each 64 tokens: the whole text seen, a window by Lab 08, and with sinks by Lab 12."""
    torch.set_num_threads(2)
    model = read_model()
    text = torch.tensor(model.text.encode(sample_text())[: N_TOKENS + 1])
    setting = Setting(model.llama.sizes, N_TOKENS, None, WINDOW, SINKS)
    ways = {
        "window": SlidingWindow(solution_module("08"), setting),
        "window and sinks": WindowWithSinks(solution_module("12"), setting),
        "all": CachedAttention(),
    }
    losses = {name: [float(f"{loss:.3g}") for loss in _losses(model, text, way)] for name, way in ways.items()}
    return {"model": "SmolLM2-135M-Instruct", "window": WINDOW, "sinks": SINKS, "bin": BIN, "losses": losses}


def _losses(model: Model, text: torch.Tensor, attend: Attend) -> list[float]:
    """The mean of −log p of the tokens after each 64 places, in nats."""
    tokens, following = text[:-1], text[1:]
    with torch.no_grad():
        hidden = model.llama.hidden(tokens, attend, positions_for(attend, 0, len(tokens)))
        pairs = zip(hidden.split(BIN), following.split(BIN), strict=True)
        return [float(cross_entropy(model.llama.scores(rows), targets)) for rows, targets in pairs]


def draw(data: dict[str, Any]) -> Figure:
    """Draw the losses over the place in the text, with a line where the window is full."""
    figure, ax = plt.subplots(figsize=(5.6, 4.2))
    for name, (label, colour, look) in LOOKS.items():
        losses = data["losses"][name]
        middles = [data["bin"] * (at + 0.5) for at in range(len(losses))]
        ax.plot(middles, losses, look, color=colour, label=label, markersize=4)
    ax.axvline(data["window"], color=MUTED, linewidth=1)
    top = max(map(max, data["losses"].values()))
    ax.text(data["window"] + 15, 1.02 * top, "token 0 leaves the window", color=MUTED, size=8.5)
    ax.set(xlabel="place in the text, tokens", ylabel="loss, nats per token", xlim=(0, None), ylim=(0, 1.1 * top))
    ax.set_xticks(range(0, N_TOKENS + 1, 256))
    ax.legend(loc="lower right")
    return figure


FIGURES = {"08_where_it_costs": Recipe(measured, draw, takes_minutes=True)}
