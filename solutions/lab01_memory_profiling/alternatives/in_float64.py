"""Every step in float64, converted once at the end."""

import numpy as np


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1] or K.shape[-2] != V.shape[-2]:
        raise ValueError(f"shapes that do not fit: Q {Q.shape}, K {K.shape}, V {V.shape}")
    q, k, v = (x.astype(np.float64) for x in (Q, K, V))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    sums = powers.sum(axis=-1, keepdims=True)
    weights = np.divide(powers, sums, out=np.zeros_like(powers), where=sums > 0)
    return (weights @ v).astype(Q.dtype), weights.astype(Q.dtype)
