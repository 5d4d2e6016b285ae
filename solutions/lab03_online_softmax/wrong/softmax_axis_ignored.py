"""The softmax always runs along the last axis.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_other_axes
Says: add up to 1 along axis
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max(axis=-1, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)
