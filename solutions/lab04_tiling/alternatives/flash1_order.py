"""FlashAttention-1's order of the loops: keys and values outside, each loaded once, the state of every query kept."""

import numpy as np


def tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    N_q, N_k, d_v = Q.shape[-2], K.shape[-2], V.shape[-1]
    dtype = np.result_type(Q, K, V, np.float16)
    precise = np.result_type(dtype, np.float32)
    m = np.full((*batch, N_q, 1), -np.inf, precise)
    l = np.zeros((*batch, N_q, 1), precise)
    O = np.zeros((*batch, N_q, d_v), precise)
    for cols in _blocks(N_k, block_k):
        K_tile = (K[..., cols, :].astype(precise) * Q.shape[-1] ** -0.5).swapaxes(-1, -2)
        V_tile = V[..., cols, :].astype(precise)
        for rows in _blocks(N_q, block_q):
            if causal and cols.start >= rows.stop:
                continue
            S = Q[..., rows, :].astype(precise) @ K_tile
            if causal:
                S = np.where(np.arange(N_k)[cols] > np.arange(N_q)[rows, None], -np.inf, S)
            if mask is not None:
                S = np.where(mask[..., rows, cols], -np.inf, S)
            m_new = np.maximum(m[..., rows, :], S.max(axis=-1, keepdims=True))
            shift = np.where(np.isneginf(m_new), 0, m_new)
            P = np.exp(S - shift)
            alpha = np.exp(m[..., rows, :] - shift)
            l[..., rows, :] = l[..., rows, :] * alpha + P.sum(axis=-1, keepdims=True)
            O[..., rows, :] = O[..., rows, :] * alpha + P @ V_tile
            m[..., rows, :] = m_new
    O /= np.where(l == 0, 1, l)
    return O.astype(dtype, copy=False)


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    N_q, N_k, d_v = Q.shape[0], K.shape[0], V.shape[1]
    state = tuple(machine.allocate((N_q, width), Q.dtype) for width in (1, 1, d_v))
    for cols in _blocks(N_k, block_k):
        _update_queries(machine, Q, K, V, state, cols, _blocks(N_q, block_q))
    return state[-1]


def _update_queries(machine, Q, K, V, state, cols, row_blocks):
    """One block of keys and values, against all queries in turn."""
    K_tile, V_tile = machine.load(K, cols), machine.load(V, cols)
    for rows in row_blocks:
        _update_tile(machine, Q, K_tile, V_tile, state, rows, first=cols.start == 0, last=cols.stop == K.shape[0])


def _update_tile(machine, Q, K_tile, V_tile, state, rows, first, last):
    Q_tile = machine.load(Q, rows)
    Q_tile *= Q.shape[1] ** -0.5
    if first:
        shapes = ((len(Q_tile), part.shape[1]) for part in state)
        m, l, O = (machine.new(shape, fill, Q.dtype) for shape, fill in zip(shapes, (-np.inf, 0, 0), strict=True))
    else:
        m, l, O = (machine.load(part, rows) for part in state)
    S = Q_tile @ K_tile.T
    m_new = np.maximum(m, S.max(axis=1, keepdims=True))
    alpha = _exp_of_difference(m, m_new)
    P = _exp_of_difference(S, m_new)
    l *= alpha
    l += P.sum(axis=1, keepdims=True)
    O *= alpha
    O += P @ V_tile
    if last:
        O /= l
        machine.store(state[2], rows, O)
    else:
        for part, tile in zip(state, (m_new, l, O), strict=True):
            machine.store(part, rows, tile)


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    # Here block_k decides the traffic, and K and V are in SRAM together while the queries are loaded in turn.
    capacity = sram_bytes // dtype_bytes
    block_q = min(max(1, capacity // (24 * d)), 16)
    block_k = (capacity - block_q * (3 * d + 3)) // (2 * d + block_q)
    if block_k < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}: 1 × 1 needs {(5 * d + 4) * dtype_bytes} B")
    return block_q, block_k
