"""Assertions about who holds which tokens of a sequence and what that leaves to do, and the mistakes usual in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.compare import assert_dtype, assert_equal, assert_type, require
from labkit.testing.rings.counts import work
from labkit.testing.rings.shards import LAYOUTS, cut, positions


def assert_layout(shard: Callable[..., Any], n_tokens: int, world_size: int, layout: str) -> None:
    """Fail unless `shard` gives every rank its tokens."""
    shards = shard(numbered(n_tokens), world_size, layout)
    assert_type("shard's result", shards, (list, tuple), "a list of tensors, one for each rank")
    for rank, part in enumerate(shards):
        assert_type(f"rank {rank}'s shard", part, torch.Tensor, "a tensor")
    want = [place.tolist() for place in positions(n_tokens, world_size, layout)]
    about = f"the tokens of each rank, {n_tokens} in all, {world_size} ranks, {layout!r},"
    assert_equal(about, tokens_held(shards), want, suspects=layout_suspects(n_tokens, world_size, layout))


def assert_whole(unshard: Callable[..., Any], n_tokens: int, world_size: int, layout: str) -> None:
    """Fail unless `unshard` puts the tokens of all ranks back in order."""
    shards = cut(numbered(n_tokens), positions(n_tokens, world_size, layout))
    got = unshard(shards, layout)
    assert_type("unshard's result", got, torch.Tensor, "a tensor")
    require(
        tuple(got.shape) == (n_tokens, 2), f"unshard's result has shape {tuple(got.shape)}, expected {(n_tokens, 2)}"
    )
    order = [int(row) for row in got[:, 0]]
    joined = np.concatenate(positions(n_tokens, world_size, layout))
    suspects = {"shards are put behind one another, and not back in order": joined.tolist()}
    suspects["the order is applied once more in place of its inverse: argsort of where each token came from"] = joined[
        joined
    ].tolist()
    about = f"the order of {n_tokens} tokens from {world_size} ranks, {layout!r},"
    assert_equal(about, order, list(range(n_tokens)), suspects=suspects)


def assert_work(
    causal_work: Callable[..., Any], seq_len: int, world_size: int, layout: str, suspects: bool = True
) -> None:
    """Compare `causal_work` with the pairs counted."""
    got = causal_work(seq_len, world_size, layout)
    about = f"causal_work({seq_len}, {world_size}, {layout!r})"
    assert_type(about, got, torch.Tensor, "a tensor")
    assert_dtype(about, got, torch.int64)
    usual = work_suspects(seq_len, world_size, layout) if suspects else {}
    assert_equal(about, got.tolist(), work(seq_len, world_size, layout).tolist(), suspects=usual)


def numbered(n_tokens: int) -> torch.Tensor:
    """(n_tokens, 2), each row the number of its token."""
    return torch.arange(n_tokens, dtype=torch.float32)[:, None].repeat(1, 2)


def tokens_held(shards: Any) -> list[Any]:
    """The tokens of each rank, from shards of a tensor whose rows are their own numbers."""
    return [[int(row) for row in x[:, 0]] if x.dim() == 2 and x.shape[-1] == 2 else tuple(x.shape) for x in shards]


def layout_suspects(n_tokens: int, world_size: int, layout: str) -> dict[str, Any]:
    """Usual mistakes with layouts: the tokens of each rank."""
    runs = np.arange(n_tokens).reshape(2 * world_size, -1) if n_tokens % (2 * world_size) == 0 else None
    found: dict[str, Any] = {}
    for other in LAYOUTS:
        if other != layout and (other != "zigzag" or runs is not None):
            found[f"the layout is {other!r}, asked for was {layout!r}"] = positions(n_tokens, world_size, other)
    if runs is not None and layout == "zigzag":
        ranks = range(world_size)
        found |= {
            "runs r and r + P are taken: the sequence folds back, to run 2P − 1 − r": [
                np.concatenate([runs[r], runs[r + world_size]]) for r in ranks
            ],
            "the later run is reversed: its tokens keep their order": [
                np.concatenate([runs[r], runs[-1 - r][::-1]]) for r in ranks
            ],
            "the later run comes first": [np.concatenate([runs[-1 - r], runs[r]]) for r in ranks],
            "neighbouring runs 2r and 2r + 1 are taken": [
                np.concatenate([runs[2 * r], runs[2 * r + 1]]) for r in ranks
            ],
        }
    return {text: [part.tolist() for part in parts] for text, parts in found.items()}


def work_suspects(seq_len: int, world_size: int, layout: str) -> dict[str, Any]:
    """Usual mistakes with the work, and what they come to."""
    want = work(seq_len, world_size, layout)
    n, ranks = seq_len // world_size, np.arange(world_size)
    steps_of_sources = want[ranks[:, None], (ranks[:, None] - ranks) % world_size]
    other_way = want[ranks[:, None], (-ranks) % world_size]
    diagonal = np.array([[len(np.intersect1d(*pair)) for pair in _shard_pairs(seq_len, world_size, layout, rank)]
                         for rank in range(world_size)])  # fmt: skip
    found = {
        "columns are the ranks that keys come from: column t is step t, in which they come from rank r − t": (
            steps_of_sources
        ),
        "keys come from rank r + t in step t: a ring that sends to r + 1 receives from r − 1": other_way,
        "rows are steps and columns ranks: it is the other way round": want.T,
        "a query does not see the key at its own position": want - diagonal,
        "a tile that is partly hidden is counted whole": np.where(want > 0, n * n, 0),
        "nothing is hidden": np.full_like(want, n * n),
    }
    for other in LAYOUTS:
        if other != layout and seq_len % (2 * world_size) == 0:
            found[f"the layout is {other!r}, asked for was {layout!r}"] = work(seq_len, world_size, other)
    return {text: value.tolist() for text, value in found.items()}


def _shard_pairs(seq_len: int, world_size: int, layout: str, rank: int) -> list[tuple[npt.NDArray, npt.NDArray]]:
    places = positions(seq_len, world_size, layout)
    return [(places[rank], places[(rank - step) % world_size]) for step in range(world_size)]
