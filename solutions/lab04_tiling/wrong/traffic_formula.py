"""Attention is computed outside, and the formula's bytes are claimed.

Task: tiled_traffic
Killed by: TestTiledTraffic::test_output
Killed by: TestTiledTraffic::test_bytes_are_those_of_the_order_of_the_loops
Says: expected what machine.allocate returned
"""

import numpy as np


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    elements = N_q * d + -(-N_q // block_q) * N_k * (d + d_v)
    machine._ledger.loaded += elements * Q.dtype.itemsize
    machine._ledger.stored += N_q * d_v * Q.dtype.itemsize
    return tiled_attention(np.asarray(Q), np.asarray(K), np.asarray(V), block_q, block_k)
