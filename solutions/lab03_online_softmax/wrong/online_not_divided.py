"""The weights are not divided by the sum.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_worked_example
Says: the weights are not divided by l
"""

import numpy as np


def online_softmax(x_blocks):
    m, l, dtype, pieces, peaks = -np.inf, 0.0, None, [], []
    for block in x_blocks:
        dtype = block.dtype
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        pieces.append(np.exp(block - shift[..., None]))
        l = l * np.exp(m - shift) + pieces[-1].sum(axis=-1)
        m = m_new
        peaks.append(shift)
    if not pieces:
        return np.zeros(0)
    for piece, peak in zip(pieces, peaks, strict=True):
        piece *= (np.exp(np.where(peak > shift, -np.inf, peak - shift)))[..., None].astype(dtype)
    return np.concatenate(pieces, axis=-1)
