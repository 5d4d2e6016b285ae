"""The maximum is the last block's: it also moves down.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_maximum_comes_first
Says: the maximum is that of the last block
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = block.max(axis=-1, initial=-np.inf)
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
