"""A block of −inf ends the loop in place of changing nothing.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_whole_block_masked
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        if block.size and np.all(block == -np.inf):
            m = np.full(block.shape[:-1], m)
            l = np.full(block.shape[:-1], l)
            break
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
