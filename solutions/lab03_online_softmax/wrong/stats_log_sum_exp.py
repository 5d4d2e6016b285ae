"""m is the log-sum-exp and l is 1: another state than the one asked for.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_worked_example
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    with np.errstate(divide="ignore"):
        m = np.where(l > 0, m + np.log(l), -np.inf)
    l = np.where(l > 0, 1, 0)
    return np.asarray(m, dtype), np.asarray(l, dtype)
