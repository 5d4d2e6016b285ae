"""What every right linear_attention.py does, and no wrong one."""

import itertools
import math

import linear_attention as lab
import pytest
import torch

from labkit.meters.arrays import measure_arrays
from labkit.meters.calls import OperatorsSeen, UninitialisedIsNaN, measured
from labkit.meters.fakes import SmallDevice, out_of_memory
from labkit.meters.tensors import kept_by_forward

KINDS = "standard", "linear_bidir", "linear_causal", "linear_chunked"


def plain(q, k, v, eps, causal=True):
    weights = mapped(q) @ mapped(k).mT
    weights = weights.tril() if causal else weights
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)


def mapped(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def draw(n, d=5, d_v=3, batch=(), n_k=None, dtype=torch.float64, needs=False):
    sizes = (*batch, n, d), (*batch, n_k or n, d), (*batch, n_k or n, d_v)
    return [torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_(needs) for size in sizes]


def check(route, causal=True, chunks=(None,)):
    """Values and gradients, and memory that NumPy may not hide."""
    for batch, (n, n_k), chunk in itertools.product([(), (2, 3)], [(1, 1), (9, 9), (70, 70), (8, 11)], chunks):
        inputs = draw(n, batch=batch, n_k=n if causal else n_k, needs=True)
        before = [x.detach().clone() for x in inputs]
        options = {} if chunk is None else {"chunk": chunk}
        for eps in (1e-6, 0.5):
            with UninitialisedIsNaN():
                out = route(*inputs, eps=eps, **options)
            want = plain(*inputs, eps, causal)
            factors = torch.randn_like(want)
            gradients, wanted = (torch.autograd.grad((each * factors).sum(), inputs) for each in (out, want))
            torch.testing.assert_close([out, *gradients], [want, *wanted], rtol=1e-9, atol=1e-9)
        assert torch.equal(route(*inputs, **options), route(*inputs, eps=1e-6, **options))
        assert all(map(torch.equal, inputs, before))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        inputs = draw(9, dtype=dtype)
        out, want = route(*inputs), plain(*(x.double() for x in inputs), 1e-6, causal)
        assert out.dtype == dtype and torch.allclose(out.double(), want, atol=8 * torch.finfo(dtype).eps)
    if chunks != (None,):
        for chunk in (0, -3):
            with pytest.raises(ValueError, match="chunk"):
                route(*inputs, chunk=chunk)
    inputs = draw(256, 16, 16, dtype=torch.float32)
    assert measure_arrays(route, *inputs).peak_bytes <= 4 * 2 * 256 * 16
    assert not measured(route, *inputs)[1]["fused"]


def growth(route, n, d, d_v, **options):
    """Peak bytes and operations for n positions, and how they grow from there to 2n."""
    (_, first), (_, second) = (measured(lambda *x: route(*x, **options), *draw(m, d, d_v)) for m in (n, 2 * n))
    return first["peak_bytes"], second["peak_bytes"] - first["peak_bytes"], second["flops"] / max(first["flops"], 1)


def test_feature_map():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([[-1.0, 2.0, 1e-3], [-12.0, 11.5, -0.5], [6e4, -6e4, 25.0]], dtype=dtype, requires_grad=True)
        before, y = x.detach().clone(), lab.feature_map(x)
        y.sum().backward()
        want, slope = mapped(before.double()), torch.where(before > 0, 1.0, before.double().clamp(max=0).exp())
        eps = torch.finfo(dtype).eps
        assert y.dtype == dtype and torch.equal(x, before)
        assert torch.allclose(y.double(), want, rtol=2 * eps, atol=2 * eps)
        assert torch.allclose(x.grad.double(), slope, rtol=2 * eps, atol=2 * eps)


def test_linear_attention():
    check(lab.linear_attention, causal=False)
    n, d = 1024, 32
    peak, _, ratio = growth(lab.linear_attention, n, d, d)
    assert peak <= 8 * (6 * n * d + 4 * d * d) and ratio <= 2.1


def test_causal_linear_attention_cumsum():
    check(lab.causal_linear_attention_cumsum)
    n, d = 128, 32
    assert growth(lab.causal_linear_attention_cumsum, n, d, d)[0] <= 8 * (2 * n * d * d + 8 * n * d)
    assert n_operators(lab.causal_linear_attention_cumsum, 8) == n_operators(lab.causal_linear_attention_cumsum, 80)


def n_operators(route, n, *banned, **options):
    with OperatorsSeen() as seen:
        route(*draw(n), **options)
    assert not [name for name in seen.operators if any(part in name for part in banned)]
    return len(seen.operators)


def test_causal_linear_attention_recurrent():
    check(lab.causal_linear_attention_recurrent)
    _, more, ratio = growth(lab.causal_linear_attention_recurrent, 128, 32, 4)
    assert more <= 8 * 128 * 2 * 4 and ratio <= 2.1


def test_causal_linear_attention_chunked():
    check(lab.causal_linear_attention_chunked, chunks=[1, 4, 7, 64, 100])
    n, d, c = 512, 32, 32
    _, more, ratio = growth(lab.causal_linear_attention_chunked, n, d, 4, chunk=c)
    assert more <= 8 * n * 2 * 4 and ratio <= 2.1
    peak, _, _ = growth(lab.causal_linear_attention_chunked, 4 * c, d, d, chunk=c)
    assert peak <= 8 * (2 * 4 * c * d + 8 * c * d + 3 * c * c + 5 * d * d)
    _, counts = measured(lambda *x: lab.causal_linear_attention_chunked(*x, chunk=64), *draw(127, 2, 2))
    assert counts["largest_bytes"] <= 8 * 64 * 64


def test_causal_linear_attention_scan():
    route = lab.causal_linear_attention_scan
    check(route, chunks=[1, 4, 7, 64, 100])
    few, many = (n_operators(route, n, "cumsum", "conv", chunk=4) for n in (64, 4096))
    assert many <= 4 * few and many <= 400
    assert growth(route, 512, 8, 8, chunk=2)[2] <= 2.2
    for n, d, c in ((1024, 32, 64), (1000, 16, 16), (512, 32, 16)):
        limit = 8 * (10 * n * d + 3 * n * c + 6 * math.ceil(n / c) * d * d)
        inputs = draw(n, d, d, needs=True)
        assert measured(lambda *x, c=c: route(*x, chunk=c), *inputs)[1]["peak_bytes"] <= limit
        assert kept_by_forward(lambda *x, c=c: route(*x, chunk=c), *inputs) <= limit


def test_linear_attention_memory(rng):
    for batch, heads, n, d, size in [(1, 1, 512, 64, 4), (2, 3, 17, 1, 2), (3, 2, 128, 1, 4), (1, 2, 8, 128, 8)] + [
        (*(2 ** rng.integers(0, 6, 2)).tolist(), 64 * int(n), int(d), 4) for n, d in rng.integers(1, 200, (20, 2))
    ]:
        with OperatorsSeen() as seen:
            found = lab.linear_attention_memory(batch, heads, n, d, size)
        assert not seen.operators and all(isinstance(x, int) for x in found.values())
        c, state = min(n, 64), d * d + d
        moments = (n - c) * d + 5 * c * d + c * c, n * d + 2 * c * d + 2 * d * d, 2 * n * d
        want = {"inputs": 3 * n * d, "standard_peak": 2 * n * n + n * d, "linear_chunked_peak": state + max(moments)}
        want |= {
            "linear_bidir_peak": 4 * n * d + state + 2 * n,
            "linear_causal_peak": 2 * n * d * d + 5 * n * d + 2 * n,
        }
        assert found == pytest.approx({name: batch * heads * x * size for name, x in want.items()}, rel=0.02)


def expected(n, dtype, device, capacity=math.inf, batch=2, heads=3, d=8):
    """The row of one length."""
    q, k, v = (torch.randn(batch, heads, n, d, dtype=dtype, device=device) for _ in range(3))
    routes = (
        lab.standard_attention,
        lab.linear_attention,
        *(
            lab.causal_linear_attention_cumsum,
            lab.causal_linear_attention_chunked,
        ),
    )
    predicted = lab.linear_attention_memory(batch, heads, n, d, q.itemsize)
    row = {"seq_len": n, "input_memory_mb": 3 * q.nbytes / 1e6}
    for kind, route in zip(KINDS, routes, strict=True):
        peak = lab.measure_peak(route, q, k, v)
        row[f"{kind}_memory_mb"] = peak / 1e6 if peak + 3 * q.nbytes <= capacity else math.nan
        row[f"{kind}_theoretical_mb"] = predicted[f"{kind}_peak"] / 1e6
    return row | {"savings_bidir": row["standard_memory_mb"] / row["linear_bidir_memory_mb"]}


def test_profile_attention_memory():
    def rows(*lengths, **options):
        return lab.profile_attention_memory(iter(lengths), 2, 3, 8, **options)

    for dtype, device in ((torch.float32, "cpu"), (torch.float16, "meta")):
        want = [expected(n, dtype, device) for n in (40, 17, 100)]
        with OperatorsSeen() as seen:
            found = rows(40, 17, 100, dtype=dtype, device=device)
        assert found == [pytest.approx(row) for row in want] and device in seen.devices
    full = expected(40, torch.float16, "meta")
    for kind in KINDS[:2]:
        exact = round((full["input_memory_mb"] + full[f"{kind}_memory_mb"]) * 1e6)
        for capacity in (exact, exact - 1, 0):
            want = [pytest.approx(expected(n, torch.float16, "meta", capacity), nan_ok=True) for n in (400, 40)]
            assert rows(400, 40, capacity_bytes=capacity) == want
    for where in ("CUDA", "CPU"):
        with SmallDevice(4 * 6 * 99**2, lambda where=where: out_of_memory(where)):
            small, large = rows(20, 100, dtype=torch.float32, device="cpu")
        assert math.isnan(large["standard_memory_mb"]) and large["linear_bidir_memory_mb"] > 0
        assert small["standard_memory_mb"] > 0 and math.isnan(large["savings_bidir"])
    with pytest.raises(RuntimeError, match="shapes"), SmallDevice(4 * 6 * 99**2, lambda: RuntimeError("shapes differ")):
        rows(100, dtype=torch.float32, device="cpu")
