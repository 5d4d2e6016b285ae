"""Copies of the blocks are joined before the softmax: offline, with room for several rows.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_memory_of_the_result
Says: the row is joined first
"""

import numpy as np


def online_softmax(x_blocks):
    blocks = [block.copy() for block in x_blocks]
    if not blocks:
        return np.zeros(0)
    x = np.concatenate(blocks, axis=-1)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
