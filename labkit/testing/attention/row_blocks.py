"""Rows in blocks that come once: how to cut and pass them, what is right of them, and what mistakes make of it.

Numbers stand along the last axis; leading axes are rows of their own. A state is (m, l, o): the maximum score, the sum
of exp(score − m), and the sum of exp(score − m) · value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.meters.blocks import drawn
from labkit.testing.attention.cases import Case
from labkit.testing.attention.suspects import pass_suspects, scale_suspects

Parts = tuple[npt.NDArray, ...]
Blocks = Sequence[npt.NDArray]


def cut(x: npt.NDArray, lengths: Sequence[int], axis: int = -1) -> list[npt.NDArray]:
    """`x` in blocks of these lengths along one axis."""
    return np.split(x, np.cumsum(lengths)[:-1], axis=axis)


class Far:
    """Blocks of rows that are tens of MiB together and are made when they are asked for, the same ones each time."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], n_blocks: int = 64) -> None:
        self.shape, self.seeds = shape, rng.integers(0, 2**32, n_blocks)

    def again(self) -> Iterator[npt.NDArray]:
        """The blocks, as often as asked for."""
        return drawn(self.shape, self.seeds)

    def __str__(self) -> str:
        return f"{len(self.seeds)} blocks of {' × '.join(map(str, self.shape))}"


def some_masked(rng: np.random.Generator, x: npt.NDArray, share: float = 0.4) -> npt.NDArray:
    """A copy of `x` with −inf in some places."""
    return np.where(rng.random(x.shape) < share, x.dtype.type(-np.inf), x)


def softmax_of_row(x: npt.NDArray, dtype: npt.DTypeLike = np.float64) -> Parts:
    """(weights, m, l) of the whole row, computed in `dtype`, sums from left to right."""
    x = np.asarray(x).astype(dtype)
    m = x.max(axis=-1, initial=-np.inf)
    powers = np.exp(x - _finite(m)[..., None])
    l = np.add.accumulate(powers, axis=-1)[..., -1] if x.shape[-1] else np.zeros_like(m)
    return powers / _divisor(l), m, l


def state_of(scores: npt.NDArray, V: npt.NDArray, dtype: npt.DTypeLike | None = None) -> Parts:
    """The state of a set of keys, computed in float64 and rounded to `dtype` (that of the scores, when None)."""
    s = scores.astype(np.float64)
    m = s.max(axis=-1, initial=-np.inf)
    powers = np.exp(s - _finite(m)[..., None])
    o = (powers[..., None, :] @ V.astype(np.float64))[..., 0, :]
    return tuple(np.asarray(x, dtype or scores.dtype)[()] for x in (m, powers.sum(axis=-1), o))


def in_float64(state: Sequence[Any]) -> Parts:
    """A state's parts as arrays of float64."""
    return tuple(np.asarray(part, np.float64) for part in state)


def two_states(
    rng: np.random.Generator,
    d_v: int = 4,
    batch: tuple[int, ...] = (),
    dtype: npt.DTypeLike = np.float32,
    offset: float = 0.0,
) -> tuple[Parts, Parts, Parts]:
    """States of 7 keys and of 5, with scores about `offset`, and of all 12 in float64.

    Their maxima are 2.5 to 4 apart: the lower state counts for some percent, so that it shows when a merge forgets it,
    or its rescaling, in half precision too.
    """
    s = rng.normal(0, 3, (*batch, 12)) + offset
    gap = rng.uniform(2.5, 4, (*batch, 1)) * rng.choice([-1, 1], (*batch, 1))
    s[..., 7:] += s[..., :7].max(-1, keepdims=True) - s[..., 7:].max(-1, keepdims=True) + gap
    s = s.astype(dtype)
    V = rng.standard_normal((*batch, 12, d_v)).astype(dtype)
    return state_of(s[..., :7], V[..., :7, :]), state_of(s[..., 7:], V[..., 7:, :]), state_of(s, V, np.float64)


def some_states(seed: int, spread: float, batch: tuple[int, ...], sizes: Sequence[int]) -> list[Parts]:
    """The states of sets of keys of these sizes, some keys masked; at last the state of all together."""
    rng = np.random.default_rng(seed)
    s = some_masked(rng, rng.normal(0, spread, (*batch, sum(sizes))), 0.2)
    V = rng.standard_normal((*batch, sum(sizes), 3))
    parts = zip(cut(s, sizes), cut(V, sizes, -2), strict=True)
    return [*(state_of(*part) for part in parts), state_of(s, V)]


def no_keys(batch: tuple[int, ...] = (), dtype: npt.DTypeLike = np.float32) -> Parts:
    """The state of no keys, as arrays, beside values of width 4."""
    return np.full(batch, -np.inf, dtype)[()], np.zeros(batch, dtype)[()], np.zeros((*batch, 4), dtype)


def axis_suspects(x: npt.NDArray, axis: int) -> dict[str, npt.NDArray]:
    """What the softmax is when it runs along other axes than the one asked for."""
    others = (other for other in range(x.ndim) if other != axis % x.ndim)
    found = {
        f"the weights add up to 1 along axis {other}": np.moveaxis(
            softmax_of_row(np.moveaxis(x, other, -1))[0], -1, other
        )
        for other in others
    }
    if found:
        found["one maximum or one sum serves all rows together"] = _one_for_all_rows(x)
    return found


def stats_suspects(blocks: Blocks) -> dict[str, Parts]:
    """What usual mistakes make of (m, l)."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    _, m, l = softmax_of_row(x)
    from_zero, top = np.maximum(m, 0), x.max(initial=-np.inf)
    shifted = [powers.sum(-1) for powers in _powers_when_they_came(blocks)]
    own = [softmax_of_row(block) for block in blocks]
    cropped = np.concatenate([*blocks[:-1], blocks[-1][..., :0]], axis=-1)
    alike = np.concatenate([b for b in blocks if b.shape[-1] == blocks[0].shape[-1]], axis=-1)
    return {
        "l is not rescaled when the maximum moves": (m, np.asarray(sum(shifted))),
        "the sums of the blocks, each with a maximum of its own, are added as they are": (
            m,
            np.asarray(sum(each[2] for each in own)),
        ),
        "l keeps only the last block": (m, shifted[-1]),
        "m starts at 0 in place of −inf": (from_zero, np.exp(x - from_zero[..., None]).sum(-1)),
        "the maximum is that of the last block": (own[-1][1], np.exp(x - _finite(own[-1][1])[..., None]).sum(-1)),
        "the blocks are gone through twice: the second time a generator gives nothing": (m, np.zeros_like(l)),
        "the last block is dropped": softmax_of_row(cropped)[1:],
        "blocks of another length than the first are dropped": softmax_of_row(alike)[1:],
        "m is the log-sum-exp": (m + np.log(np.where(l == 0, 1, l)), np.ones_like(l)),
        "the maximum is taken over all rows together": (np.full_like(m, top), np.exp(x - _finite(top)).sum(-1)),
    }


def weights_suspects(blocks: Blocks) -> dict[str, npt.NDArray]:
    """What usual mistakes make of the joined weights."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    _, m, l = softmax_of_row(x)
    ends = np.cumsum([block.shape[-1] for block in blocks])
    so_far = [softmax_of_row(x[..., :end])[0][..., end - b.shape[-1] :] for b, end in zip(blocks, ends, strict=True)]
    join = functools.partial(np.concatenate, axis=-1)
    return {
        "each block keeps the maximum known at its time": join(_powers_when_they_came(blocks)) / _divisor(l),
        "each block is divided by the l known at its time": join(so_far),
        "each block is a softmax of its own": join([softmax_of_row(block)[0] for block in blocks]),
        "the weights are not divided by l": np.exp(x - _finite(m)[..., None]),
        "the maximum is taken over all rows together": _one_for_all_rows(x),
    }


def merge_suspects(state_a: Sequence[Any], state_b: Sequence[Any], want: Sequence[Any]) -> dict[str, Parts]:
    """What usual mistakes make of two states, of which `want` is right."""
    (m_a, l_a, o_a), (m_b, l_b, o_b), (m, l, o) = map(in_float64, (state_a, state_b, want))
    first = np.broadcast_to(m_a >= m_b, m.shape)
    larger = np.where(first, l_a, l_b), np.where(first[..., None], o_a, o_b)
    return {
        "l is added without rescaling": (m, l_a + l_b, o),
        "o is added without rescaling": (m, l, o_a + o_b),
        "l and o are averaged": (m, (l_a + l_b) / 2, (o_a + o_b) / 2),
        "the sums are halved": (m, l / 2, o / 2),
        "o is divided by l: it is to stay undivided": (m, l, o / _divisor(l)),
        "only the state with the larger maximum is kept": (m, *larger),
        "m is the second state's": (m_b, l, o),
        "m is the first state's": (m_a, l, o),
        "m is the log-sum-exp": (m + np.log(np.where(l == 0, 1, l)), np.ones_like(l), o),
    }


def output_suspects(case: Case, lengths: Sequence[int]) -> dict[str, Callable[[], npt.NDArray]]:
    """What usual mistakes make of one query's output, whose keys come in blocks of these lengths."""
    ends = np.cumsum(lengths)
    found = pass_suspects(case, [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)])
    found |= {cause: functools.partial(case.other, scale=scale) for cause, scale in scale_suspects(case).items()}
    if len(lengths) > 1:
        last = np.arange(case.n_keys) >= ends[-2]
        found["the last block is dropped"] = lambda: case.other(hidden=case.hidden | last)
        found["only the last block is kept"] = lambda: case.other(hidden=case.hidden | ~last)
    return {cause: lambda made=made: made().output[..., 0, :] for cause, made in found.items()}  # type: ignore[misc]


def _powers_when_they_came(blocks: Blocks) -> list[npt.NDArray]:
    """exp(x − m) of each block, with the maximum known at its time."""
    peaks = np.stack([block.max(axis=-1, initial=-np.inf) for block in blocks], axis=-1).astype(np.float64)
    known = _finite(np.maximum.accumulate(peaks, axis=-1))
    return [np.exp(block - known[..., j, None]) for j, block in enumerate(blocks)]


def _one_for_all_rows(x: npt.NDArray) -> npt.NDArray:
    """The weights when all rows share one maximum and one sum."""
    return softmax_of_row(x.reshape(-1))[0].reshape(x.shape)


def _finite(m: npt.NDArray) -> npt.NDArray:
    """`m` with 0 for −inf."""
    return np.where(np.isneginf(m), 0, m)


def _divisor(l: npt.NDArray) -> npt.NDArray:
    """`l` with 1 for 0, beside the numbers of its row."""
    return np.where(l == 0, 1, l)[..., None]
