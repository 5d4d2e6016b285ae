"""The weights are float64 whatever x is.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_precisions
Says: expected float32
"""

import numpy as np


def safe_softmax(x, axis=-1):
    x = np.asarray(x, dtype=np.float64)
    m = x.max(axis=axis, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
