"""A masked block at the start gives −inf − (−inf), which is NaN for good.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_whole_block_masked
Killed by: TestOnlineSoftmaxStats::test_everything_masked
Says: NaN
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = m_new
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
