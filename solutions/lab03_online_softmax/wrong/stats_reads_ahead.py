"""The next block is asked for before the present one is used.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_blocks_that_pass
Says: after the next one was asked for
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    blocks = iter(x_blocks)
    following = next(blocks, None)
    while following is not None:
        block, following = following, next(blocks, None)
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    return np.asarray(m, dtype), np.asarray(l, dtype)
