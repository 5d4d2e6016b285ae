"""−inf is replaced by −10000, which is not small beside large logits.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_everything_masked
Killed by: TestSafeSoftmax::test_masked_entries_beside_very_negative_ones
"""

import numpy as np


def safe_softmax(x, axis=-1):
    x = np.maximum(x, x.dtype.type(-10_000))
    m = x.max(axis=axis, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
