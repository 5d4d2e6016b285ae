"""The weights are returned first.

Task: standard_attention
Killed by: TestStandardAttention::test_values_of_another_width
Says: the weights came first
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
    top = scores.max(axis=-1, keepdims=True)
    top[np.isneginf(top)] = 0
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    weights = weights / total
    return weights, weights @ V
