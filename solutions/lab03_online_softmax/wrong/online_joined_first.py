"""The blocks are collected and joined, and only then looked at.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_blocks_that_pass
Says: after the next one was asked for
"""

import numpy as np


def online_softmax(x_blocks):
    blocks = list(x_blocks)
    if not blocks:
        return np.zeros(0)
    x = np.concatenate(blocks, axis=-1)
    return _softmax(x)


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
