"""A row of −inf throughout gives NaN.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_row_masked_throughout
Killed by: TestSafeSoftmax::test_everything_masked
Says: such a row gives 0
"""

import numpy as np


def safe_softmax(x, axis=-1):
    p = np.exp(x - x.max(axis=axis, keepdims=True))
    return p / p.sum(axis=axis, keepdims=True)
