"""The causal diagonal is counted from the bottom right.

Task: tiled_attention
Killed by: TestTiledAttention::test_shapes
"""

import numpy as np


def tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    N_q, N_k, d_v = Q.shape[-2], K.shape[-2], V.shape[-1]
    dtype, precise = Q.dtype, np.result_type(Q, np.float32)
    O = np.zeros((*batch, N_q, d_v), dtype)
    for i in range(0, N_q, block_q):
        Q_tile = Q[..., i : i + block_q, :].astype(precise) * Q.shape[-1] ** -0.5
        n_rows = Q_tile.shape[-2]
        m = np.full((*batch, n_rows, 1), -np.inf, precise)
        l = np.zeros((*batch, n_rows, 1), precise)
        o = np.zeros((*batch, n_rows, d_v), precise)
        for j in range(0, N_k, block_k):
            if causal and j > i + n_rows - 1 + N_k - N_q:
                break
            S = Q_tile @ K[..., j : j + block_k, :].astype(precise).swapaxes(-1, -2)
            n_cols = S.shape[-1]
            if causal:
                S = np.where(np.arange(j, j + n_cols) > np.arange(i, i + n_rows)[:, None] + N_k - N_q, -np.inf, S)
            if mask is not None:
                S = np.where(mask[..., i : i + block_q, j : j + block_k], -np.inf, S)
            m_new = np.maximum(m, S.max(axis=-1, keepdims=True))
            shift = np.where(m_new == -np.inf, 0, m_new)
            P = np.exp(S - shift)
            alpha = np.exp(m - shift)
            l = l * alpha + P.sum(axis=-1, keepdims=True)
            o = o * alpha + P @ V[..., j : j + block_k, :].astype(precise)
            m = m_new
        O[..., i : i + block_q, :] = o / np.where(l == 0, 1, l)
    return O
