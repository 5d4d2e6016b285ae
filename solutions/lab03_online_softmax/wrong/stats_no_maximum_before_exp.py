"""exp is summed as it is, and divided by exp(m) at the end.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_large_logits
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, total, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        total = total + np.exp(block).sum(axis=-1)
    l = total * np.exp(-np.where(m == -np.inf, 0, m))
    return np.asarray(m, dtype), np.asarray(l, dtype)
