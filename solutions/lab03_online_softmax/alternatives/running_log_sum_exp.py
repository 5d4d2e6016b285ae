"""The weights are exp(x − L) with a running log-sum-exp L = m + log l, which rounds like its largest score."""

import numpy as np


def online_softmax(x_blocks):
    blocks, L, dtype = [], -np.inf, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        precise = block.astype(np.result_type(dtype, np.float32))
        blocks.append(precise)
        L = np.logaddexp(L, np.logaddexp.reduce(precise, axis=-1, initial=-np.inf))
    if not blocks:
        return np.zeros(0)
    finite = np.where(np.isneginf(L), 0, L)[..., None]
    for block in blocks:
        np.exp(np.subtract(block, finite, out=block), out=block)
    return np.concatenate(blocks, axis=-1, dtype=dtype, casting="same_kind")
