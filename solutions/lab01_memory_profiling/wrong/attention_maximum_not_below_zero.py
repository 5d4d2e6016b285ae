"""The maximum taken away is never less than 0.

Task: standard_attention
Killed by: TestStandardAttention::test_very_negative_logits
Says: a row may lie below 0 throughout
"""

import numpy as np


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q and K must have the same d: Q is {Q.shape}, K is {K.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K and V must have the same number of keys: K is {K.shape}, V is {V.shape}")
    scale = Q.dtype.type(Q.shape[-1] ** -0.5)
    scores = Q @ np.swapaxes(K, -1, -2) * scale
    if mask is not None:
        scores = np.where(mask, Q.dtype.type(-np.inf), scores)
    top = np.maximum(scores.max(axis=-1, keepdims=True), 0)
    top[np.isneginf(top)] = 0
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    weights = weights / total
    return weights @ V, weights
