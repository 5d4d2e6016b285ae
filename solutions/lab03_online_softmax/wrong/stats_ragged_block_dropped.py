"""Blocks of another length than the first are left out.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_splits
Says: blocks of another length than the first are dropped
"""

import numpy as np


def online_softmax_stats(x_blocks):
    n = None
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        n = block.shape[-1] if n is None else n
        if block.shape[-1] != n:
            continue
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
