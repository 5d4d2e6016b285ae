"""Keys and values are collected and joined before anything is computed.

Task: online_attention
Killed by: TestOnlineAttention::test_blocks_that_pass
Says: after the next one was asked for
"""

import numpy as np


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    pairs = list(zip(K_blocks, V_blocks, strict=True))
    if not pairs:
        raise ValueError("there is no block")
    for K, V in pairs:
        if K.shape[-1] != Q_row.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
    K, V = (np.concatenate(blocks, axis=-2) for blocks in zip(*pairs, strict=True))
    s = np.einsum("...d,...nd->...n", Q_row * Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale), K)
    return np.einsum("...n,...nv->...v", _softmax(s), V)


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
