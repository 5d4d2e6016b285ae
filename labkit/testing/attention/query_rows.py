"""A row of queries, one for each batch entry, and the keys and values that come to it in blocks: drawn, or masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from labkit.testing.attention.reference import random_qkv
from labkit.testing.attention.row_blocks import cut

RowAndBlocks = tuple[npt.NDArray, list[npt.NDArray], list[npt.NDArray]]
"""A query (..., d), keys in blocks of (..., n, d), and values in blocks of (..., n, d_v)."""


def row(
    rng: np.random.Generator,
    lengths: Sequence[int],
    d: int = 16,
    d_v: int | None = None,
    dtype: npt.DTypeLike = np.float32,
    batch: tuple[int, ...] = (),
    logit_scale: float = 3.0,
) -> RowAndBlocks:
    """One query for each batch entry, and keys and values in blocks of these lengths."""
    Q, K, V = random_qkv(
        rng, n_queries=1, n_keys=sum(lengths), d=d, d_v=d_v, batch=batch, dtype=dtype, logit_scale=logit_scale
    )
    return Q[..., 0, :], cut(K, lengths, -2), cut(V, lengths, -2)


def masked_row(
    rng: np.random.Generator,
    lengths: Sequence[int],
    hidden: Callable[[int, npt.NDArray[np.intp]], npt.ArrayLike],
    dtype: npt.DTypeLike = np.float32,
) -> RowAndBlocks:
    """A query whose last feature carries a mask: it has 1 there, a key that is masked out −inf, the others 0.

    `hidden` is given the number of a block and the places in it, and says which keys are masked out.
    """
    q, K, V = row(rng, lengths, d=9, d_v=4, dtype=dtype)
    q[-1] = 1
    for i, block in enumerate(K):
        block[:, -1] = np.where(hidden(i, np.arange(len(block))), -np.inf, 0)
    return q, K, V


def integer_row(rng: np.random.Generator, size: int, dtype: npt.DTypeLike = np.float32) -> RowAndBlocks:
    """Scores of about `size` that every order of computing gives exactly: small integers, to be scaled by 1."""
    q = np.array([64, 1, 0], dtype)
    K = np.stack([np.full(29, size // 64), rng.integers(-4, 5, 29), rng.integers(-9, 9, 29)], -1)
    V = rng.standard_normal((29, 5))
    K_blocks, V_blocks = (cut(x.astype(dtype), (8, 8, 8, 5), 0) for x in (K, V))
    return q, K_blocks, V_blocks
