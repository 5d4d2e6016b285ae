"""The torch reference agrees with the NumPy one, with finite differences, and where rows see nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from labkit.testing.attention import reference
from labkit.testing.attention.tensor_reference import attention, gradients, gradients_with_penalty


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tensors(rng, **sizes):
    arrays = reference.random_qkv(rng, dtype=np.float64, **sizes)
    return arrays, [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(7, 11), (11, 7)])
def test_agrees_with_numpy(rng, n_queries, n_keys, causal):
    arrays, inputs = tensors(rng, n_queries=n_queries, n_keys=n_keys, d=5, d_v=3, batch=(2,))
    mask = rng.random((n_queries, n_keys)) < 0.3
    mask[2] = True
    want = reference.attention(*arrays, mask=mask, causal=causal)
    got = attention(*inputs, mask=torch.from_numpy(mask), causal=causal)
    for name in ("output", "weights", "lse"):
        np.testing.assert_allclose(getattr(got, name).numpy(), getattr(want, name), atol=1e-13, err_msg=name)


def test_scale_and_precision(rng):
    _, inputs = tensors(rng, n_queries=6, d=4)
    single = attention(*inputs, scale=0.3, dtype=torch.float32)
    half = attention(*inputs, scale=0.3, dtype=torch.bfloat16)
    exact = attention(*inputs, scale=0.3)
    assert (single.output.dtype, single.lse.dtype) == (torch.float32, torch.float32)
    assert (half.output.dtype, half.weights.dtype, half.lse.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    lost = [float((form.output.double() - exact.output).abs().max()) for form in (single, half)]
    assert 0 < lost[0] < 1e-6 < 1e-4 < lost[1] < 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_slopes(rng, causal):
    _, inputs = tensors(rng, n_queries=5, n_keys=6, d=3, d_v=2)
    dO = torch.from_numpy(rng.standard_normal((5, 2)))
    steps = [torch.from_numpy(rng.standard_normal(x.shape)) for x in inputs]

    def loss(t: float) -> float:
        moved = [x + t * step for x, step in zip(inputs, steps, strict=True)]
        return float((attention(*moved, causal=causal).output * dO).sum())

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    found = gradients(*inputs, dO, causal=causal)
    assert slope == pytest.approx(sum(float((g * s).sum()) for g, s in zip(found, steps, strict=True)), rel=1e-7)


def test_gradients_where_a_row_sees_nothing_are_finite(rng):
    _, inputs = tensors(rng, n_queries=4, d=3)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    found = gradients(*inputs, torch.ones(4, 3), mask=mask)
    assert all(gradient.isfinite().all() for gradient in found)
    assert (found.dQ[1] == 0).all()


def test_without_keys():
    Q, K, V = torch.ones(2, 3), torch.ones(0, 3), torch.ones(0, 4)
    made = attention(Q, K, V)
    assert made.output.shape == (2, 4)
    assert (made.output == 0).all()
    assert made.lse.tolist() == [-math.inf, -math.inf]


def test_arguments_stay_out_of_the_graph(rng):
    _, inputs = tensors(rng, n_queries=3, d=2)
    leaves = [x.requires_grad_() for x in inputs]
    gradients(*leaves, torch.ones(3, 2))
    assert all(leaf.grad is None for leaf in leaves)


@pytest.mark.parametrize("causal", [False, True])
def test_autograd_agrees_with_the_formulas(rng, causal):
    arrays, inputs = tensors(rng, n_queries=9, n_keys=7, d=5, d_v=3, batch=(2,))
    dO = rng.standard_normal((2, 9, 3))
    mask = rng.random((9, 7)) < 0.3
    mask[2] = True
    want = gradients(*inputs, torch.from_numpy(dO), mask=torch.from_numpy(mask), causal=causal, scale=0.3)
    got = reference.gradients(*arrays, dO, mask=mask, causal=causal, scale=0.3)
    for name, ours, theirs in zip(got._fields, got, want, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-13, err_msg=name)


def test_penalty_on_gradients_agrees_with_autograd(rng):
    arrays, inputs = tensors(rng, n_queries=6, n_keys=9, d=4, d_v=3)
    dO = rng.standard_normal((6, 3))
    theirs = gradients_with_penalty(*inputs, torch.from_numpy(dO))
    ours = reference.gradients_with_penalty(*arrays, dO)
    for want, got in zip(theirs, ours, strict=True):
        for name, exact, near in zip("QKV", want, got, strict=True):
            np.testing.assert_allclose(near, exact.detach().numpy(), atol=1e-8, err_msg=name)
