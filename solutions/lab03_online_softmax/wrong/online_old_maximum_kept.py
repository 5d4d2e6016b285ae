"""A block keeps the maximum that was known when it came.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_worked_example
Killed by: TestOnlineSoftmax::test_maximum_moves_at_every_block
Says: each block keeps the maximum known at its time
"""

import numpy as np


def online_softmax(x_blocks):
    m, l, dtype, pieces = -np.inf, 0.0, None, []
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        pieces.append(np.exp(block - shift[..., None]))
        l = l * np.exp(m - shift) + pieces[-1].sum(axis=-1)
        m = m_new
    if not pieces:
        return np.zeros(0)
    for piece in pieces:
        piece *= (1 / np.where(l == 0, 1, l))[..., None].astype(dtype)
    return np.concatenate(pieces, axis=-1)
