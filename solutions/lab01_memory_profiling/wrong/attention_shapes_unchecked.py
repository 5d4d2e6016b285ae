"""Shapes that do not fit are left to matmul's own message.

Task: standard_attention
Killed by: TestStandardAttention::test_shapes_that_do_not_fit
Says: does not mention (5, 8), (6, 7)
"""

import numpy as np


def standard_attention(Q, K, V, mask=None):
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
    return weights @ V, weights
