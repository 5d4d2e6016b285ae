"""The tiles that tiled attention visits, found by looking at every entry."""

from __future__ import annotations

import numpy as np


def tiles_with_an_entry(N_q: int, N_k: int, block_q: int, block_k: int, causal: bool) -> set[tuple[int, int]]:
    """Row and column of each tile of which at least one entry counts."""
    entries = np.ones((N_q, N_k), bool)
    i, j = np.nonzero(np.tril(entries) if causal else entries)
    return set(zip((i // block_q).tolist(), (j // block_k).tolist(), strict=True))
