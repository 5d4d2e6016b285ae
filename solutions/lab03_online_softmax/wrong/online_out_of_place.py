"""The pieces are scaled out of place, so that three rows are alive at once.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_memory_of_the_result
Says: scaled out of place
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
    factors = [
        (np.exp(np.where(peak > shift, -np.inf, peak - shift)) / np.where(l == 0, 1, l))[..., None].astype(dtype)
        for peak in peaks
    ]
    scaled = [piece * factor for piece, factor in zip(pieces, factors, strict=True)]
    return np.concatenate(scaled, axis=-1)
