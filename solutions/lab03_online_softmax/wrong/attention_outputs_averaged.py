"""The blocks' outputs are averaged with equal weight.

Task: online_attention
Killed by: TestOnlineAttention::test_splits
Says: averaged
"""

import numpy as np


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale)
    outputs = []
    for K, V in zip(K_blocks, V_blocks, strict=True):
        if K.shape[-1] != Q_row.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
        s = scale * np.einsum("...d,...nd->...n", Q_row, K)
        weights = _softmax(s) if s.size else s
        outputs.append(np.einsum("...n,...nv->...v", weights, V))
    if not outputs:
        raise ValueError("there is no block")
    return (sum(outputs) / len(outputs)).astype(Q_row.dtype)


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
