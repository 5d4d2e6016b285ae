"""Perplexity: how surprised a model is by a text that it did not write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from labkit.model.attention import CachedAttention
from labkit.model.generate import positions_for
from labkit.model.llama import Attend, Llama

TOKENS_AT_ONCE = 512
"""Of which all scores are in memory at once."""


def perplexity(llama: Llama, tokens: Sequence[int], attend: Attend | None = None, first: int = 1) -> float:
    """exp of the mean of −log p(token | all before it), over the tokens from number `first` on; one pass, in float32.

    Args:
        attend: the attention; torch's own by default. It gets all tokens in one call per layer.

    Raises:
        ValueError: no token is left to score, or `first` is below 1: nothing precedes token 0.
    """
    if not 1 <= first < len(tokens):
        raise ValueError(f"first must be between 1 and {len(tokens) - 1} for {len(tokens)} tokens, got {first}")
    attend = attend or CachedAttention()
    text = torch.as_tensor(tokens)
    with torch.no_grad():
        hidden = llama.hidden(text, attend, positions_for(attend, 0, len(text)))
        total = 0.0
        for begin in range(first, len(text), TOKENS_AT_ONCE):
            end = min(begin + TOKENS_AT_ONCE, len(text))
            scores = llama.scores(hidden[begin - 1 : end - 1])
            total += float(cross_entropy(scores, text[begin:end], reduction="sum"))
    return math.exp(total / (len(text) - first))


def sample_text() -> str:
    """About 3,000 tokens of English, a part of a chapter: the text of the course's own figures."""
    return (Path(__file__).parent / "sample.txt").read_text(encoding="utf-8")
