"""What every right sliding_window.py does, and no wrong one."""

import gc
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from sliding_window import BlockMaskCache, classify_tiles, memory_breakdown, sliding_window_attention, window_mask
from torch.nn.attention import flex_attention

from labkit.meters.arrays import measure_arrays
from labkit.meters.calls import ResultsSeen
from labkit.meters.products import ProductMeter
from labkit.meters.steps import kept_between, measured_step, penalised_gradients, step
from labkit.meters.tensors import measure_peak

F64 = torch.float64
CASES = [(64, 10, 16), (63, 200, 32), (70, 7, 100), (37, 3, 1), (33, 1, 16), (129, 40, 32), (1, 1, 1), (90, 64, 16)]


def hidden(n, window):
    ahead = torch.arange(n)[:, None] - torch.arange(n)
    return (ahead < 0) | (ahead >= window)


def refuses(function, *names):
    """Each of the arguments by turns is below 1; the others are 4."""
    for i, value in itertools.product(range(len(names)), [0, -1]):
        with pytest.raises(ValueError, match=names[i]):
            function(*[value if at == i else 4 for at in range(len(names))])


def test_window_mask():
    for n, window in itertools.product([1, 2, 7, 33], [1, 2, 5, 32, 33, 34, 100]):
        mask = window_mask(n, window)
        assert mask.dtype == torch.bool and torch.equal(mask, hidden(n, window))
    for measure in (measure_peak, measure_arrays):
        assert measure(window_mask, 512, 33).peak_bytes <= 4 * 512 * 512 + 64 * 512
    refuses(window_mask, "seq_len", "window")


def kinds(n, window, block):
    """The tiles' kinds, and their codes, from the mask."""
    seen = ~hidden(n, window).numpy()
    tiles = [[seen[a : a + block, b : b + block] for b in range(0, n, block)] for a in range(0, n, block)]
    codes = np.array([[0 if not tile.any() else 2 if tile.all() else 1 for tile in row] for row in tiles])
    return np.array(["empty", "partial", "full"])[codes], codes


def test_classify_tiles(rng):
    for n, window, block in [*CASES, (6, 4, 2), (64, 16, 16), *rng.integers(1, [80, 60, 20], (60, 3)).tolist()]:
        assert np.array_equal(classify_tiles(n, window, block), kinds(n, window, block)[0])
    for measure in (measure_arrays, measure_peak):
        assert measure(partial(classify_tiles, 1024, 300, 64)).peak_bytes <= 256 * 1024
        assert (
            measure(classify_tiles, 1024, 301, 64, **{"warm": False} if measure is measure_arrays else {}).peak_bytes
            < 2**18
        )
    refuses(classify_tiles, "seq_len", "window", "block")


def draw(n, batch=(), dtype=F64, d=8, d_v=5, scale=1.0, far=0.0):
    q, k, v, d_out = (torch.randn(*batch, n, width, dtype=F64) for width in (d, d, d_v, d_v))
    q[..., 0] += far
    k[..., 0] -= far
    return [x.to(dtype) for x in (q * scale, k, v, d_out)]


def plain(q, k, v, window):
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden(q.shape[-2], window), -torch.inf).softmax(-1) @ v


def exact(q, k, v, d_out, window):
    """The output and the gradients in float64."""
    out, _, gradients = step(partial(plain, window=window), [x.to(F64) for x in (q, k, v)], d_out.to(F64))
    return [out, *gradients]


def trained(q, k, v, d_out, window, block):
    attend = partial(sliding_window_attention, window=window, block=block)
    out, later, gradients = step(attend, [q, k, v], d_out, on_nan=True)
    assert torch.equal(out, later)
    return [out, *gradients]


def test_sliding_window_attention():
    for (n, window, block), batch, scale in itertools.product(CASES, [(), (2, 3)], [1, 300]):
        given = draw(n, batch, scale=scale)
        before = [x.clone() for x in given]
        torch.testing.assert_close(trained(*given, window, block), exact(*given, window), rtol=1e-8, atol=1e-8)
        assert all(map(torch.equal, given, before))
        single = [x.float() for x in given]
        if scale == 1:
            found = trained(*single, window, block)
            torch.testing.assert_close(found, [x.float() for x in exact(*single, window)], rtol=1e-4, atol=1e-4)
    far = draw(70, far=1e6)
    torch.testing.assert_close(trained(*far, 20, 16)[0], exact(*far, 20)[0], rtol=0.02, atol=0.02)
    for wrong in ((10, 6), (11, 5), (11, 6)), ((10, 6), (10, 6), (9, 3)), ((11, 6), (10, 6), (10, 3)):
        with pytest.raises(ValueError, match=r"\d+, \d+.*\d+, \d+"):
            sliding_window_attention(*map(torch.zeros, wrong), 3, 4)
    refuses(partial(sliding_window_attention, *torch.zeros(3, 4, 4)), "window", "block")
    given = draw(12)
    second = penalised_gradients(partial(sliding_window_attention, window=5, block=4), given[:3], given[3])
    wanted = penalised_gradients(partial(plain, window=5), given[:3], given[3])
    assert isinstance(second, str) or all(map(torch.allclose, second, wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sliding_window_attention_rounding(dtype):
    """Results are rounded once: their errors are spread little wider than by that alone."""
    given = draw(288, dtype=dtype, d=16, d_v=16)
    for got, want in zip(trained(*given, 256, 8), exact(*given, 256), strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).std() <= 1.35 * (want.to(dtype).double() - want).std()


def test_sliding_window_attention_cost():
    for n, window, block in [(500, 70, 32), (500, 1, 16), (300, 37, 96), (60, 37, 20), (1000, 40, 32)]:
        attend, (*inputs, d_out) = partial(sliding_window_attention, window=window, block=block), draw(n, d_v=8)
        visited = 2 * 8 * block**2 * (kinds(n, window, block)[1] > 0).sum()
        _, _, passes = measured_step(attend, inputs, d_out)
        for counts, products in zip(passes.values(), (2, 7), strict=True):
            assert not counts["fused"] and 0 < counts["flops"] <= 1.4 * products * visited
            assert counts["largest_bytes"] <= 8 * n * (window + 2 * block)
            assert counts["peak_bytes"] <= 8 * n * (8 * 12 + 4 * (window + 2 * block))
        assert kept_between(attend, inputs)[0] <= 8 * n * (4 * (window + 2 * block) + 64)
        with ProductMeter() as meter:
            attend(*inputs)
        assert 2 * sum(block in shape for shape in meter.shapes) >= len(meter.shapes)
        assert measure_arrays(attend, *inputs).peak_bytes <= 8 * n * (window + 2 * block) / 2 + 50_000


def test_BlockMaskCache():
    with pytest.raises(ValueError, match="maxsize"):
        BlockMaskCache(0)
    keys = [(64, 16, 8), (63, 16, 8), (64, 8, 16), (64, 20, 8), (64, 16, 4), (64, 16, 8, "meta")]
    cache, other = BlockMaskCache(6), BlockMaskCache(1)
    masks = [cache.get(*key) for key in keys]
    for key, mask in zip(keys[:-1], masks, strict=False):
        assert mask.dtype == torch.int8 and np.array_equal(mask, kinds(*key)[1])
        assert cache.get(*key, torch.device("cpu")) is cache.get(*key, "cpu:0") is cache.get(*key) is mask
    assert masks[-1].device.type == "meta" and cache.get(64, 16, 8, torch.device("meta")) is masks[-1]
    assert len(cache) == 6 and len(other) == 0
    for wrong in ((0, 3, 4), (64, 0, 8), (64, 16, 0)):
        with pytest.raises(ValueError, match=r"seq_len|window|block"):
            cache.get(*wrong)
    cache.get(*keys[0])
    cache.get(8, 3, 2)  # the least recently used mask goes: the second
    held = [cache.get(*key) is mask for key, mask in zip(keys, masks, strict=True) if key != keys[1]]
    assert len(cache) == 6 and all(held) and cache.get(*keys[1]) is not masks[1]
    cache.clear()
    assert len(cache) == 0 and cache.get(*keys[0]) is not masks[0]
    again = [cache.get(*key) for key in keys]
    assert len(cache) == 6 and all(map(lambda key, mask: cache.get(*key) is mask, keys, again))
    many = BlockMaskCache(70)
    first = [many.get(80, 1 + i, 8) for i in range(70)]
    assert len(many) == 70 and many.get(80, 1, 8) is first[0]

    def filled(clears):
        cache = BlockMaskCache(2)
        for window in range(1, 9):
            cache.get(1024, window, 8)
        cache.clear() if clears else None
        gc.collect()
        return cache

    for measure, clears in itertools.product([measure_peak, measure_arrays], [True, False]):
        assert measure(filled, clears).kept_bytes <= 2 * 128**2 * (not clears) + 4000


VARIANTS = "naive_mask", "causal_sdpa", "tiled_window", "flex_block_mask"


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_memory_breakdown_runs(monkeypatch, variant):
    """What a variant makes of its q, k and v; how often its mask, or with which window its attention is called."""
    calls = []
    for function in (window_mask, sliding_window_attention):
        noted = partial(lambda function, *args: calls.append(args[-2:]) or function(*args), function)
        monkeypatch.setattr(f"sliding_window.{function.__name__}", noted)
    with ResultsSeen((2, 3, 80, 8)) as seen:
        found = memory_breakdown(variant, 2, 3, 80, 8, 20, 16, torch.float32)
    distinct = [x for i, x in enumerate(seen.results) if not any(torch.equal(x, y) for y in seen.results[:i])]
    want = plain(*distinct[:3], 80 if variant == "causal_sdpa" else 20)  # q, k and v come first
    assert any(torch.allclose(x, want, atol=1e-4) for x in distinct)
    assert calls == {"naive_mask": [(80, 20)], "tiled_window": [(20, 16)]}.get(variant, [])
    parts = "mask", "output", "saved", "gradients", "workspace"
    assert found["total"] == sum(found[part] for part in parts) and all(isinstance(x, int) for x in found.values())


@pytest.mark.filterwarnings("ignore")
def test_memory_breakdown_flex(monkeypatch):
    calls = []

    def noted(q, k, v, original=flex_attention.flex_attention, **options):
        calls.append((q, k, v, original(q, k, v, **options)))
        return calls[-1][3]

    monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", noted)
    found = memory_breakdown("flex_block_mask", 1, 1, 140, 8, 20, 128, torch.float32)
    assert found["total"] < found["mask_building"]
    for q, k, v, out in calls:
        assert torch.allclose(out, plain(q, k, v, 20), atol=1e-4)
    assert calls


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore")
def test_memory_breakdown(variant):
    trains, is_naive, n, one = variant != "flex_block_mask", variant == "naive_mask", 192, 2 * 3 * 192 * 16
    for dtype, checkpointed in itertools.product([torch.float32, torch.bfloat16], [False, True]):
        found = memory_breakdown(variant, 2, 3, n, 16, 20, 16, dtype, checkpointed)
        weights = 6 * n * n * dtype.itemsize
        assert found["output"] == one * dtype.itemsize and found["gradients"] == 3 * found["output"] * trains
        blocks = n // 16
        assert found["mask"] == (n * n if is_naive else 0 if trains else 4 * 4 * (blocks + blocks**2))
        assert (found["mask_building"] == 0) if not found["mask"] else (found["mask_building"] >= found["mask"])
        assert trains or found["mask_building"] >= 2 * n * n
        if checkpointed and trains:
            assert 1024 <= found["saved"] <= 16 * 1024
        elif is_naive:
            assert 0.7 * weights <= found["saved"] <= 4 * weights
        else:
            assert found["saved"] <= 4 * 6 * n * (4 * (20 + 2 * 16) if variant == "tiled_window" else 1) + 1024
        if variant in ("naive_mask", "flex_block_mask"):
            assert found["total"] >= (2.4 if is_naive and not checkpointed else 1) * weights
    with pytest.raises(ValueError, match="tiled_window"):
        memory_breakdown("flash", 1, 1, 8, 4, 2, 2, torch.float32)
