"""A causal row of tiles may have more tiles than there are keys.

Task: count_tiles
Killed by: TestCountTiles::test_every_tile_with_an_entry
Killed by: TestCountTiles::test_random_sizes
"""


def count_tiles(N_q, N_k, block_q, block_k, causal=False):
    _check_blocks(block_q, block_k)
    n_q, n_k = -(-N_q // block_q), -(-N_k // block_k)
    if not causal:
        return n_q * n_k
    total = 0
    for row in range(n_q):
        last = min((row + 1) * block_q, N_q) - 1
        total += last // block_k + 1
    return total
