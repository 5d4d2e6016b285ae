"""The blocks are gone through twice, which a generator does not allow.

Task: online_softmax_stats
Killed by: TestOnlineSoftmaxStats::test_blocks_that_pass
Says: the second time a generator gives nothing
"""

import numpy as np


def online_softmax_stats(x_blocks):
    m = -np.inf
    for block in x_blocks:
        m = np.maximum(m, block.max(axis=-1, initial=-np.inf))
    l = np.zeros_like(m)
    for block in x_blocks:
        l = l + np.exp(block - np.where(m == -np.inf, 0, m)[..., None]).sum(axis=-1)
    return m, l
