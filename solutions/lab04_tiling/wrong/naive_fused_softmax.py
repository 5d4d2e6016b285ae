"""Whole rows of S stay in SRAM until they are weights.

Task: naive_traffic
Killed by: TestNaiveTraffic::test_bytes
Says: S never went to HBM
"""

import numpy as np


def naive_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    P = machine.allocate((N_q, N_k), Q.dtype)
    O = machine.allocate((N_q, d_v), Q.dtype)
    for i in range(0, N_q, block_q):
        Q_tile = machine.load(Q, np.s_[i : i + block_q])
        parts = [Q_tile @ machine.load(K, np.s_[j : j + block_k]).T for j in range(0, N_k, block_k)]
        rows = np.concatenate(parts, axis=1)
        rows *= d**-0.5
        rows -= rows.max(axis=1, keepdims=True)
        np.exp(rows, out=rows)
        rows /= rows.sum(axis=1, keepdims=True)
        machine.store(P, np.s_[i : i + block_q], rows)
        del Q_tile, rows, parts
    for i in range(0, N_q, block_q):
        o = machine.new((min(block_q, N_q - i), d_v), 0, Q.dtype)
        for j in range(0, N_k, block_k):
            tile = machine.load(P, np.s_[i : i + block_q, j : j + block_k])
            o += tile @ machine.load(V, np.s_[j : j + block_k])
            del tile
        machine.store(O, np.s_[i : i + block_q], o)
        del o
    return O
