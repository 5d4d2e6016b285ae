"""Large numbers are clipped in place of being shifted.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_differences_survive
Killed by: TestSafeSoftmax::test_large_logits_of_both_signs
"""

import numpy as np


def safe_softmax(x, axis=-1):
    p = np.where(np.isneginf(x), x.dtype.type(0), np.exp(np.clip(x, -10, 10)))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
