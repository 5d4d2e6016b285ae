"""All keys are gone through for their scores before the first value is asked for.

Task: online_attention
Killed by: TestOnlineAttention::test_keys_and_values_side_by_side
Says: before the first value
"""

import numpy as np


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale)
    scores = []
    for K in K_blocks:
        if K.shape[-1] != Q_row.shape[-1]:
            raise ValueError(f"d differs: {Q_row.shape} {K.shape}")
        scores.append((scale * np.einsum("...d,...nd->...n", Q_row, K), K.shape))
    if not scores:
        raise ValueError("there is no block")
    weights = _softmax(np.concatenate([s for s, _ in scores], axis=-1))
    start, o = 0, 0
    for (s, shape), V in zip(scores, V_blocks, strict=True):
        if s.shape[-1] != V.shape[-2]:
            raise ValueError(f"lengths differ: {shape} {V.shape}")
        o = o + np.einsum("...n,...nv->...v", weights[..., start : start + s.shape[-1]], V)
        start += s.shape[-1]
    return o


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
