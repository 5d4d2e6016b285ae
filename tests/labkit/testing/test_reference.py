"""The reference everything is graded by, against sums written out one at a time, and against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from labkit.testing.attention.reference import attention, gradients, gradients_with_penalty, random_qkv


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


def torchs_own(Q, K, V, hidden):
    """The output by torch's scaled dot-product attention; every row must see a key."""
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=torch.from_numpy(~hidden))


def inputs_and_hidden(causal):
    rng = np.random.default_rng(2)
    arrays = random_qkv(rng, n_queries=9, n_keys=13, d=8, d_v=4, batch=(2, 3), dtype=np.float64)
    hidden = rng.random((9, 13)) < 0.3
    hidden[:, 0] = False
    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    return (arrays, leaves), hidden | (np.arange(13) > np.arange(9)[:, None] if causal else False), rng


@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(causal):
    (arrays, leaves), hidden, rng = inputs_and_hidden(causal)
    dO = rng.standard_normal((2, 3, 9, 4))
    output = torchs_own(*leaves, hidden)
    np.testing.assert_allclose(attention(*arrays, mask=hidden).output, output.detach().numpy(), rtol=1e-12, atol=1e-14)
    theirs = torch.autograd.grad((output * torch.from_numpy(dO)).sum(), leaves)
    ours = gradients(*arrays, dO, mask=hidden)
    for name, got, want in zip(ours._fields, ours, theirs, strict=True):
        np.testing.assert_allclose(got, want.numpy(), atol=1e-13, err_msg=name)


def test_penalty_on_gradients_against_torch():
    (arrays, leaves), hidden, rng = inputs_and_hidden(causal=False)
    dO = rng.standard_normal((2, 3, 9, 4))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        total = (torchs_own(*leaves, hidden) * torch.from_numpy(dO)).sum()
        alone = torch.autograd.grad(total, leaves, create_graph=True)
        theirs = torch.autograd.grad(total + sum((x**2).sum() for x in alone), leaves)
    ours, first = gradients_with_penalty(*arrays, dO, mask=hidden)
    for got, want in zip((*ours, *first), (*theirs, *alone), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-7)


def test_a_row_that_sees_nothing_has_gradients_of_zero():
    arrays = random_qkv(np.random.default_rng(5), n_queries=4, d=3, dtype=np.float64)
    found = gradients(*arrays, np.ones((4, 3)), mask=(np.arange(4) == 1)[:, None])
    assert all(np.isfinite(each).all() for each in found)
    assert (found.dQ[1] == 0).all()
    made = attention(np.ones((2, 3)), np.ones((0, 3)), np.ones((0, 4)))
    assert made.output.shape == (2, 4)
    assert (made.output == 0).all()
    assert made.lse.tolist() == [-math.inf, -math.inf]


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
