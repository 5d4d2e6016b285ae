"""causal makes no difference.

Task: count_tiles
Killed by: TestCountTiles::test_worked_example
Says: causal is ignored
"""


def count_tiles(N_q, N_k, block_q, block_k, causal=False):
    _check_blocks(block_q, block_k)
    n_q, n_k = -(-N_q // block_q), -(-N_k // block_k)
    return n_q * n_k
