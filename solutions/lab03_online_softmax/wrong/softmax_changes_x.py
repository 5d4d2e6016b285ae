"""The maximum is taken off in place, so that the caller's array changes.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_argument_is_left_alone
Says: was changed in place
"""

import numpy as np


def safe_softmax(x, axis=-1):
    m = x.max(axis=axis, keepdims=True)
    x -= np.where(np.isneginf(m), 0, m)
    p = np.exp(x)
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
