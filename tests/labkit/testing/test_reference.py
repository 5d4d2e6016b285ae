"""The reference everything is graded by, against sums written out one at a time, and against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labkit.testing.attention.reference import attention, random_qkv


def by_hand(Q, K, V, mask, scale):
    """Attention as its definition reads, one number at a time, in exact enough sums."""
    n_queries, n_keys, d_v = len(Q), len(K), V.shape[1]
    weights, output, lse = np.zeros((n_queries, n_keys)), np.zeros((n_queries, d_v)), np.full(n_queries, -np.inf)
    for i in range(n_queries):
        seen = [j for j in range(n_keys) if not mask[i, j]]
        logits = {j: scale * math.fsum(float(a) * float(b) for a, b in zip(Q[i], K[j], strict=True)) for j in seen}
        if not seen:
            continue
        top = max(logits.values())
        mass = math.fsum(math.exp(x - top) for x in logits.values())
        lse[i] = top + math.log(mass)
        for j in seen:
            weights[i, j] = math.exp(logits[j] - top) / mass
        output[i] = [math.fsum(weights[i, j] * float(V[j, c]) for j in seen) for c in range(d_v)]
    return output, weights, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_against_sums_by_hand(causal, scale):
    rng = np.random.default_rng(1)
    Q, K, V = random_qkv(rng, n_queries=7, n_keys=5, d=3, d_v=2)
    mask = rng.random((7, 5)) < 0.4
    mask[3] = True
    hidden = mask | (np.arange(5)[None, :] > np.arange(7)[:, None] if causal else False)
    want = by_hand(Q, K, V, hidden, 1 / math.sqrt(3) if scale is None else scale)
    got = attention(Q, K, V, mask=mask, causal=causal, scale=scale)
    for ours, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(causal):
    import torch

    arrays = random_qkv(np.random.default_rng(2), n_queries=9, n_keys=13, d=8, d_v=4, batch=(2, 3), dtype=np.float64)
    want = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, arrays), is_causal=causal).numpy()
    np.testing.assert_allclose(attention(*arrays, causal=causal).output, want, rtol=1e-12, atol=1e-14)


def test_every_step_is_in_the_precision_asked_for():
    arrays = random_qkv(np.random.default_rng(3), n_queries=33, d=16)
    for dtype in (np.float16, np.float32, np.float64):
        got = attention(*arrays, dtype=dtype)
        assert {part.dtype for part in got} == {np.dtype(dtype)}
    exact, rounded = attention(*arrays), attention(*arrays, dtype=np.float16)
    assert 1e-5 < np.abs(exact.output - rounded.output).max() < 1e-2


def test_large_logits_stay_finite():
    arrays = random_qkv(np.random.default_rng(4), n_queries=9, d=4, logit_scale=1e4)
    for dtype in (np.float32, np.float64):
        assert all(np.isfinite(part).all() for part in attention(*arrays, dtype=dtype))
