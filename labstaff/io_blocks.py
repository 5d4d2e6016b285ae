"""Blocks that fill an SRAM, and the size from which tiling pays.

For the chapters' figures and the course's own tests. Students choose such blocks themselves, so that nothing they carry
may hold them.
"""

from __future__ import annotations

from labkit.testing.tiles.io_formulas import keys_outside_traffic, naive_traffic, queries_outside_traffic


def queries_outside_blocks(sram_bytes: int, d: int, dtype_bytes: int = 4) -> tuple[int, int]:
    """The largest block_q, with a few keys, of tiled attention with queries outside: (block_q, block_k), d_v = d.

    Alive at once: Q, output and product (block_q × d each), weights (block_q × block_k), V (block_k × d) and three
    columns of block_q. Raises ValueError when not even 1 × 1 fits.
    """
    capacity = sram_bytes // dtype_bytes
    block_k = _few(capacity, d)
    return _fitting(capacity - block_k * d, 3 * d + block_k + 3, sram_bytes, d), block_k


def keys_outside_blocks(sram_bytes: int, d: int, dtype_bytes: int = 4) -> tuple[int, int]:
    """The largest block_k, with a few queries, of tiled attention with keys outside: (block_q, block_k), d_v = d.

    Alive at once: K and V (block_k × d each), weights (block_q × block_k), and Q, output and product (block_q × d
    each) with three columns of block_q. Raises ValueError when not even 1 × 1 fits.
    """
    capacity = sram_bytes // dtype_bytes
    block_q = _few(capacity, 3 * d)
    return block_q, _fitting(capacity - block_q * (3 * d + 3), 2 * d + block_q, sram_bytes, d)


def naive_blocks(sram_bytes: int, d: int, dtype_bytes: int = 4) -> tuple[int, int]:
    """The largest block_q, with a few keys, of naive attention: (block_q, block_k), d_v = d.

    Alive at once in its second product: output and product (block_q × d each), weights (block_q × block_k) and V
    (block_k × d); its first product needs less. Raises ValueError when not even 1 × 1 fits.
    """
    capacity = sram_bytes // dtype_bytes
    block_k = _few(capacity, d)
    return _fitting(capacity - block_k * d, 2 * d + block_k, sram_bytes, d), block_k


def crossover_bytes(n: int, d: int, dtype_bytes: int = 4, keys_outside: bool = False) -> int:
    """The SRAM in bytes from which tiled attention moves fewer bytes than naive, each with this module's blocks.

    In elements between d²/2 and d² for d ≥ 64, whatever N is: below it the tiles are so small that reading K and V
    again and again costs more than the score matrix would. `n` is N_q = N_k, many times d; d_v = d.

    Example: n = 4096, d = 64, float32: 10,880 B with queries outside, 9552 B with keys outside.
    """
    if keys_outside:
        form, blocks = keys_outside_traffic, keys_outside_blocks
    else:
        form, blocks = queries_outside_traffic, queries_outside_blocks
    smallest, certainly_less = 5 * d + 4, 4 * d * d + 64 * d
    for capacity in range(certainly_less, smallest - 1, -1):
        sram_bytes = capacity * dtype_bytes
        tiled = form(n, n, d, d, *blocks(sram_bytes, d, dtype_bytes), dtype_bytes)
        naive = naive_traffic(n, n, d, d, *naive_blocks(sram_bytes, d, dtype_bytes), dtype_bytes)
        if tiled.total >= naive.total:
            return sram_bytes + dtype_bytes
    return smallest * dtype_bytes


def _few(capacity: int, per_row: int) -> int:
    """Rows of the block that does not decide the traffic: an eighth of SRAM, at most 16."""
    return min(max(1, capacity // (8 * per_row)), 16)


def _fitting(elements: int, per_row: int, sram_bytes: int, d: int) -> int:
    if elements < per_row:
        raise ValueError(f"an SRAM of {sram_bytes} B is too small for d={d}: not even blocks of 1 × 1 fit")
    return elements // per_row
