"""exp is taken of the numbers as they are.

Task: safe_softmax
Killed by: TestSafeSoftmax::test_large_logits
Killed by: TestSafeSoftmax::test_worked_example
Says: take the
"""

import numpy as np


def safe_softmax(x, axis=-1):
    p = np.exp(x)
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l)
