"""The sum of the last block takes the place of the sum so far.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_worked_example
Says: l keeps only the last block
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
