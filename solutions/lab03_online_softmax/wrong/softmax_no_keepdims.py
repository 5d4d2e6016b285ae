"""The maximum and the sum are not kept under their rows, which a square array hides.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_rows_of_a_batch
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max(axis=axis)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis)
    return p / np.where(l == 0, 1, l)
