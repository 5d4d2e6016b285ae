"""The weights of all rows together add up to 1.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_rows_of_a_batch
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max(axis=axis, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum()
    return p / np.where(l == 0, 1, l)
