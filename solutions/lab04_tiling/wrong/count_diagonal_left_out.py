"""Only tiles that lie below the diagonal as a whole are counted.

Task: count_tiles
Killed by: TestCountTiles::test_every_tile_with_an_entry
Says: diagonal crosses are left out
"""


def count_tiles(N_q, N_k, block_q, block_k, causal=False):
    _check_blocks(block_q, block_k)
    n_q, n_k = -(-N_q // block_q), -(-N_k // block_k)
    if not causal:
        return n_q * n_k
    total = 0
    for row in range(n_q):
        total += sum(min((c + 1) * block_k, N_k) - 1 <= row * block_q for c in range(n_k))
    return total
