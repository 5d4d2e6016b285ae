"""The bytes that the cache of a model's layers takes, by kind of layer, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STATE_BITS = 32
"""Bits of a recurrent state's numbers: sums over a whole text are kept in float32, whatever the cache has."""


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of one sequence while it computes a token, that token's own numbers included.

    `numbers` are kept per token (keys and values of all heads, or a latent vector), `index` besides them for an
    indexer's keys. `reach` is how many tokens are kept at most, `chosen` of how many the `numbers` are read at most;
    None: of all. `conv` and `state` are numbers that do not depend on the length: the inputs of a short convolution, in
    the cache's bits, and a recurrent state, in 32 bits.
    """

    kind: str
    numbers: int = 0
    index: int = 0
    reach: int | None = None
    chosen: int | None = None
    conv: int = 0
    state: int = 0


def token_bytes(layer: LayerCache, bits: int = 16) -> int:
    """Bytes that one more token adds, as long as the layer keeps all tokens."""
    return -(-(layer.numbers + layer.index) * bits // 8)


def fixed_bytes(layer: LayerCache, bits: int = 16) -> int:
    """Bytes of one sequence that do not depend on its length."""
    return -(-layer.conv * bits // 8) + layer.state * STATE_BITS // 8


def kept_bytes(layer: LayerCache, tokens: int, bits: int = 16) -> int:
    """Bytes of one sequence of `tokens` tokens."""
    return _at_most(tokens, layer.reach) * token_bytes(layer, bits) + fixed_bytes(layer, bits)


def read_bytes(layer: LayerCache, tokens: int, bits: int = 16) -> int:
    """Bytes that a decoding step reads of one sequence: index keys of all tokens, chosen tokens' numbers, states."""
    kept = _at_most(tokens, layer.reach)
    numbers = _at_most(kept, layer.chosen) * layer.numbers
    return -(-(numbers + kept * layer.index) * bits // 8) + fixed_bytes(layer, bits)


def equal_pages_bytes(layers: Sequence[LayerCache], tokens: int, bits: int = 16) -> int:
    """Bytes of one sequence if all layers are given the same pages: each as many tokens as the longest layer keeps.

    A page is as large as the layer with the most bytes per token needs. States that do not depend on the length are
    kept elsewhere, as vLLM did (issue 11382 there, whose 25 % for Gemma 2 and 56.25 % for Ministral follow from this).
    """
    paged = [layer for layer in layers if token_bytes(layer, bits)]
    longest = max((_at_most(tokens, layer.reach) for layer in paged), default=0)
    largest = max((token_bytes(layer, bits) for layer in paged), default=0)
    return len(paged) * longest * largest + sum(fixed_bytes(layer, bits) for layer in layers)


def _at_most(tokens: int, limit: int | None) -> int:
    return tokens if limit is None else min(tokens, limit)
