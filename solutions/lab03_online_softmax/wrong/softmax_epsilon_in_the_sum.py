"""A small number is added to the sum against 0/0.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_precisions
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max(axis=axis, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / (l + x.dtype.type(1e-6))
