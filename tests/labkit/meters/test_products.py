"""The meter of matrix products: every way to write a product counts the same, and fused attention is reported."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from labkit.meters.products import ProductMeter

A, B, C = torch.ones(3, 4, 5), torch.ones(3, 5, 6), torch.zeros(3, 4, 6)
FLOPS = 2 * 3 * 4 * 5 * 6


@pytest.mark.parametrize(
    "product",
    [
        lambda: A @ B,
        lambda: torch.einsum("bij,bjk->bik", A, B),
        lambda: torch.bmm(A, B),
        lambda: torch.baddbmm(C, A, B, alpha=2),
        lambda: C.clone().baddbmm_(A, B),
        lambda: torch.bmm(A, B, out=C.clone()),
        lambda: torch.addbmm(C[0], A, B),
        lambda: [torch.mm(A[i], B[i]) for i in range(3)],
        lambda: [torch.addmm(C[i], A[i], B[i], beta=-1) for i in range(3)],
        lambda: [C[i].clone().addmm_(A[i], B[i]) for i in range(3)],
        lambda: [functional.linear(A[i], B[i].T) for i in range(3)],
        lambda: [A[i] @ B[i, :, k] for i in range(3) for k in range(6)],
        lambda: [torch.addmv(C[i, :, k], A[i], B[i, :, k]) for i in range(3) for k in range(6)],
        lambda: [A[i, j] @ B[i, :, k] for i in range(3) for j in range(4) for k in range(6)],
    ],
)
def test_every_form_of_a_product_counts_the_same(product):
    with ProductMeter() as meter:
        product()
    assert meter.flops == FLOPS
    assert meter.fused == []


def test_a_backward_pass_counts_too():
    a, b = (x.clone().requires_grad_() for x in (A, B))
    loss = (a @ b).sum()
    with ProductMeter() as meter:
        loss.backward()
    assert meter.flops == 2 * FLOPS


def test_elementwise_work_and_what_came_before_do_not_count():
    A @ B
    with ProductMeter() as meter:
        (A * 2 + 1).sum().exp()
    A @ B
    assert meter.flops == 0


def test_fused_attention_is_named():
    q = torch.ones(1, 2, 8, 4)
    with ProductMeter() as meter:
        functional.scaled_dot_product_attention(q, q, q)
    assert any("attention" in name for name in meter.fused)


def test_results_are_left_alone():
    with ProductMeter():
        result = A @ B
    assert torch.equal(result, A @ B)
