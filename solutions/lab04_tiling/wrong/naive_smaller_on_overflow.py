"""When the tiles do not fit, smaller ones are taken in silence.

Task: naive_traffic
Killed by: TestNaiveTraffic::test_blocks_too_large_overflow
Says: no SRAMOverflow
"""

import numpy as np

from labkit.simulated_memory import SRAMOverflow


def naive_traffic(machine, Q, K, V, block_q, block_k):
    while True:
        try:
            return _run(machine, Q, K, V, block_q, block_k)
        except SRAMOverflow:
            block_q, block_k = max(1, block_q // 2), max(1, block_k // 2)


def _run(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    S, P = (machine.allocate((N_q, N_k), Q.dtype) for _ in "SP")
    O = machine.allocate((N_q, d_v), Q.dtype)
    for i in range(0, N_q, block_q):
        Q_tile = machine.load(Q, np.s_[i : i + block_q])
        for j in range(0, N_k, block_k):
            tile = Q_tile @ machine.load(K, np.s_[j : j + block_k]).T
            tile *= d**-0.5
            machine.store(S, np.s_[i : i + block_q, j : j + block_k], tile)
        del Q_tile, tile
    for i in range(N_q):
        row = machine.load(S, i)
        row -= row.max()
        np.exp(row, out=row)
        row /= row.sum()
        machine.store(P, i, row)
        del row
    for i in range(0, N_q, block_q):
        o = machine.new((min(block_q, N_q - i), d_v), 0, Q.dtype)
        for j in range(0, N_k, block_k):
            tile = machine.load(P, np.s_[i : i + block_q, j : j + block_k])
            o += tile @ machine.load(V, np.s_[j : j + block_k])
            del tile
        machine.store(O, np.s_[i : i + block_q], o)
        del o
    return O
