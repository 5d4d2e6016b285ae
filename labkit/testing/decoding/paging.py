"""Batches of sequences whose keys and values are laid out in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from labkit.testing.compare import assert_type, require
from labkit.testing.decoding.grouped import GroupedCase
from labkit.testing.unchanged import copied

FOREIGN = "the table is ignored, or −1 is used as an index: a block that no sequence owns was read"


class PagedBatch:
    """Sequences of different lengths, their keys and values scattered over blocks that a table names.

    Blocks that belong to nobody hold NaN, places behind a sequence's last token large numbers; the last block of all
    belongs to nobody. `cases` holds a GroupedCase for each sequence, with one query.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        lengths: Sequence[int],
        *,
        block_size: int,
        kv_heads: int = 2,
        group: int = 2,
        d: int = 8,
        d_v: int | None = None,
        dtype: torch.dtype = torch.float32,
        **sizes: Any,
    ) -> None:
        widths: dict[str, Any] = {"d": d, "d_v": d if d_v is None else d_v}
        heads: dict[str, Any] = {"kv_heads": kv_heads, "group": group, "n_queries": 1, "dtype": dtype}
        self.cases = [GroupedCase(rng, n_keys=n, **heads, **widths, **sizes) for n in lengths]
        per_sequence = [-(-n // block_size) for n in lengths]
        n_blocks = sum(per_sequence) + 3
        order = rng.permutation(n_blocks - 1)[: sum(per_sequence)].tolist()
        shape = (n_blocks, block_size, kv_heads)
        self.k_cache, self.v_cache = (torch.full((*shape, width), torch.nan, dtype=dtype) for width in widths.values())
        self.block_table = torch.full((len(lengths), max(per_sequence, default=0) + 1), -1)
        self.context_lens = torch.tensor(list(lengths))
        for row, (case, count) in enumerate(zip(self.cases, per_sequence, strict=True)):
            blocks, order = order[:count], order[count:]
            self.block_table[row, :count] = torch.tensor(blocks, dtype=torch.int64)
            for cache, x in ((self.k_cache, case.K), (self.v_cache, case.V)):
                for place, block in enumerate(blocks):
                    piece = x[:, place * block_size : (place + 1) * block_size].transpose(0, 1)
                    cache[block] = 100
                    cache[block, : len(piece)] = piece
        self.q = torch.stack([case.Q[:, 0] for case in self.cases])

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What the student is given: copies."""
        return copied(self.q, self.k_cache, self.v_cache, self.block_table, self.context_lens)

    def check(self, got: Any, hint: str = "", nan_hint: str = FOREIGN, empty_hint: str = "") -> None:
        """Compare an output with every sequence's own; `empty_hint` says why one without tokens may be NaN."""
        assert_type("o", got, torch.Tensor, "a tensor")
        want = (*self.q.shape[:-1], self.v_cache.shape[-1])
        require(tuple(got.shape) == want, f"o has shape {tuple(got.shape)}, expected {want}")
        for number, (case, o) in enumerate(zip(self.cases, got, strict=True)):
            n = case.K.shape[-2]
            try:
                case.check_results({"o": o[:, None]}, hint=hint, nan_hint=nan_hint if n else empty_hint)
            except AssertionError as error:
                error.args = (f"in sequence {number}, of {n} tokens, seen as (H_q, 1, d_v), {error}",)
                raise
