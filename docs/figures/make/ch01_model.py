"""Chapter 01's figure from SmolLM2: what four of its heads look at, by Lab 01's solution, and the bytes of a prompt."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.chat.adapters.base import per_query_head
from labkit.meters.arrays import measure_arrays
from labkit.model.perplexity import sample_text
from labkit.model.weights import Model, read_model
from labstaff.figures import BLUE, GREEN, ORANGE, PINK, Recipe

SENTENCE = "The old cat sat on the mat because the cat was tired."
LENGTHS = (256, 512, 1024, 2048)
COLOURS = {"first token": ORANGE, "token before": GREEN, "last few tokens": BLUE, "same word": PINK}
NEAR, TWICE = 4, " cat"
SMALLEST = 0.02
"""Of the weights that are drawn."""


def measured() -> dict[str, Any]:
    """Four heads on a sentence, the weight that all heads give to its first token, and the bytes of longer prompts."""
    torch.set_num_threads(2)
    model = read_model()
    tokens = model.text.encode(SENTENCE)
    words = [model.text.decode_each(token) for token in tokens]
    heads = _weights(model, tokens)
    on_first = heads[:, :, 1:, 0].mean(-1)
    return {
        "model": "SmolLM2-135M-Instruct",
        "tokens": words,
        "heads": {name: _head(heads, share) for name, share in _shares(heads, words).items()},
        "on_first_token": {
            "mean": round(float(on_first.mean()), 2),
            "heads": heads[:, :, 0, 0].numel(),
            "heads_over_half": int((on_first > 0.5).sum()),
        },
        "prompts": [_prompt(model, n) for n in LENGTHS],
    }


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


def _prompt(model: Model, n: int) -> dict[str, int]:
    """The bytes of one matrix of all heads, and the peak of Lab 01's function in the first layer.

    The other layers have the same shapes.
    """
    sizes, found = model.llama.sizes, {}

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        function = solution_module("01").standard_attention
        found["peak"], _, (output, _) = measure_arrays(function, *_arrays(q, k, v), mask=_later(n), warm=n < 500)
        return torch.from_numpy(output)

    text = torch.tensor(model.text.encode(sample_text())[:n])
    with torch.no_grad():
        model.llama.blocks(attend, torch.arange(n))[0](model.llama.embed(text))
    return {
        "tokens": n,
        "inputs_bytes": 3 * sizes.heads * n * sizes.head_dim * 4,
        "matrix_bytes": sizes.heads * n * n * 4,
        "peak_kib": found["peak"] // 1024,
    }


def draw(data: dict[str, Any]) -> Figure:
    """Draw a square for each weight of each head, as large as the weight."""
    figure, axes = plt.subplots(2, 2, figsize=(7.6, 8.4))
    words = [token.strip() for token in data["tokens"]]
    for ax, (name, head) in zip(axes.flat, data["heads"].items(), strict=True):
        queries, keys, weights = zip(*head["weights"], strict=True)
        ax.scatter(keys, queries, s=[95 * weight for weight in weights], marker="s", color=COLOURS[name], linewidths=0)
        ax.set_title(f"{name}: layer {head['layer']}, head {head['head']}")
        ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(len(words) - 0.3, -0.7), aspect="equal")
        ax.set_xticks(range(len(words)), words, rotation=90, fontsize=8.5)
        ax.set_yticks(range(len(words)), words, fontsize=8.5)
    for ax in axes[:, 0]:
        ax.set_ylabel("query")
    for ax in axes[1]:
        ax.set_xlabel("key")
    return figure


FIGURES = {"01_real_heads": Recipe(measured, draw, takes_minutes=True)}
