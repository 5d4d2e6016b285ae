"""The bytes that the cache of a model's layers takes, by kind of layer, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STATE_BITS = 32
"""Bits of a recurrent state's numbers: sums over a whole text are kept in float32, whatever the cache has."""


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of one sequence while it computes a token, that token's own numbers included.

    What a token keeps: `numbers` (keys and values of all heads, or a latent vector), and `index` for an indexer's key.
    How far a layer reaches: to the last `reach` tokens, and it reads the `numbers` of at most `chosen` entries; None:
    all. A compressed layer keeps one entry for `ratio` tokens, and whole ones of the last `recent` tokens besides.
    What is fixed: `conv`, numbers in the cache's bits (the inputs of a short convolution, or of a compressor), and
    `state`, numbers in 32 bits.
    """

    kind: str
    numbers: int = 0
    index: int = 0
    reach: int | None = None
    chosen: int | None = None
    conv: int = 0
    state: int = 0
    ratio: int = 1
    recent: int = 0


def token_bytes(layer: LayerCache, bits: int = 16) -> int:
    """Bytes that an entry adds: one more token, or `ratio` of them, as long as the layer keeps all."""
    return -(-(layer.numbers + layer.index) * bits // 8)


def fixed_bytes(layer: LayerCache, bits: int = 16) -> int:
    """Bytes of one sequence that do not depend on its length."""
    return -(-layer.conv * bits // 8) + layer.state * STATE_BITS // 8


def kept_bytes(layer: LayerCache, tokens: int, bits: int = 16) -> int:
    """Bytes of one sequence of `tokens` tokens."""
    recent = -(-min(tokens, layer.recent) * layer.numbers * bits // 8)
    return _entries(layer, tokens) * token_bytes(layer, bits) + recent + fixed_bytes(layer, bits)


def read_bytes(layer: LayerCache, tokens: int, bits: int = 16) -> int:
    """Bytes that a decoding step reads of one sequence: index keys of all entries, chosen entries' numbers, states."""
    entries = _entries(layer, tokens)
    numbers = (_at_most(entries, layer.chosen) + min(tokens, layer.recent)) * layer.numbers
    return -(-(numbers + entries * layer.index) * bits // 8) + fixed_bytes(layer, bits)


def equal_pages_bytes(layers: Sequence[LayerCache], tokens: int, bits: int = 16) -> int:
    """Bytes of one sequence if all layers are given the same pages: each as many entries as the longest layer keeps.

    A page is as large as the layer with the most bytes per entry needs. States that do not depend on the length are
    kept elsewhere, as vLLM did (issue 11382 there, whose 25 % for Gemma 2 and 56.25 % for Ministral follow from this).
    """
    paged = [layer for layer in layers if token_bytes(layer, bits)]
    longest = max((_entries(layer, tokens) + min(tokens, layer.recent) for layer in paged), default=0)
    largest = max((token_bytes(layer, bits) for layer in paged), default=0)
    return len(paged) * longest * largest + sum(fixed_bytes(layer, bits) for layer in layers)


def _entries(layer: LayerCache, tokens: int) -> int:
    return _at_most(tokens, layer.reach) // layer.ratio


def _at_most(tokens: int, limit: int | None) -> int:
    return tokens if limit is None else min(tokens, limit)
