"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import numpy as np


def attention_standard_inside(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    N_q, N_k = Q.shape[-2], K.shape[-2]
    if N_k == 0:
        return np.zeros((*batch, N_q, V.shape[-1]), Q.dtype)
    precise = np.result_type(Q, np.float32)
    S = (Q.astype(precise) * Q.shape[-1] ** -0.5) @ K.astype(precise).swapaxes(-1, -2)
    if causal:
        S[..., ~np.tri(N_q, N_k, dtype=bool)] = -np.inf
    if mask is not None:
        S = np.where(mask, -np.inf, S)
    m = S.max(axis=-1, keepdims=True)
    S -= np.where(m == -np.inf, 0, m)
    np.exp(S, out=S)
    l = S.sum(axis=-1, keepdims=True)
    return (S @ V.astype(precise) / np.where(l == 0, 1, l)).astype(Q.dtype)


def traffic_formula(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    for i in range(0, Q.shape[0], block_q):
        machine.load(Q, np.s_[i : i + block_q])
        for j in range(0, K.shape[0], block_k):
            machine.load(K, np.s_[j : j + block_k])
            machine.load(V, np.s_[j : j + block_k])
    return tiled_attention(np.asarray(Q), np.asarray(K), np.asarray(V), block_q, block_k)


def naive_fused_softmax(machine, Q, K, V, block_q, block_k):
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


def exponents_of_the_theorem(Ns, ds, sram_sizes):
    for name, values in (("Ns", Ns), ("ds", ds), ("sram_sizes", sram_sizes)):
        if len(set(values)) < 2:
            raise ValueError(f"{name} needs two different values, got {list(values)}")
    return {"N": 2.0, "d": 2.0, "M": -1.0}
