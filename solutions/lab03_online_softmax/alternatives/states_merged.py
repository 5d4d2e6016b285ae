"""Every block is made a state by itself, and all the rest is merging."""

import numpy as np


def online_softmax_stats(x_blocks):
    m, l, o = -np.inf, 0.0, 0.0
    for block in x_blocks:
        values = np.zeros((*block.shape, 1), block.dtype)
        m, l, o = merge_states((m, l, o), _state(block, values))
    return m, l


def online_softmax(x_blocks):
    out, state = np.zeros(0), (-np.inf, 0.0, 0.0)
    for block in x_blocks:
        if not out.size:
            out = np.zeros((*block.shape[:-1], 0), block.dtype)
        new = _state(block, np.zeros((*block.shape, 1), block.dtype))
        (m_old, _, _), state = state, merge_states(state, new)
        m = np.where(np.isneginf(state[0]), 0, state[0])[..., None]
        out *= np.exp(np.where(np.isneginf(m_old), -np.inf, m_old - m[..., 0]))[..., None].astype(out.dtype)
        out = np.concatenate([out, np.exp(block - m)], axis=-1)
    if out.ndim == 1 and not out.size:
        return out
    out /= np.where(state[1] == 0, 1, state[1])[..., None]
    return out


def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale)
    total = None
    for K, V in zip(K_blocks, V_blocks, strict=True):
        if K.shape[-1] != Q_row.shape[-1]:
            raise ValueError(f"d differs: {Q_row.shape}, {K.shape}")
        if K.shape[-2] != V.shape[-2]:
            raise ValueError(f"lengths differ: {K.shape}, {V.shape}")
        state = _state(scale * np.einsum("...d,...nd->...n", Q_row, K), V)
        total = state if total is None else merge_states(total, state)
    if total is None:
        raise ValueError("there is no block")
    _, l, o = total
    return o / np.where(l == 0, 1, l)[..., None]


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    first = m_a >= m_b
    m = np.where(first, m_a, m_b)
    dtype = np.result_type(o_a if np.ndim(o_a) else o_b, np.float16)
    with np.errstate(invalid="ignore"):
        gap = np.where(m_a == m_b, 0, -np.abs(np.subtract(m_a, m_b)))
    less = np.exp(gap).astype(dtype)
    w_a, w_b = np.where(first, 1, less).astype(dtype), np.where(first, less, 1).astype(dtype)
    return m.astype(dtype)[()], (l_a * w_a + l_b * w_b)[()], o_a * w_a[..., None] + o_b * w_b[..., None]


def _state(scores, V):
    m = scores.max(axis=-1, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(m), 0, m)[..., None])
    return m, p.sum(axis=-1), np.einsum("...n,...nv->...v", p, V)
