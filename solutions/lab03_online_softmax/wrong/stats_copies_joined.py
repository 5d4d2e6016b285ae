"""Copies of all blocks are collected and joined.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_memory_of_a_few_blocks
Says: blocks or their copies are kept
"""

import numpy as np


def online_softmax_stats(x_blocks):
    blocks = [block.copy() for block in x_blocks]
    if not blocks:
        return np.float64(-np.inf), np.float64(0)

    x = np.concatenate(blocks, axis=-1)
    m = x.max(axis=-1, initial=-np.inf)
    return m, np.exp(x - np.where(m == -np.inf, 0, m)[..., None]).sum(axis=-1)
