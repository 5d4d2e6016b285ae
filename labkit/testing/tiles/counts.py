"""How many tiles tiled attention visits, found by looking at every entry, and what usual mistakes count."""

from __future__ import annotations

import numpy as np


def tiles_with_an_entry(N_q: int, N_k: int, block_q: int, block_k: int, causal: bool) -> set[tuple[int, int]]:
    """Row and column of each tile of which at least one entry counts."""
    entries = np.ones((N_q, N_k), bool)
    i, j = np.nonzero(np.tril(entries) if causal else entries)
    return set(zip((i // block_q).tolist(), (j // block_k).tolist(), strict=True))


def count_suspects(N_q: int, N_k: int, block_q: int, block_k: int, causal: bool) -> dict[str, int]:
    """Usual mistakes in counting them, and the number that each comes to."""
    n_q, n_k = -(-N_q // block_q), -(-N_k // block_k)
    square = max(block_q, block_k)
    usual = {
        "last, smaller tiles are left out: round up": (N_q // block_q) * (N_k // block_k),
        "block_q and block_k are swapped": len(tiles_with_an_entry(N_q, N_k, block_k, block_q, causal)),
    }
    if causal:
        usual = {
            "causal is ignored": n_q * n_k,
            "tile (I, J) is taken when J ≤ I, which is right for square tiles only": sum(
                min(i + 1, n_k) for i in range(n_q)
            ),
            "the first query of a tile decides, but its last one sees the most": sum(
                c * block_k <= r * block_q for r in range(n_q) for c in range(n_k)
            ),
            "tiles that the diagonal crosses are left out": sum(
                min((c + 1) * block_k, N_k) - 1 <= r * block_q for r in range(n_q) for c in range(n_k)
            ),
            "entries on the diagonal itself are taken for hidden": sum(
                c * block_k < min((r + 1) * block_q, N_q) - 1 for r in range(n_q) for c in range(n_k)
            ),
            "the last block of queries is taken for a full one": sum(
                c * block_k < (r + 1) * block_q for r in range(n_q) for c in range(n_k)
            ),
            "the diagonal is counted from the bottom right": sum(
                c * block_k <= min((r + 1) * block_q, N_q) - 1 + N_k - N_q for r in range(n_q) for c in range(n_k)
            ),
            "half of all tiles are taken": n_q * n_k // 2,
            "the larger block size is used both ways": len(tiles_with_an_entry(N_q, N_k, square, square, True)),
        } | usual
    return usual
