"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import numpy as np


def stats_copies_joined(x_blocks):
    blocks = [block.copy() for block in x_blocks]
    if not blocks:
        return np.float64(-np.inf), np.float64(0)

    x = np.concatenate(blocks, axis=-1)
    m = x.max(axis=-1, initial=-np.inf)
    return m, np.exp(x - np.where(m == -np.inf, 0, m)[..., None]).sum(axis=-1)


def online_copies_joined(x_blocks):
    blocks = [block.copy() for block in x_blocks]
    if not blocks:
        return np.zeros(0)
    x = np.concatenate(blocks, axis=-1)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)


def _softmax(x):
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=-1, keepdims=True)
    return p / np.where(l == 0, 1, l)


def online_each_block_by_itself(x_blocks):
    pieces = [_softmax(block) if block.size else block for block in x_blocks]
    return np.concatenate(pieces, axis=-1) if pieces else np.zeros(0)


def online_joined_first(x_blocks):
    blocks = list(x_blocks)
    if not blocks:
        return np.zeros(0)
    x = np.concatenate(blocks, axis=-1)
    return _softmax(x)


def attention_copies_joined(Q_row, K_blocks, V_blocks, scale=None):
    pairs = [(K.copy(), V.copy()) for K, V in zip(K_blocks, V_blocks, strict=True)]
    if not pairs:
        raise ValueError("there is no block")
    for K, V in pairs:
        if K.shape[-1] != Q_row.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
    K, V = (np.concatenate(blocks, axis=-2) for blocks in zip(*pairs, strict=True))
    s = np.einsum("...d,...nd->...n", Q_row * Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale), K)
    return np.einsum("...n,...nv->...v", _softmax(s), V)


def attention_joined_first(Q_row, K_blocks, V_blocks, scale=None):
    pairs = list(zip(K_blocks, V_blocks, strict=True))
    if not pairs:
        raise ValueError("there is no block")
    for K, V in pairs:
        if K.shape[-1] != Q_row.shape[-1] or K.shape[-2] != V.shape[-2]:
            raise ValueError(f"shapes that do not fit: Q_row {Q_row.shape}, K {K.shape}, V {V.shape}")
    K, V = (np.concatenate(blocks, axis=-2) for blocks in zip(*pairs, strict=True))
    s = np.einsum("...d,...nd->...n", Q_row * Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale), K)
    return np.einsum("...n,...nv->...v", _softmax(s), V)


def attention_keys_before_values(Q_row, K_blocks, V_blocks, scale=None):
    scale = Q_row.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale)
    scores = []
    for K in K_blocks:
        if K.shape[-1] != Q_row.shape[-1]:
            raise ValueError(f"d differs: {Q_row.shape} {K.shape}")
        scores.append((scale * np.einsum("...d,...nd->...n", Q_row, K), K.shape))
    if not scores:
        raise ValueError("there is no block")
    weights = _softmax(np.concatenate([s for s, _ in scores], axis=-1))
    start, o = 0, 0
    for (s, shape), V in zip(scores, V_blocks, strict=True):
        if s.shape[-1] != V.shape[-2]:
            raise ValueError(f"lengths differ: {shape} {V.shape}")
        o = o + np.einsum("...n,...nv->...v", weights[..., start : start + s.shape[-1]], V)
        start += s.shape[-1]
    return o
