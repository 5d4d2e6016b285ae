"""The scores and exponentials of all keys are kept although only the sums are needed.

Task: online_attention
Killed by: TestOnlineAttention::test_memory_of_a_few_blocks
Says: all their scores
"""

import numpy as np


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.shape[-1] ** -0.5 if scale is None else scale
    q = Q_row * Q_row.dtype.type(scale)
    kept_scores = []
    m, l, o = -np.inf, 0.0, None
    for K, V in zip(K_blocks, V_blocks, strict=True):
        if K.shape[-1] != q.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
        s = np.einsum("...d,...nd->...n", q, K)
        m_new = np.maximum(m, s.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        p = np.exp(s - shift[..., None])
        kept = np.exp(m - shift)
        l = l * kept + p.sum(axis=-1)
        add = np.einsum("...n,...nv->...v", p, V)
        o = add if o is None else o * kept[..., None] + add
        m = m_new
        kept_scores.append(s)
    if o is None:
        raise ValueError("there is no block")
    return (o / np.where(l == 0, 1, l)[..., None]).astype(Q_row.dtype)
