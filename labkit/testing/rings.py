"""A sequence shared by ranks: who holds which tokens, the pairs to compute, and the bytes sent, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

LAYOUTS = ("contiguous", "zigzag", "striped")


def owners(seq_len: int, world_size: int, layout: str) -> npt.NDArray[np.int64]:
    """The rank that holds each token of a sequence."""
    tokens = np.arange(seq_len)
    if layout == "contiguous":
        return tokens // (seq_len // world_size)
    if layout == "striped":
        return tokens % world_size
    run = tokens // (seq_len // (2 * world_size))
    return np.minimum(run, 2 * world_size - 1 - run)


def positions(seq_len: int, world_size: int, layout: str) -> list[npt.NDArray[np.int64]]:
    """The tokens of each rank, in the order in which it holds them: in all layouts that of the sequence."""
    owner = owners(seq_len, world_size, layout)
    return [np.flatnonzero(owner == rank) for rank in range(world_size)]


def cut(x: torch.Tensor, places: Sequence[npt.NDArray[np.int64]], dim: int = -2) -> list[torch.Tensor]:
    """The shards of a tensor whose tokens are at `places`, rank by rank."""
    return [x.index_select(dim, torch.from_numpy(place)) for place in places]


def work(seq_len: int, world_size: int, layout: str) -> npt.NDArray[np.int64]:
    """Pairs (i, j), j ≤ i, of each rank's queries and the keys that it holds in each step."""
    places = positions(seq_len, world_size, layout)
    found = [
        [
            np.searchsorted(places[(rank - step) % world_size], places[rank], side="right").sum()
            for step in range(world_size)
        ]
        for rank in range(world_size)
    ]
    return np.array(found, dtype=np.int64)


class Sizes(NamedTuple):
    """An attention that ranks share, by the names of `communication_bytes`."""

    method: str
    world_size: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int


def sent_bytes(sizes: Sizes, backward: bool) -> int:
    """The bytes that a rank sends; sums and log-sum-exps take at least 4 bytes a number."""
    method, world_size, seq_len, heads, kv_heads, head_dim, dtype_bytes = sizes
    n, sums = seq_len // world_size, max(dtype_bytes, 4)
    block = 2 * n * kv_heads * head_dim
    hops = world_size - 1
    if world_size == 1:
        return 0
    if method == "ring":
        return hops * block * dtype_bytes + (world_size * block * sums if backward else 0)
    if method == "all_gather":
        return hops * block * (dtype_bytes + (sums if backward else 0))
    rows = n * heads // world_size
    q, kv = rows * head_dim, n * kv_heads // world_size * head_dim
    if backward:
        return hops * ((3 * q + 4 * kv) * dtype_bytes + 2 * rows * sums)
    return hops * ((2 * q + 2 * kv) * dtype_bytes + rows * sums)
