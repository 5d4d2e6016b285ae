"""Each block is a softmax of its own.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_worked_example
Says: each block is a softmax of its own
"""

import numpy as np


def online_softmax(x_blocks):
    pieces = [_softmax(block) if block.size else block for block in x_blocks]
    return np.concatenate(pieces, axis=-1) if pieces else np.zeros(0)


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
