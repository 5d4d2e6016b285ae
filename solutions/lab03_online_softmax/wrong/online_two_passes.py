"""The statistics take the whole generator, and nothing is left for the weights.

Task: online_softmax
Killed by: TestOnlineSoftmax::test_blocks_that_pass
Says: gone through twice
"""

import numpy as np


def online_softmax(x_blocks):
    m, l = -np.inf, 0.0
    for block in x_blocks:
        m_new = np.maximum(m, block.max(axis=-1, initial=-np.inf))
        shift = np.where(m_new == -np.inf, 0, m_new)
        l = l * np.exp(m - shift) + np.exp(block - shift[..., None]).sum(axis=-1)
        m = m_new
    shift, l = np.where(m == -np.inf, 0, m)[..., None], np.where(l == 0, 1, l)[..., None]
    pieces = [np.exp(block - shift) / l for block in x_blocks]
    return np.concatenate(pieces, axis=-1) if pieces else np.zeros(0)
