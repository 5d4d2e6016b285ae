"""Number by number, as in Milakov and Gimelshein's Algorithm 3, all of it in the input's own precision."""

import numpy as np


def online_softmax_stats(x_blocks):
    m = l = None
    for block in x_blocks:
        if m is None:
            m = np.full(block.shape[:-1], -np.inf, block.dtype)
            l = np.zeros_like(m)
        for j in range(block.shape[-1]):
            m, l = _one_more(m, l, block[..., j])
    return (np.float64(-np.inf), np.float64(0)) if m is None else (m, l)


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    d = Q_row.shape[-1]
    q = Q_row * Q_row.dtype.type(1 / np.sqrt(d) if scale is None else scale)
    m = l = o = None
    for K, V in zip(K_blocks, V_blocks, strict=True):
        if K.shape[-1] != d or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
        if m is None:
            m = np.full(Q_row.shape[:-1], -np.inf, Q_row.dtype)
            l = np.zeros_like(m)
            o = np.zeros((*m.shape, V.shape[-1]), Q_row.dtype)
        for j in range(K.shape[-2]):
            s = (q * K[..., j, :]).sum(axis=-1)
            m_new, l = _one_more(m, l, s)
            kept, add = (_power(x, m_new)[..., None] for x in (m, s))
            m, o = m_new, o * kept + V[..., j, :] * add
    if m is None:
        raise ValueError("there is no block")
    return np.divide(o, l[..., None], out=np.zeros_like(o), where=l[..., None] > 0)


def _one_more(m, l, x):
    m_new = np.maximum(m, x)
    return m_new, l * _power(m, m_new) + _power(x, m_new)


def _power(x, m):
    """exp(x − m), 0 where x is −inf."""
    return np.exp(x - np.where(m == -np.inf, 0, m))
