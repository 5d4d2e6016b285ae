"""Blocks that hold few bits a number: sequences written into a cache under test, and what attention must find there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.compare import assert_close, assert_dtype, assert_type, require

NEAR_A_TIE = 0.01
"""In steps. Vectors with a number so near to the middle between two codes are drawn again: rounding would decide."""

WHERE = "place t % block_size of block block_table[t // block_size] holds token t; the table's order is the text's"
FOREIGN = (
    "a place that is not the sequence's is read: behind the blocks that are needed, or behind the last query in its own"
)


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """What `bits` bits a number keep of x (..., d): 2^bits steps from the least of each row to its largest.

    The least and the size of a step are rounded to float16 first.
    """
    scale, zero = _scale_and_zero(x, bits)
    return _steps(x, scale, zero).round().clamp(0, 2**bits - 1) * scale + zero


class BitBlocks:
    """A cache under test, the sequences written into it, and beside it what it was given."""

    def __init__(
        self,
        rng: np.random.Generator,
        make: Callable[..., Any],
        *,
        num_blocks: int = 12,
        block_size: int = 4,
        layers: int = 2,
        kv_heads: int = 2,
        group: int = 2,
        d: int = 8,
        bits: int = 8,
    ) -> None:
        self.rng, self.bits, self.block_size, self.layers = rng, bits, block_size, layers
        self.kv_heads, self.group, self.d = kv_heads, group, d
        self.cache = make(num_blocks, block_size, layers, kv_heads, d, bits)
        self.free = rng.permutation(num_blocks).tolist()
        self.told = f"{bits} bits, blocks of {block_size}, {group * kv_heads} heads on {kv_heads}, d = {d}"

    def sequence(self, n_tokens: int, *, spread: float = 1.0, offset: float = 0.0) -> Written:
        """A new sequence, keys and values (layers, n_tokens, kv_heads, d), with blocks of its own, in any order."""
        shape = (2, self.layers, n_tokens, self.kv_heads, self.d)
        k, v = clear_vectors(self.rng, shape, self.bits, spread, offset)
        table = [self.free.pop() for _ in range(-(-n_tokens // self.block_size))]
        return Written(k, v, table)

    def write(self, sequence: Written, start: int = 0, end: int | None = None) -> None:
        """Have tokens start … end − 1 written, in all layers."""
        end = sequence.k.shape[1] if end is None else end
        blocks = [sequence.table[t // self.block_size] for t in range(start, end)]
        places = [t % self.block_size for t in range(start, end)]
        for layer in range(self.layers):
            k, v = (x[layer, start:end].clone() for x in (sequence.k, sequence.v))
            self.cache.write(layer, blocks, places, k, v)

    def spoil(self, sequence: Written, start: int) -> None:
        """Have NaN written into a sequence's places from `start` on, to the end of its last block."""
        n = len(sequence.table) * self.block_size - start
        blocks = [sequence.table[t // self.block_size] for t in range(start, start + n)]
        places = [t % self.block_size for t in range(start, start + n)]
        nothing = torch.full((n, self.kv_heads, self.d), torch.nan)
        for layer in range(self.layers):
            self.cache.write(layer, blocks, places, nothing, nothing)

    def check(
        self,
        sequence: Written,
        start: int,
        n: int = 1,
        *,
        sharp: float = 1.0,
        table: Any = None,
        hint: str = WHERE,
        nan_hint: str = FOREIGN,
    ) -> None:
        """Compare attention of n queries at `start` in every layer; `table` in place of the sequence's own."""
        heads = self.group * self.kv_heads
        for layer in range(self.layers):
            q = torch.from_numpy(sharp * self.rng.standard_normal((n, heads, self.d))).float()
            got = self.cache.attend(layer, q, list(sequence.table if table is None else table), start)
            self._compare(got, q, sequence, layer, start, hint, nan_hint)

    def _compare(
        self, got: Any, q: torch.Tensor, sequence: Written, layer: int, start: int, hint: str, nan_hint: str
    ) -> None:
        name = f"o of queries {start} to {start + len(q) - 1} in layer {layer} ({self.told})"
        assert_type(name, got, torch.Tensor, "a tensor")
        require(tuple(got.shape) == tuple(q.shape), f"{name} has shape {tuple(got.shape)}, expected {tuple(q.shape)}")
        assert_dtype(name, got, torch.float32)
        end = start + len(q)
        kept = [rounded(x[layer, :end].double(), self.bits) for x in (sequence.k, sequence.v)]
        want = attention(q.double(), *kept)
        plain = [of(q, *(x.float() for x in kept)).numpy() for of in (attention, self._block_by_block)]
        suspects = lambda: self._suspects(q.double(), sequence, layer, end)  # noqa: E731 — made where something is off
        assert_close(name, got, want.numpy(), plain=plain, suspects=suspects, hint=hint, nan_hint=nan_hint)

    def _block_by_block(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The same in another order of rounding: outputs of blocks, merged by their log-sum-exps."""
        k, v = (x.repeat_interleave(self.group, 1).transpose(0, 1) for x in (k, v))
        position = k.shape[1] - len(q) + torch.arange(len(q))[:, None]
        o, lse = torch.zeros(k.shape[0], len(q), self.d), torch.full((k.shape[0], len(q)), -torch.inf)
        for first in range(0, k.shape[1], self.block_size):
            keys, values = (x[:, first : first + self.block_size] for x in (k, v))
            scores = q.transpose(0, 1) @ keys.mT / self.d**0.5
            scores.masked_fill_(first + torch.arange(keys.shape[1]) > position, -torch.inf)
            more = scores.logsumexp(-1)
            both = torch.logaddexp(lse, more)
            part = scores.softmax(-1).nan_to_num(0.0) @ values
            o = o * torch.exp(lse - both)[..., None] + part * torch.exp(more - both)[..., None]
            lse = both
        return o.transpose(0, 1)

    def _suspects(
        self, q: torch.Tensor, sequence: Written, layer: int, end: int
    ) -> Mapping[str, Callable[[], npt.NDArray[np.floating]]]:
        """Usual mistakes and what each leads to."""
        whole = [x[layer, :end].double() for x in (sequence.k, sequence.v)]
        kept = [rounded(x, self.bits) for x in whole]
        levels = 2**self.bits - 1

        def by(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], npt.NDArray[np.floating]]:
            return lambda: attention(q, *map(change, whole)).numpy()

        def cut(x: torch.Tensor) -> torch.Tensor:
            scale, zero = _scale_and_zero(x, self.bits)
            return _steps(x, scale, zero).floor().clamp(0, levels) * scale + zero

        usual = {
            "keys and values are kept whole: each number is a code, and what is read is code · scale + zero": by(
                lambda x: x
            ),
            "the fraction is cut off: the nearest code is taken (round)": by(cut),
            "all heads of a token share one range: each vector has its own": by(
                lambda x: rounded(x.flatten(-2), self.bits).view_as(x)
            ),
            "the zero is left out: what is read is code · scale + zero": by(
                lambda x: rounded(x, self.bits) - _scale_and_zero(x, self.bits)[1]
            ),
            "the scores are not divided by √d": lambda: attention(q * self.d**0.5, *kept).numpy(),
            "query head h reads key head h % kv_heads: it is h // (H / kv_heads)": lambda: (
                attention(q.unflatten(1, (-1, self.kv_heads)).transpose(1, 2).flatten(1, 2), *kept)
                .unflatten(1, (self.kv_heads, -1))
                .transpose(1, 2)
                .flatten(1, 2)
                .numpy()
            ),
            "causal counts from the top left: the first query is at `start`, and sees all before it": lambda: attention(
                q, *kept, first=0
            ).numpy(),
            "queries see the tokens after them: the one at position p sees 0 … p": lambda: attention(
                q, *kept, first=end
            ).numpy(),
            "a query does not see its own key": lambda: attention(q, *kept, first=end - len(q) - 1).numpy(),
        }
        if self.layers > 1:
            other = [rounded(x[layer - 1, :end].double(), self.bits) for x in (sequence.k, sequence.v)]
            usual["another layer's keys and values are read"] = lambda: attention(q, *other).numpy()
        return usual


class Written:
    """Keys and values (layers, tokens, kv_heads, d) and the blocks in which they lie."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, table: list[int]) -> None:
        self.k, self.v, self.table = k, v, table


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, first: int | None = None) -> torch.Tensor:
    """Attention of n tokens, q (n, H, d), over N, k and v (N, H_kv, d); the first at `first`, N − n if None."""
    n, heads, d = q.shape
    first = len(k) - n if first is None else first
    k, v = (x[:, :, None].expand(-1, -1, heads // x.shape[1], -1).flatten(1, 2).transpose(0, 1) for x in (k, v))
    hidden = torch.arange(k.shape[1]) > first + torch.arange(n)[:, None]
    scores = (q.transpose(0, 1) @ k.mT * d**-0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def clear_vectors(
    rng: np.random.Generator, shape: Sequence[int], bits: int, spread: float = 1.0, offset: float = 0.0
) -> torch.Tensor:
    """Vectors (..., d) in float32, drawn until no rounding of float32 decides about a code or a scale."""

    def draw(*sizes: int) -> torch.Tensor:
        return torch.from_numpy(offset + spread * rng.standard_normal(sizes)).float()

    found = draw(*shape)
    while bool((unclear := _unclear(found, bits)).any()):
        found[unclear] = draw(int(unclear.sum()), shape[-1])
    return found


def _unclear(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Where a vector has a number near the middle between two codes, or a scale near that of two float16."""
    precise = x.double()
    scale, zero = _scale_and_zero(precise, bits)
    steps = _steps(precise, scale, zero)
    near = ((steps - steps.floor() - 0.5).abs() < NEAR_A_TIE).any(-1)
    exact = (precise.amax(-1, keepdim=True) - precise.amin(-1, keepdim=True)) / (2**bits - 1)
    moved = [(exact * (1 + side * 1e-6)).half().double() for side in (-1, 1)]
    return near | (moved[0] != moved[1])[..., 0]


def _scale_and_zero(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((high - low) / (2**bits - 1)).half().to(x.dtype), low.half().to(x.dtype)


def _steps(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Where each number lies, in steps; 0 where the scale is."""
    return torch.where(scale == 0, 0, (x - zero) / torch.where(scale == 0, 1, scale))
