"""Einsum instead of matmul; the scale is split between Q and K, the exponential is of scores less log-sum-exp."""

import numpy as np


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1] or K.shape[-2] != V.shape[-2]:
        raise ValueError(f"shapes do not fit: Q {Q.shape}, K {K.shape}, V {V.shape}")
    quarter = Q.dtype.type(Q.shape[-1] ** -0.25)
    scores = np.einsum("...qd,...kd->...qk", Q * quarter, K * quarter)
    if mask is not None:
        scores = np.where(mask, -np.inf, scores).astype(Q.dtype)
    top = np.nan_to_num(scores.max(axis=-1, keepdims=True), neginf=0.0)
    with np.errstate(divide="ignore"):
        lse = top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))
    lse[np.isneginf(lse)] = 0
    weights = np.exp(scores - lse)
    return np.einsum("...qk,...kv->...qv", weights, V), weights


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError("results must hold two lengths or more")
    ordered = sorted(results.items())
    x = np.log([n for n, _ in ordered])
    y = np.log([stats["attention_matrix_memory"] for _, stats in ordered])
    design = np.stack([x, np.ones_like(x)], axis=1)
    (exponent, _), *_ = np.linalg.lstsq(design, y, rcond=None)
    return {
        "seq_lengths": [n for n, _ in ordered],
        "attention_memory": [stats["attention_matrix_memory"] for _, stats in ordered],
        "total_memory": [stats["total_memory"] for _, stats in ordered],
        "scaling_factor": np.exp2(exponent),
    }
