"""Closed forms of the bytes that attention moves between HBM and SRAM, equal to what the simulated machine counts.

With T_q = ⌈N_q / block_q⌉ and T_k = ⌈N_k / block_k⌉, in elements:

    queries outside   loaded  N_q·d + T_q·N_k·(d + d_v)                        stored  N_q·d_v
    keys outside      loaded  N_k·(d + d_v) + T_k·N_q·d + (T_k − 1)·N_q·(d_v + 2)
                      stored  N_q·d_v + (T_k − 1)·N_q·(d_v + 2)
    naive             loaded  N_q·d + T_q·N_k·(d + d_v) + 2·N_q·N_k            stored  2·N_q·N_k + N_q·d_v

Queries outside is FlashAttention-2's order of the loops (Dao 2023, algorithm 1), keys outside FlashAttention-1's (Dao
et al. 2022, algorithm 1; here the first visit starts the state in SRAM and the last one stores the output alone).
Naive is algorithm 0 of Dao et al. 2022 with both products in tiles. Since block_q or block_k is about M / (c·d) for an
SRAM of M elements, both tiled orders move Θ(N²·d²/M), the paper's theorem 2.
"""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """Bytes moved between HBM and SRAM."""

    loaded: int
    stored: int

    @property
    def total(self) -> int:
        """Bytes moved both ways."""
        return self.loaded + self.stored


def queries_outside_traffic(
    n_queries: int, n_keys: int, d: int, d_v: int, block_q: int, block_k: int, dtype_bytes: int = 4
) -> Traffic:
    """Traffic in bytes of tiled attention with queries in the outer loop; block_k has no influence.

    Example: N = 8, d = d_v = 4, float32, blocks 4 × 2: 640 B loaded, 128 B stored.
    """
    loaded = n_queries * d + -(-n_queries // block_q) * n_keys * (d + d_v)
    return Traffic(loaded * dtype_bytes, n_queries * d_v * dtype_bytes)


def keys_outside_traffic(
    n_queries: int, n_keys: int, d: int, d_v: int, block_q: int, block_k: int, dtype_bytes: int = 4
) -> Traffic:
    """Traffic in bytes of tiled attention with keys in the outer loop; block_q has no influence. Needs n_keys ≥ 1.

    Example: N = 8, d = d_v = 4, float32, blocks 4 × 2: 1344 B loaded, 704 B stored.
    """
    rounds = -(-n_keys // block_k)
    state = (rounds - 1) * n_queries * (d_v + 2)
    loaded = n_keys * (d + d_v) + rounds * n_queries * d + state
    return Traffic(loaded * dtype_bytes, (n_queries * d_v + state) * dtype_bytes)


def naive_traffic(
    n_queries: int, n_keys: int, d: int, d_v: int, block_q: int, block_k: int, dtype_bytes: int = 4
) -> Traffic:
    """Traffic in bytes of attention with scores and weights in HBM; block_k has no influence.

    Example: N = 8, d = d_v = 4, float32, blocks 4 × 2: 1152 B loaded, 640 B stored.
    """
    matrix = n_queries * n_keys
    loaded = n_queries * d + -(-n_queries // block_q) * n_keys * (d + d_v) + 2 * matrix
    return Traffic(loaded * dtype_bytes, (2 * matrix + n_queries * d_v) * dtype_bytes)
