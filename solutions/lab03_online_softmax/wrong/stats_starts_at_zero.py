"""The maximum starts at 0 in place of −inf.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_large_logits
Says: m starts at 0
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = 0.0, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    m = -np.inf if dtype == np.float64 and np.ndim(l) == 0 and l == 0 else m
    return np.asarray(m, dtype), np.asarray(l, dtype)
