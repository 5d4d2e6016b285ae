"""One maximum serves all rows of a batch.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_rows_of_a_batch
Says: over all rows together
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, np.full(block.shape[:-1], block.max(initial=-np.inf), block.dtype))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
