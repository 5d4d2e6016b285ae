"""What every right compressed_cache.py does, and no wrong one."""

from itertools import product

import compressed_cache as lab
import pytest
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.calls import UninitialisedIsNaN, measured
from labkit.meters.moved import MovedBytes
from labkit.meters.tensors import measure_peak

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
TOLERANCES = {F64: 1e-7, F32: 1e-4, BF16: 4e-3, F16: 1e-3}
TOKENS = torch.arange(10_000)


def draw(dtype, *sizes):
    return [torch.randn(size, dtype=F64).to(dtype) for size in sizes]


def near(got, want, dtype):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    largest = want.abs().amax().clamp(max=1) if want.numel() else 1
    assert torch.allclose(got.to(F64), want, TOLERANCES[dtype], TOLERANCES[dtype] * largest)


def refuses(function, *calls):
    """Each call's arguments, and after them what its error names."""
    for *args, match in calls:
        with pytest.raises(ValueError, match=match):
            function(*args)


def called(function, *args):
    """The result, the bytes read of each tensor, and what `measured` counts."""
    tensors = {f"{i}": x for i, x in enumerate(args) if isinstance(x, torch.Tensor)}
    before = [x.clone() for x in tensors.values()]
    with UninitialisedIsNaN(), MovedBytes(**tensors) as moved:
        got, counts = measured(function, *args)
    assert all(torch.allclose(x, tensors[name], 0, 0, True) for name, x in zip(tensors, before, strict=True))
    assert not counts["fused"]
    return got, list(moved.read.values()), counts


def latent_inputs(dtype, n, batch=(), heads=8, d_n=24, d_r=16, d_c=64, d_v=20):
    shapes = (heads, d_n), (heads, d_r), (n, d_c), (n, d_r)
    return draw(dtype, *((*batch, *each) for each in shapes), (heads, d_n, d_c), (heads, d_v, d_c))


def test_mla_decode():
    sizes = [(0, ()), (1, ()), (5, (2, 3)), (1009, ()), (5003, ())]
    for (n, batch), (dtype, far) in product(sizes, [(F64, 1e3), (F64, -1e3), *((x, 0) for x in TOLERANCES)]):
        args = latent_inputs(dtype, n, batch, 3, 6, 4, 10, 5)
        args[3][..., 0].abs_()
        args[1][..., 0] += far
        q, q_rope, c, k_rope, UK, UV = (x.to(F64) for x in args)
        K = torch.cat([(c[..., None, :, :] @ UK.mT), k_rope[..., None, :, :].expand(*batch, 3, n, 4)], -1)
        S = (K @ torch.cat([q, q_rope], -1)[..., None]).squeeze(-1) / 10**0.5
        want = (S.softmax(-1)[..., None, :] @ (c[..., None, :, :] @ UV.mT)).squeeze(-2)
        near(called(lab.mla_decode, *args)[0], want, dtype)
    for dtype in (F32, BF16):
        short, long = (called(lab.mla_decode, *latent_inputs(dtype, n)) for n in (4096, 16384))
        for n, (_, read, counts) in ((4096, short), (16384, long)):
            assert read[2] <= n * 64 * dtype.itemsize and read[3] <= n * 16 * dtype.itemsize
            assert counts["flops"] <= 2 * 2 * 8 * (n * (64 + 16 + 64) + 64 * (24 + 20))
        assert short[2]["peak_bytes"] <= 4096 * 80 * 4 and long[2]["peak_bytes"] <= 1.5 * short[2]["peak_bytes"]
    args = latent_inputs(F32, 9)
    for i, wrong, match in [
        (1, args[1][:7], "q_rope.*7, 16"),
        (3, args[3][:8], "k_rope.*8, 16"),
        (3, args[3][:, :15], "k_rope.*9, 15"),
        (4, args[4][:, :, :63], "W_UK.*8, 24, 63"),
        (4, args[4][:, :23], "W_UK.*8, 23, 64"),
        (5, args[5][:7], "W_UV.*7, 20, 64"),
        (5, args[5][..., :60], "W_UV.*8, 20, 60"),
    ]:
        refuses(lab.mla_decode, (*args[:i], wrong, *args[i + 1 :], match))


def unpacked(packed, bits):
    return (packed.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits).flatten(-2)


def test_quantize_kv():
    cases = [(F32, (), 12, 8, 16, 4, 0), (F64, (2, 3), 6, 4, 24, 3, 100), (F16, (2,), 16, 8, 16, 8, 0)]
    for dtype, batch, n, d, d_v, group, offset in [
        *cases,
        (BF16, (2,), 16, 8, 16, 8, 0),
        (F32, (2,), 16, 8, 32, 16, -1),
    ]:
        for bits in (2, 4, 8):
            k, v = draw(dtype, (*batch, d, n), (*batch, n, d_v))
            k, v = (k + 4 * torch.randn(d, 1) + offset).to(dtype).mT, v + offset
            if offset == -1:
                k[..., 3], v[..., 5, :], k[..., 2], k[..., 1] = 2.5, 0, 1 + 2e-7 * TOKENS[:n], 5001.9
            cache = called(lab.quantize_kv, k, v, bits, group)[0]
            with AllocationMeter() as life:
                kept = lab.quantize_kv(k, v, bits, group)
                assert life.live_bytes <= sum(x.nbytes for x in kept.values() if isinstance(x, torch.Tensor))
            assert (cache.pop("bits"), cache.pop("group")) == (bits, group)
            for name, x, axis in (("k", k, -2), ("v", v, -1)):
                packed, scale, zero = parts = [cache.pop(name + of) for of in ("", "_scale", "_zero")]
                assert [each.dtype for each in parts] == [torch.uint8, F16, F16]
                groups = x.to(F64).unflatten(axis, (-1, group))
                low, high = groups.amin(axis), groups.amax(axis)
                for got, want in ((zero, low), (scale, (high - low) / (2**bits - 1))):
                    assert got.shape == want.shape and torch.allclose(got.to(F64), want, 2**-10, 2**-24)
                zero, scale = (each.to(F64).repeat_interleave(group, axis) for each in (zero, scale))
                steps = torch.where(scale == 0, 0, (x.to(F64) - zero) / scale).clamp(0, 2**bits - 1)
                codes = unpacked(packed, bits)
                assert codes.shape == x.shape and (codes - steps).abs().max() <= 0.501
            assert not cache
    kept = measure_peak(lab.quantize_kv, k, v, 4, group)
    assert kept.kept_bytes <= 1.5 * sum(x.nbytes for x in kept.result.values() if isinstance(x, torch.Tensor))
    k, v = draw(F32, (12, 8), (12, 16))
    for bits, group in ((1, 4), (3, 4), (16, 4), (0, 4), (4, 0), (4, 3), (4, 8), (4, 12), (4, 32)):
        refuses(lab.quantize_kv, (k, v, bits, group, "group" if bits == 4 else "bits"))
    far = k + 1e6 * (TOKENS[:12, None] == 3)
    wrong = [(k[:, :7], v, 4, 4, "k"), (k, v[:, :6], 2, 2, "v"), (k, v[:8], 4, 4, "v|k"), (k * 1e5, v, 4, 4, "k")]
    refuses(lab.quantize_kv, *wrong, (far, v, 2, 4, "k"), (k, v / 0, 4, 4, "v"))


def test_dequantize_kv():
    for bits, group, batch in ((2, 4, ()), (4, 3, (2,)), (8, 5, (2, 3))):
        sizes, cache, want = (("k", -2, 4 * group, 8), ("v", -1, 7, 8 * group)), {"bits": bits, "group": group}, []
        for name, axis, n, d in sizes:
            cache[name] = torch.randint(256, (*batch, n, d * bits // 8), dtype=torch.uint8)
            shape = (*batch, n // group, d) if name == "k" else (*batch, n, d // group)
            cache[f"{name}_scale"], cache[f"{name}_zero"] = torch.rand(shape).half(), 50 * torch.randn(shape).half()
            scale, zero = (cache[name + of].to(F64).repeat_interleave(group, axis) for of in ("_scale", "_zero"))
            want.append(unpacked(cache[name], bits) * scale + zero)
        before = {name: x.clone() for name, x in cache.items() if isinstance(x, torch.Tensor)}
        for got, right in zip(lab.dequantize_kv(cache), want, strict=True):
            assert (got.dtype, got.shape) == (F32, right.shape) and torch.allclose(got.to(F64), right, 1e-5, 1e-5)
        assert all(torch.equal(x, cache[name]) for name, x in before.items())


def plain(q, k, v):
    S = q @ k.mT * q.shape[-1] ** -0.5
    return S.softmax(-1).nan_to_num() @ v, S.logsumexp(-1)


def test_attention_with_sinks():
    cases = [(7, 20, 3, 2, ()), (20, 20, 4, 3, (2,)), (5, 30, 50, 4, ()), (1, 40, 5, 0, (2, 3)), (9, 6, 2, 1, ())]
    for dtype, (n_q, n_k, window, sinks, batch) in product(TOLERANCES, [*cases, (6, 6, 1, 9, ())]):
        q, k, v = draw(dtype, (*batch, n_q, 8), (*batch, n_k, 8), (*batch, n_k, 5))
        if dtype == F64 and window == 4:
            q[..., 3], k[..., 3] = 1e7, k[..., 3].abs() - 5  # all scores are far below 0, rotated or not
        k[..., (TOKENS[:n_k] >= sinks) & (TOKENS[:n_k] <= n_k - n_q - window), :] = torch.nan  # no query sees them
        rows, tokens = [], TOKENS[:n_k]
        for i in range(n_q):
            own = i + n_k - n_q
            seen = tokens[(tokens <= own) & ((tokens < sinks) | (tokens > own - window))]
            row = lab.rotate(q[..., i : i + 1, :].to(F64), TOKENS[[max(len(seen) - 1, 0)]])
            rows.append(plain(row, lab.rotate(k[..., seen, :].to(F64), TOKENS[: len(seen)]), v[..., seen, :].to(F64)))
        got = called(lab.attention_with_sinks, q, k, v, window, sinks)[0]
        near(got[0], torch.cat([o for o, _ in rows], -2), dtype)
        near(got[1], torch.cat([lse for _, lse in rows], -1), F64 if dtype == F64 else F32)
    for dtype, n in ((F32, 2000), (BF16, 9000)):
        q, k, v = draw(dtype, (4, 32), (n, 32), (n, 32))
        _, read, counts = called(lab.attention_with_sinks, q, k, v, 50, 6)
        assert max(read) <= 2 * 4 * 56 * 32 * dtype.itemsize and counts["peak_bytes"] <= 16 * 2 * 59 * 32 * 4
    q, k, v = torch.zeros(2, 6), torch.zeros(5, 6), torch.zeros(5, 3)
    wrong = [(q, k, v, 0, 1, "window"), (q, k, v, 2, -1, "num_sinks"), (q[:, :5], k[:, :5], v, 2, 1, "5")]
    refuses(lab.attention_with_sinks, *wrong, (q[:, :4], k, v, 2, 1, "2, 4.*5, 6"), (q, k, v[:4], 2, 1, "5, 6.*4, 3"))


def test_attention_sink_logit():
    for dtype in TOLERANCES:
        for n_k, batch, far, at in [
            (9, (), 1, 0),
            (6, (2,), 1, 5),
            (0, (2, 3), 1, 2),
            (7, (), 1e3, 900),
            (7, (), -1e4, -9e3),
            (7, (), 1, 9e3),
            (7, (), 1, -torch.inf),
            (0, (), 1, -torch.inf),
            (7, (), 0, 1),
            (7, (), 0, -torch.inf),
        ]:
            q, k, v = draw(dtype, (*batch, 3, 4, 8), (*batch, 3, n_k, 8), (*batch, 3, n_k, 5))
            k[..., 0].abs_()
            q[..., 0] += far if dtype == F64 and far else 0
            if not far:
                q[..., 0], k[..., 0] = 1, -torch.inf
            for kept in (dtype, F32):
                sink = (torch.randn(3) + at).to(kept)
                both = sink.to(F64)[:, None, None].expand(*batch, 3, 4, 1)
                S = torch.cat([q.to(F64) @ k.to(F64).mT / 8**0.5, both], -1)
                got = called(lab.attention_sink_logit, q, k, v, sink)[0]
                near(got[0], S.softmax(-1)[..., :-1].nan_to_num() @ v.to(F64), dtype)
                near(got[1], S.logsumexp(-1), F64 if dtype == F64 else F32)
    q, k, v, sink = torch.zeros(2, 3, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 3), torch.zeros(2)
    wrong = [(q, k, v, torch.zeros(3), "sink"), (q, k, v, torch.zeros(2, 1), "sink"), (q, k, v, torch.zeros(1), "sink")]
    refuses(
        lab.attention_sink_logit, *wrong, (q[..., :4], k, v, sink, "3, 4.*5, 6"), (q, k, v[:, :4], sink, "5, 6.*4, 3")
    )


def plain_scheme(model, scheme, tokens):
    """The scheme with its bytes and error."""
    q, k, v = (model[name].to(F64) for name in "qkv")
    (heads, n, d), (exact, _), numbers = k.shape, plain(q, k, v), 2 * k.shape[0] * k.shape[2]
    kind, g = scheme["kind"], scheme.get("group", 1)
    nbytes = tokens * numbers * model["dtype_bytes"]
    if kind == "grouped":
        k, v = (x.unflatten(0, (-1, g)).mean(1).repeat_interleave(g, 0) for x in (k, v))
        nbytes //= g
    elif kind == "window":
        kept = (TOKENS[:n] < scheme["num_sinks"]) | (TOKENS[:n] >= n - scheme["window"])
        k, v = k[:, kept], v[:, kept]
        nbytes = min(tokens, scheme["window"] + scheme["num_sinks"]) * numbers * model["dtype_bytes"]
    elif kind == "latent":
        U, S, Vh = torch.linalg.svd(torch.cat([k, v]).transpose(0, 1).flatten(1), full_matrices=False)
        r = scheme["rank"]
        k, v = (U[:, :r] * S[:r] @ Vh[:r]).unflatten(1, (2, heads, d)).permute(1, 2, 0, 3)
        nbytes = tokens * r * model["dtype_bytes"]
    elif kind == "quantized":
        k, v = (x.to(F64) for x in lab.dequantize_kv(lab.quantize_kv(k, v, scheme["bits"], g)))
        nbytes = tokens * numbers * scheme["bits"] // 8 + 4 * (-(-tokens // g) * heads * d + tokens * heads * d // g)
    error = ((plain(q, k, v)[0] - exact).norm() / exact.norm()).item()
    return scheme | {"bytes": nbytes * model["layers"], "error": round(error, 9)}


def test_cache_under_budget():
    schemes = [{"kind": "quantized", "bits": bits, "group": 8} for bits in (2, 4, 8)]
    schemes += [{"kind": "full"}, {"kind": "grouped", "group": 2}, {"kind": "grouped", "group": 4}]
    schemes += [{"kind": "window", "window": w, "num_sinks": s} for w, s in ((6, 2), (15, 1), (30, 4), (40, 0))]
    schemes += [
        {"kind": "latent", "rank": 5},
        {"kind": "latent", "rank": 12},
        {"kind": "grouped", "group": 1, "note": 1},
    ]
    for tokens, layers, heads, d, e in ((1, 3, 4, 8, 2), (7, 1, 4, 8, 4), (100, 3, 8, 16, 2), (1501, 2, 4, 8, 2)):
        q, k, v = draw(F32, (heads, 3, d), (heads, 32, d), (heads, 32, d))
        model = {"layers": layers, "dtype_bytes": e, "q": 2 * q, "k": k, "v": v}
        alone = [plain_scheme(model, scheme, tokens) for scheme in schemes]
        everything, sizes = list(range(len(schemes))), {each["bytes"] for each in alone}
        for chosen in [*([each] for each in everything), everything, everything[::-1]]:
            model["schemes"] = [dict(schemes[each]) for each in chosen]
            for nbytes in (*sizes, min(sizes) - 1, 10**9):
                fitting = [alone[each] for each in chosen if alone[each]["bytes"] <= nbytes]
                if not fitting:
                    fewest = min(alone[each]["bytes"] for each in chosen)
                    refuses(lab.cache_under_budget, (model, nbytes, tokens, str(fewest)))
                    continue
                got, want = (
                    lab.cache_under_budget(model, nbytes, tokens),
                    min(fitting, key=lambda x: (x["error"], x["bytes"])),
                )
                error, allowed = got.pop("error"), 5e-3 if want["kind"] == "quantized" else 0
                assert type(got["bytes"]) is int and error == round(error, 9)
                assert got | {"error": want["error"]} == want and abs(error - want["error"]) <= allowed * error + 2e-9
                assert model["schemes"] == [schemes[each] for each in chosen]
    refuses(lab.cache_under_budget, (model, 10**9, 0, "tokens"))
    model["schemes"] = [{"kind": "full"}, {"kind": "pruned", "share": 0.5}]
    refuses(lab.cache_under_budget, (model, 10**9, 10, "pruned"))
