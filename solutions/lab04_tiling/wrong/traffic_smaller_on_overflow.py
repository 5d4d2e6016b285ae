"""When the tiles do not fit, smaller ones are taken in silence.

Task: tiled_traffic
Killed by: TestTiledTraffic::test_blocks_too_large_overflow
Says: no SRAMOverflow
"""

import numpy as np

from labkit.simulated_memory import SRAMOverflow


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    while True:
        try:
            return _run(machine, Q, K, V, block_q, block_k)
        except SRAMOverflow:
            block_q, block_k = max(1, block_q // 2), max(1, block_k // 2)


def _run(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    O = machine.allocate((N_q, d_v), Q.dtype)
    for i in range(0, N_q, block_q):
        rows = np.s_[i : i + block_q]
        Q_tile = machine.load(Q, rows)
        n_rows = len(Q_tile)
        m = machine.new((n_rows, 1), -np.inf, Q.dtype)
        l = machine.new((n_rows, 1), 0, Q.dtype)
        o = machine.new((n_rows, d_v), 0, Q.dtype)
        for j in range(0, N_k, block_k):
            cols = np.s_[j : j + block_k]
            S = Q_tile @ machine.load(K, cols).T
            S *= d**-0.5
            m_new = np.maximum(m, S.max(axis=1, keepdims=True))
            alpha = np.exp(m - m_new)
            P = np.exp(S - m_new)
            l = l * alpha + P.sum(axis=1, keepdims=True)
            o *= alpha
            o += P @ machine.load(V, cols)
            m = m_new
            del S, P, alpha, m_new
        machine.store(O, rows, o / l)
        del Q_tile, m, l, o
    return O
