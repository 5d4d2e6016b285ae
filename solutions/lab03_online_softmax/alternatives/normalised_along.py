"""The output is divided by l after every block, as in Algorithm 1 of the first FlashAttention paper."""

import numpy as np


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.shape[-1] ** -0.5 if scale is None else scale
    values, O = iter(V_blocks), None
    for K in K_blocks:
        V = next(values, None)
        if V is None:
            raise ValueError("more blocks of keys than of values")
        if K.shape[-1] != Q_row.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
        s = scale * np.einsum("...d,...nd->...n", Q_row.astype(np.float64), K.astype(np.float64))
        if O is None:
            m, l, O = np.full(s.shape[:-1], -np.inf), np.zeros(s.shape[:-1]), np.zeros((*s.shape[:-1], V.shape[-1]))
        m_new = np.maximum(m, s.max(axis=-1, initial=-np.inf))
        safe = np.maximum(m_new, np.finfo(np.float64).min)
        p, kept = np.exp(s - safe[..., None]), l * np.exp(m - safe)
        l_new = kept + p.sum(axis=-1)
        O = O * kept[..., None] + np.einsum("...n,...nv->...v", p, V.astype(np.float64))
        O /= np.where(l_new > 0, l_new, 1)[..., None]
        m, l = m_new, l_new
    if next(values, None) is not None:
        raise ValueError("more blocks of values than of keys")
    if O is None:
        raise ValueError("no block")
    return O.astype(Q_row.dtype)


def safe_softmax(x, axis=-1):
    with np.errstate(invalid="ignore", divide="ignore"):
        m = np.max(x, axis=axis, keepdims=True)
        log_total = np.log(np.sum(np.exp(x - m), axis=axis, keepdims=True))
        return np.nan_to_num(np.exp(x - m - log_total), nan=0.0)
