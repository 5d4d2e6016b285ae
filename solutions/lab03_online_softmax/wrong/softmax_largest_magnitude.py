"""The largest magnitude is taken off in place of the maximum.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_large_logits
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = np.where(np.isneginf(x), 0, np.abs(x)).max(axis=axis, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
