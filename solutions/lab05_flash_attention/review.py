"""What every right flash_attention.py does, and no wrong one."""

import math

import pytest
import torch
from flash_attention import FlashAttention, flash_backward, flash_forward

from labkit.meters.calls import ScoreTiles, UninitialisedIsNaN, measured
from labkit.meters.steps import kept_between, left_behind, measured_step, penalised_gradients, saved_tensors, step

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
# N_q, N_k, causal, batch, and how far below 0 the scores of a row lie
CASES = [(37, 37, True, (2, 3), 0), (20, 65, True, (), 0), (65, 20, True, (2,), 0), (70, 41, False, (2,), 0)]
CASES += [(30, 30, True, (2,), 5e3), (30, 25, False, (), -5e3), (24, 24, True, (), 1e8)]


def draw(n_q, n_k, batch=(), far=0, dtype=F64, d=8, d_v=5):
    sizes = [(*batch, n_q, d), (*batch, n_k, d), (*batch, n_k, d_v), (*batch, n_q, d_v)]
    Q, K, V, dO = (torch.randn(size, dtype=F64).to(dtype) for size in sizes)
    if far:
        Q[..., 0], K[..., 0] = far * torch.linspace(0.5, 1, n_q), -1
    return Q, K, V, dO


def plain(Q, K, V, causal=False):
    S = Q @ K.mT / math.sqrt(Q.shape[-1])
    S = S.masked_fill(torch.ones(S.shape[-2:]).triu(1).bool(), -torch.inf) if causal else S
    return S.softmax(-1) @ V, S.logsumexp(-1)


def called_with(function, Q, K, V, dO, causal):
    """The arguments of a pass, and its results, computed in float64."""
    leaves = [x.detach().to(F64).requires_grad_() for x in (Q, K, V)]
    O, L = plain(*leaves, causal)
    forward = [O.detach().to(Q.dtype), L.detach().to(F32 if Q.dtype == BF16 else Q.dtype)]
    if function is flash_forward:
        return [Q, K, V], forward
    return [Q, K, V, *forward, dO], [x.to(Q.dtype) for x in torch.autograd.grad(O, leaves, dO.to(F64))]


def near(got, want, tolerance=1e-7):
    for value, right in zip(got, want, strict=True):
        assert (value.dtype, value.shape) == (right.dtype, right.shape)
        assert ((value.to(F64) - right).abs() <= tolerance * max(1, right.double().abs().amax())).all()


def values(function):
    for n_q, n_k, causal, batch, far in CASES:
        given, want = called_with(function, *draw(n_q, n_k, batch, far), causal)
        before = [x.clone() for x in given]
        for blocks in [(16, 8), (7, 200), (200, 7)]:
            with UninitialisedIsNaN():
                near(function(*given, causal, *blocks), want)
            assert all(map(torch.equal, given, before))


def half_precision(function):
    given, want = called_with(function, *draw(300, 500, (2,), dtype=BF16), False)
    got = function(*given, False, 4, 4)
    near(got, want, 1e-2)
    near(got[1:2], want[1:2], 1e-5 if function is flash_forward else 1e-2)


def arguments(function):
    no_keys, want = called_with(function, *draw(5, 0, (2,)), False)
    assert all(map(torch.equal, function(*no_keys), want))
    Q, K, *others = called_with(function, *draw(5, 4, (2,)), False)[0]
    for wrong, more in [((Q[..., :7], K), {}), ((Q, K[:, :3]), {}), ((Q, K), {"block_q": 0}), ((Q, K), {"block_k": 0})]:
        with pytest.raises(ValueError, match=next(iter(more), r"\d, \d.*\d, \d")):
            function(*wrong, *others, **more)


def tiles(function):
    for n_q, n_k, causal, bq, bk in [(130, 165, True, 16, 32), (130, 165, True, 32, 16), (250, 120, False, 64, 32)]:
        Q, K, V, dO = draw(n_q, n_k, d=11)
        given, want = called_with(function, Q.abs() + 0.1, -K.abs() - 0.1, V, dO, causal)
        with ScoreTiles(11) as seen:
            near(function(*given, causal, bq, bk), want)
        assert not seen.fused and tuple(map(max, zip(*seen.tiles, strict=True))) == (bq, bk)
        blocks = [(min(bq, n_q - i), min(-(-(i + bq) // bk) * bk, n_k) if causal else n_k) for i in range(0, n_q, bq)]
        assert sum(map(math.prod, seen.tiles)) <= sum(map(math.prod, blocks)) * (1 if function is flash_forward else 2)


def memory(function):
    for n, causal, block, dtype in ((576, True, 64, F32), (576, False, 64, BF16), (4096, False, 512, F32)):
        given, want = called_with(function, *draw(n, n, dtype=dtype, d=16, d_v=16), causal)
        got, counts = measured(function, *given, causal, block, block)
        near(got, want, 1e-3 if dtype == F32 else 2e-2)
        assert not counts["fused"] and counts["largest_bytes"] <= 4 * (4 * block**2 + 17 * n)
        assert counts["peak_bytes"] <= 4 * (24 * block**2 + 12 * n * 16)


every_check = pytest.mark.parametrize("check", [values, half_precision, arguments, tiles, memory])


@every_check
def test_flash_forward(check):
    check(flash_forward)


@every_check
def test_flash_backward(check):
    check(flash_backward)


def causal_apply(*inputs):
    return FlashAttention.apply(*inputs, True)


def test_FlashAttention():
    for n_q, n_k, causal, batch, far in [*CASES, (256, 192, False, (2,), 0)]:
        apply, *inputs, dO = causal_apply if causal else FlashAttention.apply, *draw(n_q, n_k, batch, far)
        before = [x.clone() for x in inputs]
        (O, L), dX = (called_with(each, *inputs, dO, causal)[1] for each in (flash_forward, flash_backward))
        output, later, gradients = step(apply, inputs, dO, on_nan=True)
        near([output, later, *gradients], [O, O, *dX])
        near(step(apply, inputs, dO, n_backward=2)[2], [2 * x for x in dX])
        near(step(apply, inputs, None)[2], called_with(flash_backward, *inputs, torch.ones_like(dO), causal)[1])
        near(step(apply, inputs, dO, needs=[False, True, True])[2][1:], dX[1:])
        assert all(map(torch.equal, inputs, before))
        saved = saved_tensors(apply, inputs, "QKVO")[1]
        assert len(saved) == 5 and [x.shape[-1] for x in saved if not isinstance(x, str)] == [n_q]
        assert kept_between(apply, inputs)[0] <= 8 * L.numel() and left_behind(apply, inputs)[0] == 0
    second = penalised_gradients(apply, inputs, dO)
    assert isinstance(second, str) or torch.allclose(
        second[0], penalised_gradients(lambda *x: plain(*x)[0], inputs, dO)[0]
    )
    *inputs, dO = draw(300, 500, (2,), dtype=BF16)
    near(step(FlashAttention.apply, inputs, dO)[2], called_with(flash_backward, *inputs, dO, False)[1], 4e-3)
    for dtype, *sides in [
        (F32, (64, 512), (64, 2048)),
        (F32, (512, 64), (2048, 64)),
        (F32, (512, 512), (1024, 1024)),
        (BF16, (512, 512), (1024, 1024)),
    ]:
        apply = causal_apply if sides[0][0] == sides[0][1] else FlashAttention.apply
        ones = [torch.ones(n_q, 5, dtype=dtype) for n_q, _ in sides]
        passes = [
            measured_step(apply, draw(*side, d=2, dtype=dtype)[:3], dO)[2] for side, dO in zip(sides, ones, strict=True)
        ]
        for name in passes[0]:
            small, large = (each[name]["largest_bytes"] for each in passes)
            assert large <= max(1.4 * small, 4 * 2048 * 5 + 1) and not passes[0][name]["fused"]
