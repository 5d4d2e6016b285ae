"""Completions as they are expected: the model with contiguous, unquantized keys and values, in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from labkit.serving.model import Model
from labkit.serving.sampling import GREEDY, Sampling
from labkit.testing.serving.bit_blocks import attention, rounded


def dense_completion(prompt: Sequence[int], max_new: int, sampling: Sampling = GREEDY, number: int = 0) -> list[int]:
    """The `max_new` tokens of completion `number` after `prompt`, from contiguous, unquantized keys and values."""
    return list(_completion(tuple(prompt), max_new, sampling, number)[0])


def least_margin(
    prompt: Sequence[int], max_new: int, bits: int = 8, sampling: Sampling = GREEDY, number: int = 0
) -> float:
    """The smallest lead of a completion's tokens, in spreads of the scores; below 0 if one does not lead.

    Where tokens are drawn the scores include the random numbers that draw them.

    The least of two: with whole keys and values, and with those that `bits` bits a number keep of them.
    """
    found, margin = _completion(tuple(prompt), max_new, sampling, number)
    tokens = [*prompt, *found[:-1]]

    def attend(_layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, rounded(k, bits), rounded(v, bits))

    rows = _precise_model().logits(tokens, range(len(tokens)), attend)[len(prompt) - 1 :]
    ends = range(len(prompt), len(tokens) + 1)
    scores = torch.stack([sampling.ranked(row, number, end) for row, end in zip(rows, ends, strict=True)])
    chosen = torch.tensor(found)[:, None]
    others = scores.scatter(1, chosen, -torch.inf).amax(1)
    leads = (scores.gather(1, chosen)[:, 0] - others) / scores.std(1)
    return min(margin, float(leads.min()))


@functools.lru_cache(maxsize=4096)
def _completion(
    prompt: tuple[int, ...], max_new: int, sampling: Sampling, number: int
) -> tuple[tuple[int, ...], float]:
    """A completion and its least margin, in float64, far from any tie that float32 might decide differently."""
    model = _precise_model()
    held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if layer in held:
            k, v = (torch.cat([old, new]) for old, new in zip(held[layer], (k, v), strict=True))
        held[layer] = (k, v)
        return attention(q, k, v)

    found: list[int] = []
    margin, tokens, first = float("inf"), list(prompt), 0
    for _ in range(max_new):
        row = model.logits(tokens, range(first, first + len(tokens)), attend)[-1]
        first += len(tokens)
        scores = sampling.ranked(row, number, first)
        best, second = scores.topk(2).values.tolist()
        margin = min(margin, (best - second) / float(scores.std()))
        tokens = [int(scores.argmax())]
        found += tokens
    return tuple(found), margin


@functools.cache
def _precise_model() -> Model:
    return Model(dtype=torch.float64)
