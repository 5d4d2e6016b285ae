"""The result is a float.

Task: count_tiles
Killed by: TestCountTiles::test_result_is_an_int
Says: expected an int
"""

import numpy as np


def count_tiles(N_q, N_k, block_q, block_k, causal=False):
    _check_blocks(block_q, block_k)
    n_q, n_k = np.ceil(N_q / block_q), np.ceil(N_k / block_k)
    if not causal:
        return n_q * n_k
    total = 0
    for row in range(int(n_q)):
        last = min((row + 1) * block_q, N_q) - 1
        total += min(last // block_k + 1, n_k)
    return total
