"""Rescaling only where the maximum moved, all sums in float64, rounded to the input's precision at the end."""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = block.dtype
        m, l, _ = _step(m, l, block)
    return np.asarray(m, dtype), np.asarray(l, dtype)


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    q = Q_row.astype(np.float64) * (Q_row.shape[-1] ** -0.5 if scale is None else float(scale))
    m, l, o = -np.inf, 0.0, None
    for K, V in zip(K_blocks, V_blocks, strict=True):
        if K.shape[-1] != q.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
        s = np.einsum("...d,...nd->...n", q, K.astype(np.float64))
        m_new, l, p = _step(m, l, s)
        add = np.einsum("...n,...nv->...v", p, V.astype(np.float64))
        o = add if o is None else o * _factor(m, m_new)[..., None] + add
        m = m_new
    if o is None:
        raise ValueError("no block")
    return (o / np.where(l == 0, 1.0, l)[..., None]).astype(Q_row.dtype)


def _step(m, l, x):
    x = np.asarray(x, np.float64)
    m_new = np.maximum(m, x.max(axis=-1, initial=-np.inf))
    p = np.exp(np.where(np.isneginf(x), -np.inf, x - np.where(np.isfinite(m_new), m_new, 0.0)[..., None]))
    if np.any(m_new > m):
        l = l * _factor(m, m_new)
    return m_new, l + p.sum(axis=-1), p


def _factor(m, m_new):
    return np.where(np.asarray(m) == m_new, 1.0, np.exp(m - np.where(np.isfinite(m_new), m_new, 0.0)))
