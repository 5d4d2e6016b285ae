"""The maximum of the whole array is taken off, not each row's own.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_rows_far_apart
Says: one maximum or one sum serves all rows together
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max()
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
