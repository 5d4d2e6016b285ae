"""np.sqrt of an integer is a float64 and promotes the scores.

Task: standard_attention
Killed by: TestStandardAttention::test_dtype_is_kept
Says: NumPy 2 promotes
"""

import numpy as np


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q and K must have the same d: Q is {Q.shape}, K is {K.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K and V must have the same number of keys: K is {K.shape}, V is {V.shape}")
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, Q.dtype.type(-np.inf), scores)
    top = scores.max(axis=-1, keepdims=True)
    top[np.isneginf(top)] = 0
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    weights = weights / total
    return weights @ V, weights
