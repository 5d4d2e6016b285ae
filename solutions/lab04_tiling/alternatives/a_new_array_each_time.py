"""One head after the other, a new array for every operation, square blocks for a loop that is wasteful with SRAM."""

import numpy as np


def tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    Q, K, V = (np.broadcast_to(array, batch + array.shape[-2:]) for array in (Q, K, V))
    O = np.zeros((*batch, Q.shape[-2], V.shape[-1]), Q.dtype)
    for head in np.ndindex(batch):
        for i in range(0, Q.shape[-2], block_q):
            O[head][i : i + block_q] = _rows(
                Q[head][i : i + block_q],
                K[head],
                V[head],
                block_k,
                np.arange(i, i + block_q) if causal else None,
                None if mask is None else mask[head][i : i + block_q],
            )
    return O


def _rows(Q_tile, K, V, block_k, positions, mask):
    m, l, o = np.array(-np.inf, Q_tile.dtype), np.array(0, Q_tile.dtype), np.zeros((1, V.shape[1]), Q_tile.dtype)
    for j in range(0, len(K), block_k):
        if positions is not None and j > positions[len(Q_tile) - 1]:
            break
        S = Q_tile @ K[j : j + block_k].T / Q_tile.dtype.type(Q_tile.shape[1] ** 0.5)
        if positions is not None:
            S[np.arange(j, j + S.shape[1]) > positions[: len(S), None]] = -np.inf
        if mask is not None:
            S[mask[:, j : j + block_k]] = -np.inf
        m_new = np.maximum(m, S.max(axis=1, keepdims=True))
        with np.errstate(invalid="ignore"):
            P = np.where(np.isneginf(S), S.dtype.type(0), np.exp(S - m_new))
            alpha = np.where(np.isneginf(m), S.dtype.type(0), np.exp(m - m_new))
        l = l * alpha + P.sum(axis=1, keepdims=True)
        o = o * alpha + P @ V[j : j + block_k]
        m = m_new
    return np.divide(o, l, where=l > 0, out=np.zeros_like(o))


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    (N_q, d), (N_k, d_v) = Q.shape, V.shape
    O = machine.allocate((N_q, d_v), Q.dtype)
    for i in range(0, N_q, block_q):
        Q_tile = machine.load(Q, np.s_[i : i + block_q]) * d**-0.5
        m = machine.new((len(Q_tile), 1), -np.inf, Q.dtype)
        l = machine.new((len(Q_tile), 1), 0, Q.dtype)
        o = machine.new((len(Q_tile), d_v), 0, Q.dtype)
        for j in range(0, N_k, block_k):
            K_tile = machine.load(K, np.s_[j : j + block_k])
            V_tile = machine.load(V, np.s_[j : j + block_k])
            S = Q_tile @ K_tile.T
            m_new = np.maximum(m, S.max(axis=1, keepdims=True))
            P = np.exp(S - m_new)
            alpha = np.exp(m - m_new)
            l = l * alpha + P.sum(axis=1, keepdims=True)
            o = o * alpha + P @ V_tile
            m = m_new
            del K_tile, V_tile, S, P
        machine.store(O, np.s_[i : i + block_q], o / l)
        del Q_tile, o
    return O


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_q = block_k = 0
    while _need(block_q + 1, 1, d) <= capacity:
        block_q += 1
    block_q = int(0.8 * block_q) or block_q
    while block_q and block_k < block_q and _need(block_q, block_k + 1, d) <= capacity:
        block_k += 1
    if not block_k:
        raise ValueError(f"sram_bytes = {sram_bytes}: too little for one query and one key with d = {d}")
    return block_q, block_k


def _need(block_q, block_k, d):
    """Q, and of the output the old, the rescaled, the product and the new; K and V; S, S - m and P; four columns."""
    return 5 * block_q * d + 2 * block_k * d + 3 * block_q * block_k + 6 * block_q
