"""Chapter 01's figure from SmolLM2: what four of its heads look at, by Lab 01's solution."""

from __future__ import annotations

import functools
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.chat.adapters.base import per_query_head
from labkit.model.weights import Model, read_model
from labstaff.figures import BLUE, GREEN, ORANGE, PINK, Recipe

SENTENCE = "The old cat sat on the mat because the cat was tired."
COLOURS = {"first token": ORANGE, "token before": GREEN, "last few tokens": BLUE, "same word": PINK}
NEAR, TWICE = 4, " cat"
SMALLEST = 0.02
"""Of the weights that are drawn."""


@functools.cache
def measured() -> dict[str, Any]:
    """By name, the head that does most what the name says, of one sentence."""
    torch.set_num_threads(2)
    model = read_model()
    tokens = model.text.encode(SENTENCE)
    words = [model.text.decode_each(token) for token in tokens]
    heads = _weights(model, tokens)
    return {name: {"tokens": words, **_head(heads, share)} for name, share in _shares(heads, words).items()}


def _weights(model: Model, tokens: list[int]) -> torch.Tensor:
    """The weights of all heads by Lab 01's solution, (layers, heads, n, n)."""
    lab, found = solution_module("01"), []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        output, weights = lab.standard_attention(*_arrays(q, k, v), mask=_later(len(tokens)))
        found.append(torch.from_numpy(weights))
        return torch.from_numpy(output)

    with torch.no_grad():
        model.llama.hidden(torch.tensor(tokens), attend, torch.arange(len(tokens)))
    return torch.stack(found)


def _arrays(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[np.ndarray]:
    return [x.numpy() for x in (q, *per_query_head(q, k, v))]


def _later(n: int) -> np.ndarray:
    return np.triu(np.ones((n, n), dtype=bool), 1)


def _shares(heads: torch.Tensor, words: list[str]) -> dict[str, torch.Tensor]:
    """How much weight each head gives to what a name says, (layers, heads)."""
    before, own = heads.diagonal(-1, -2, -1), heads.diagonal(0, -2, -1)
    distance = torch.arange(len(words))[:, None] - torch.arange(len(words))
    near = (heads * ((distance >= 0) & (distance < NEAR)))[:, :, NEAR:].sum(-1).mean(-1)
    # Spread over several tokens: neither the token itself nor the one before gets half of it.
    spread = torch.maximum(before[..., NEAR - 1 :].mean(-1), own[..., NEAR:].mean(-1)) < near / 2
    first, second = (at for at, word in enumerate(words) if word == TWICE)
    return {
        "first token": heads[:, :, 1:, 0].mean(-1),
        "token before": before.mean(-1),
        "last few tokens": near * spread,
        "same word": heads[:, :, second, first],
    }


def _head(heads: torch.Tensor, share: torch.Tensor) -> dict[str, Any]:
    """The head with the largest share, and its weights that are not tiny."""
    layer, head = divmod(int(share.argmax()), share.shape[1])
    rows = heads[layer, head]
    weights = [
        [i, j, round(float(rows[i, j]), 2)] for i in range(len(rows)) for j in range(i + 1) if rows[i, j] > SMALLEST
    ]
    return {"layer": layer, "head": head, "share": round(float(share.max()), 2), "weights": weights}


def draw_head(data: dict[str, Any], name: str) -> Figure:
    """Draw a square for each weight of a head, as large as the weight. Each head is a file: on a phone they stack."""
    figure, ax = plt.subplots(figsize=(3.7, 4.1))
    words = [token.strip() for token in data["tokens"]]
    queries, keys, weights = zip(*data["weights"], strict=True)
    ax.scatter(keys, queries, s=[85 * weight for weight in weights], marker="s", color=COLOURS[name], linewidths=0)
    ax.set_title(f"{name}: layer {data['layer']}, head {data['head']}")
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(len(words) - 0.3, -0.7), aspect="equal", xlabel="key", ylabel="query")
    ax.set_xticks(range(len(words)), words, rotation=90, fontsize=8.5)
    ax.set_yticks(range(len(words)), words, fontsize=8.5)
    return figure


def recipe(name: str) -> Recipe:
    """The recipe of one head's figure."""

    def data() -> dict[str, Any]:
        found: dict[str, Any] = measured()[name]
        return found

    def draw(data: dict[str, Any]) -> Figure:
        return draw_head(data, name)

    return Recipe(data, draw, takes_minutes=True)


FIGURES = {f"01_head_{name.replace(' ', '_')}": recipe(name) for name in COLOURS}
