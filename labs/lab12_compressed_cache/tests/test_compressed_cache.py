"""Lab 12's suite: a cache of latent vectors, of few bits, of a window with sinks, and the one that suits a budget."""

import math

import pytest
import torch
from compressed_cache import (
    attention_sink_logit,
    attention_with_sinks,
    cache_under_budget,
    dequantize_kv,
    mla_decode,
    quantize_kv,
)

from labkit.meters.calls import UninitialisedIsNaN
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labkit.testing.attention.tensor_cases import strided
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    assert_at_most,
    assert_equal,
    assert_raises,
    assert_tuple,
    require,
)
from labkit.testing.compressed.budgets import apart, assert_scheme, drawn_model, scheme_bytes
from labkit.testing.compressed.latent import LatentCase
from labkit.testing.compressed.quantized import QuantizedCase, assert_quantized, assert_restored
from labkit.testing.compressed.sink_logits import LogitCase, logit_suspects
from labkit.testing.compressed.sinks import SinkCase, sink_suspects
from labkit.testing.decoding.steps import assert_own_products, two_results
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
FUNCTIONS = {"mla": mla_decode, "sinks": attention_with_sinks, "logit": attention_sink_logit}
HALF = [torch.float16, torch.bfloat16]
OVERFLOW = "exp overflows: no score and no sink may enter exp without a maximum taken from it"
SHORT_SUMS = "sums of half-precision inputs belong in float32, and are rounded once, at the end"
NO_KEYS = "nothing is seen: the maximum is −inf, −inf − (−inf) is NaN, and so is 0 / 0"
STRIDED = "a tensor whose axes are exchanged in memory: its rows are not adjacent"


@probe
def counted(task, *arguments):
    """What attention returns, and what it took: bytes read of its arguments, peak, products, fused calls."""
    watched = dict(zip("abcdef", (x for x in arguments if isinstance(x, torch.Tensor)), strict=False))
    with AllocationMeter() as memory, ProductMeter() as products, MovedBytes(**watched) as moved:
        result = FUNCTIONS[task](*arguments)
    told = {"read": list(moved.read.values()), "peak_bytes": memory.peak_bytes}
    return result, told | {"fused": products.fused, "flops": products.flops}


@probe
def on_nan(task, *arguments):
    """What attention returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return FUNCTIONS[task](*arguments)


# Latent vectors


def assert_latent(case, hint="", nan_hint=""):
    case.check(mla_decode(*case.arguments), hint=hint, nan_hint=nan_hint)


class TestMlaDecode:
    """One latent vector a token, read once, and never a key or a value of a head."""

    def test_worked_example(self):
        one = torch.ones(1, 1)
        c_kv, W_UK, W_UV = torch.tensor([[0.0], [1.0]]), torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 3.0)
        got = mla_decode(one * math.log(3) / math.sqrt(2), 0 * one, c_kv, torch.zeros(2, 1), W_UK, W_UV)
        require(got.shape == (1, 1), f"o has shape {tuple(got.shape)}, expected (1, 1)")
        require(abs(float(got) - 2.25) < 1e-5, f"o is {float(got):.6g}, expected 3 · 3/4 = 2.25")

    @pytest.mark.parametrize("heads", [1, 2, 5])
    def test_heads(self, rng, heads):
        assert_latent(LatentCase(rng, heads=heads, n_tokens=33))

    @pytest.mark.parametrize("widths", [(8, 4, 12, 6), (6, 2, 6, 6), (5, 7, 3, 4), (16, 8, 32, 16)])
    def test_widths(self, rng, widths):
        d_n, d_r, d_c, d_v = widths
        hint = "W_UK[h] is (d_n, d_c): the key is W_UK[h] c, the value W_UV[h] c"
        assert_latent(LatentCase(rng, d_n=d_n, d_r=d_r, d_c=d_c, d_v=d_v), hint=hint)

    @pytest.mark.parametrize("batch", [(3,), (2, 3)])
    def test_leading_axes(self, rng, batch):
        assert_latent(LatentCase(rng, batch=batch), hint="axes before the heads are a batch; the matrices have none")

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            heads, n_tokens, d_n, d_r, d_c, d_v = rng.integers((1, 2, 2, 2, 2, 2), (6, 90, 20, 12, 30, 20)).tolist()
            sizes = {"heads": heads, "n_tokens": n_tokens, "d_n": d_n, "d_r": d_r, "d_c": d_c, "d_v": d_v}
            assert_latent(LatentCase(rng, **sizes))

    def test_many_blocks_of_tokens(self, rng):
        hint = "blocks of tokens do not fit together: l and o are rescaled when the maximum moves, and the last block "\
               "is smaller"  # fmt: skip
        assert_latent(LatentCase(rng, n_tokens=1037, logit_scale=4.0), hint=hint)

    @robust
    @pytest.mark.parametrize("n_tokens", [0, 1])
    def test_hardly_any_tokens(self, rng, n_tokens):
        assert_latent(LatentCase(rng, n_tokens=n_tokens), hint="without a token o is 0", nan_hint=NO_KEYS)

    @robust
    @pytest.mark.parametrize("dtype", [*HALF, torch.float64])
    def test_other_dtypes(self, rng, dtype):
        assert_latent(LatentCase(rng, n_tokens=200, logit_scale=4.0, dtype=dtype), hint=SHORT_SUMS)

    @robust
    def test_large_logits(self, rng):
        assert_latent(LatentCase(rng, n_tokens=300, logit_scale=300), hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = LatentCase(rng, n_tokens=37)
        case.check(on_nan("mla", *case.arguments), nan_hint=NAN_FROM_EMPTY)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = LatentCase(rng, n_tokens=20, batch=(2,))
        case.c_kv, case.k_rope = (x.mT.contiguous().mT for x in (case.c_kv, case.k_rope))
        with left_alone(("q_nope", "q_rope", "c_kv", "k_rope", "W_UK", "W_UV"), case.arguments):
            assert_latent(case, hint=STRIDED)

    @small
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_the_cache_is_read_once_and_never_expanded(self, rng, dtype):
        case = LatentCase(rng, heads=8, n_tokens=4096, d_n=32, d_r=16, d_c=64, d_v=32, dtype=dtype)
        got, told = counted("mla", *case.arguments)
        case.check(got)
        name = "mla_decode (8 heads, N = 4096, d_c = 64, d_r = 16)"
        assert_own_products(name, told)
        absorbed = 2 * 8 * (4096 * (64 + 16 + 64) + 2 * 32 * 64)
        hint = "keys or values of the heads are made, a block at a time: W_UK belongs to the query, W_UV to the sum"
        assert_at_most(f"what {name} multiplies", told["flops"], 2 * absorbed, unit="FLOPs", hint=hint)
        in_float32 = 4096 * (64 + 16) * 4
        hint = (
            "keys or values of the heads are made, or the whole cache is copied: W_UK belongs to the query, W_UV to "
            "the sum, and a block of the cache is copied at a time"
        )
        assert_at_most(f"the peak of {name}", told["peak_bytes"], in_float32 // 2, hint=hint)
        for which, x, read in zip(("c_kv", "k_rope"), (case.c_kv, case.k_rope), told["read"][2:4], strict=True):
            hint = f"{which} is read again: a block is copied once, and serves as keys and as values"
            assert_at_most(f"what {name} reads of {which}, which holds {x.nbytes:,} bytes,", read, x.nbytes, hint=hint)
            require(read >= x.nbytes, f"{name} reads {read:,} of {x.nbytes:,} bytes of {which}: every token counts")

    @small
    def test_memory_does_not_grow_with_the_cache(self, rng):
        peaks = []
        for n_tokens in (4096, 16_384):
            case = LatentCase(rng, heads=2, n_tokens=n_tokens, d_n=8, d_r=4, d_c=32, d_v=8)
            peaks.append(counted("mla", *case.arguments)[1]["peak_bytes"])
        hint = "what is held grows with the number of tokens: a block at a time, and three sums a head"
        assert_at_most("the peak at 16,384 tokens, from that at 4,096,", peaks[1], 2 * peaks[0], hint=hint)

    @pytest.mark.outside(mib=32)
    @small
    def test_far_from_expanded(self, outside):
        generator = torch.Generator().manual_seed(12)
        shapes = (8, 64), (8, 16), (65_536, 32), (65_536, 16), (8, 64, 32), (8, 64, 32)
        arguments = [torch.randn(shape, generator=generator) / 4 for shape in shapes]
        got = outside(mla_decode, *arguments)
        q_nope, q_rope, c_kv, k_rope, W_UK, W_UV = arguments
        scores = (q_nope[3] @ W_UK[3] @ c_kv.T + q_rope[3] @ k_rope.T) / math.sqrt(80)
        off = float((got[3] - W_UV[3] @ (scores.softmax(-1) @ c_kv)).abs().max())
        require(off < 1e-4, f"o of head 3 is off by {off:.3g} at N = 65,536")

    @refuses
    @pytest.mark.parametrize(
        ("name", "shape"),
        [("q_rope", (2, 4)), ("k_rope", (5, 3)), ("k_rope", (6, 4)), ("W_UK", (3, 8, 7)), ("W_UV", (2, 6, 12))],
    )
    def test_bad_shapes(self, rng, name, shape):
        case = LatentCase(rng, n_tokens=5)
        setattr(case, name, torch.zeros(shape))
        assert_raises(ValueError, lambda: mla_decode(*case.arguments), when=f"for {name} of shape {shape}",
                      mentions=[name, str(shape)])  # fmt: skip


# Few bits


def keys_and_values(rng, *, n_tokens=16, d=8, d_v=16, batch=(2,), dtype=torch.float32, offset=0.0):
    """Keys whose channels lie at different places, as real ones do, and values."""
    k = rng.standard_normal((*batch, n_tokens, d)) + 4 * rng.standard_normal(d) + offset
    v = rng.standard_normal((*batch, n_tokens, d_v)) + offset
    return torch.from_numpy(k).to(dtype), torch.from_numpy(v).to(dtype)


@probe
def kept_by_quantizing(k, v, bits, group):
    """The bytes of memory that each tensor of the cache keeps alive, and of its own numbers."""
    cache = quantize_kv(k, v, bits, group)
    tensors = {name: x for name, x in cache.items() if isinstance(x, torch.Tensor)}
    return {name: (x.untyped_storage().nbytes(), x.nbytes) for name, x in tensors.items()}


by_bits = pytest.mark.parametrize("bits", [2, 4, 8])


class TestQuantizeKv:
    """Keys by channel, values by token, and not a byte more than is said."""

    def test_worked_example(self):
        v = torch.tensor([[1.0, 2.0, 4.0, 2.4]]).repeat(4, 1)
        got = quantize_kv(torch.zeros(4, 4), v, 2, 4)
        told = {name: got[name].flatten()[:1].tolist() for name in ("v", "v_zero", "v_scale")}
        require(told == {"v": [116], "v_zero": [1.0], "v_scale": [1.0]},
                f"the values 1, 2, 4, 2.4 in 2 bits give {told}, expected zero 1, scale 1, byte 116")  # fmt: skip

    @by_bits
    @pytest.mark.parametrize("group", [4, 8, 16])
    def test_groups(self, rng, bits, group):
        k, v = keys_and_values(rng)
        assert_quantized(quantize_kv(k, v, bits, group), k, v, bits, group)

    @by_bits
    def test_sizes_drawn_at_random(self, rng, bits):
        for _ in range(4):
            group, n, d, wide, *batch = rng.integers(1, (7, 6, 5, 5, 3, 3)).tolist()
            sizes = {"n_tokens": group * n, "d": 4 * d, "d_v": 4 * group * wide, "batch": tuple(batch)}
            k, v = keys_and_values(rng, **sizes)
            assert_quantized(quantize_kv(k, v, bits, group), k, v, bits, group)

    def test_no_leading_axes(self, rng):
        k, v = keys_and_values(rng, batch=())
        assert_quantized(quantize_kv(k, v, 4, 8), k, v, 4, 8)

    @robust
    @by_bits
    def test_numbers_far_from_zero(self, rng, bits):
        k, v = keys_and_values(rng, offset=100)
        hint = "codes are computed with the zero and the scale as they are kept, rounded to float16"
        assert_quantized(quantize_kv(k, v, bits, 4), k, v, bits, 4, hint)

    @robust
    @by_bits
    def test_groups_of_equal_numbers(self, rng, bits):
        k, v = keys_and_values(rng)
        k[..., 3], v[..., 5, :] = 2.5, 0.0
        hint = "the range is 0, and 0 / 0 is NaN, which is any code: where the scale is 0, codes are 0"
        assert_quantized(quantize_kv(k, v, bits, 8), k, v, bits, 8, hint)

    @robust
    def test_a_range_that_float16_does_not_see(self, rng):
        k, v = keys_and_values(rng)
        k[..., 2] = 1 + 2e-7 * torch.arange(16.0)
        assert_quantized(quantize_kv(k, v, 8, 16), k, v, 8, 16, "a scale may round to 0: ask the rounded one")

    @robust
    @pytest.mark.parametrize("dtype", [*HALF, torch.float64])
    def test_other_dtypes(self, rng, dtype):
        k, v = keys_and_values(rng, dtype=dtype)
        assert_quantized(quantize_kv(k, v, 4, 8), k, v, 4, 8, "steps are computed in float32 at least")

    @robust
    def test_no_tokens(self, rng):
        k, v = keys_and_values(rng, n_tokens=0)
        assert_quantized(quantize_kv(k, v, 4, 8), k, v, 4, 8)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        k, v = (strided(x)[0] for x in keys_and_values(rng, batch=(2, 3)))
        with left_alone("kv", (k, v)):
            assert_quantized(quantize_kv(k, v, 4, 8), k, v, 4, 8, STRIDED)

    @small
    @by_bits
    @pytest.mark.parametrize("group", [8, 32])
    def test_exact_bytes(self, rng, bits, group):
        k, v = keys_and_values(rng, n_tokens=64, d=32, d_v=64)
        kept = kept_by_quantizing(k, v, bits, group)
        count = k.numel() + v.numel()
        want = count * (bits + 32 // group) // 8
        found = sum(own for _, own in kept.values())
        one_byte, wide = count + count * 4 // group, count * bits // 8 + count * 8 // group
        usual = {"a code takes a whole byte: 8 / bits of them share one": one_byte,
                 "scales and zeros are float32: they are kept in float16": wide}  # fmt: skip
        assert_equal(f"the bytes of {count} numbers in {bits} bits, groups of {group}", found, want, suspects=usual,
                     hint=f"bits + 32 / group = {bits + 32 / group:g} bits a number")  # fmt: skip
        for name, (alive, own) in kept.items():
            hint = f"{name} is a view of something larger, which stays alive with it: keep a tensor of its own"
            assert_at_most(f"the memory that {name} keeps alive", alive, own, hint=hint)

    @refuses
    @pytest.mark.parametrize(
        ("bits", "group", "name"),
        [(3, 4, "bits"), (16, 4, "bits"), (0, 4, "bits"), *((4, group, "group") for group in (0, 3, 8, 12, 32))],
    )
    def test_bad_numbers(self, rng, bits, group, name):
        k, v = keys_and_values(rng, n_tokens=12)
        when = f"for {bits} bits, groups of {group}, 12 tokens and d_v = 16"
        assert_raises(ValueError, lambda: quantize_kv(k, v, bits, group), when=when, mentions=[name])

    @refuses
    def test_what_does_not_fit(self, rng):
        k, v = keys_and_values(rng)
        for wrong, when, name in [
            ((k[..., :7], v, 4, 4), "for a k 7 wide and 4 bits", "k"),
            ((k, v[..., :6], 2, 2), "for a v 6 wide and 2 bits", "v"),
            ((k, v[..., :8, :], 4, 4), "when k and v differ in tokens", "v"),
            ((k * 1e5, v, 4, 4), "for a k beyond float16", "k"),
            (
                (k * 0 + 1e6 * (torch.arange(16.0)[:, None] == 3), v, 2, 16),
                "for a k whose scale is beyond float16",
                "k",
            ),
            ((k, v / 0, 4, 4), "for a v of infinities", "v"),
        ]:
            assert_raises(ValueError, lambda wrong=wrong: quantize_kv(*wrong), when=when, mentions=[name])


class TestDequantizeKv:
    """The way back, from a cache that the tests have packed."""

    def test_worked_example(self):
        sizes = torch.ones(1, 4, dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
        byte = torch.full((4, 1), 116, dtype=torch.uint8)
        cache = {"k": byte, "k_scale": sizes[0], "k_zero": 0 * sizes[0], "v": byte, "v_scale": sizes[1],
                 "v_zero": sizes[1], "bits": 2, "group": 4}  # fmt: skip
        got = assert_tuple("dequantize_kv's result", dequantize_kv(cache), ("k", "v"))
        require(got[1][0].tolist() == [1, 2, 4, 2], f"the byte 116 with scale 1 and zero 1 gives {got[1][0].tolist()}, "
                "expected 1, 2, 4, 2")  # fmt: skip
        assert_restored(got, cache)

    @by_bits
    @pytest.mark.parametrize("group", [4, 8, 16])
    def test_groups(self, rng, bits, group):
        cache = QuantizedCase(*keys_and_values(rng), bits, group).cache
        assert_restored(dequantize_kv(cache), cache)

    @by_bits
    def test_sizes_drawn_at_random(self, rng, bits):
        for _ in range(4):
            group, n, d, wide, *batch = rng.integers((2, 2, 1, 1, 1, 1), (7, 6, 5, 5, 3, 3)).tolist()
            sizes = {"n_tokens": group * n, "d": 4 * d, "d_v": 4 * group * wide, "batch": tuple(batch)}
            cache = QuantizedCase(*keys_and_values(rng, **sizes), bits, group).cache
            assert_restored(dequantize_kv(cache), cache)

    def test_no_leading_axes(self, rng):
        cache = QuantizedCase(*keys_and_values(rng, batch=()), 4, 8).cache
        assert_restored(dequantize_kv(cache), cache)

    @robust
    @by_bits
    def test_numbers_far_from_zero(self, rng, bits):
        cache = QuantizedCase(*keys_and_values(rng, offset=1000), bits, 4).cache
        hint = "code · scale + zero is computed in float32: float16 has steps of 0.5 at 1000"
        assert_restored(dequantize_kv(cache), cache, hint=hint)

    @robust
    def test_groups_of_equal_numbers(self, rng):
        k, v = keys_and_values(rng)
        k[..., 3], v[..., 5, :] = 2.5, -1.0
        cache = QuantizedCase(k, v, 4, 8).cache
        assert_restored(dequantize_kv(cache), cache)

    @robust
    def test_no_tokens(self, rng):
        cache = QuantizedCase(*keys_and_values(rng, n_tokens=0), 4, 8).cache
        assert_restored(dequantize_kv(cache), cache)

    @robust
    def test_the_cache_stays(self, rng):
        cache = QuantizedCase(*keys_and_values(rng), 4, 8).cache
        tensors = {name: x for name, x in cache.items() if isinstance(x, torch.Tensor)}
        with left_alone(tensors, tensors.values()):
            assert_restored(dequantize_kv(cache), cache)


# The first tokens and the last


def assert_sinks(case, hint="", nan_hint=""):
    got = two_results("attention_with_sinks", attention_with_sinks(*case.arguments))
    case.check(got, sink_suspects(case), hint=hint, nan_hint=nan_hint)


class TestAttentionWithSinks:
    """What stays in the cache, and where it lies there."""

    def test_worked_example(self):
        q, k = torch.zeros(1, 2), torch.zeros(10, 2)
        o, lse = attention_with_sinks(q, k, torch.eye(10), 3, 2)
        seen = (o[0] > 0).nonzero().flatten().tolist()
        require(seen == [0, 1, 7, 8, 9], f"the last of 10 tokens sees {seen} with window 3 and two sinks; expected "
                "0, 1, 7, 8 and 9")  # fmt: skip
        require(abs(float(lse) - math.log(5)) < 1e-5, f"lse of five scores 0 is {float(lse):.6g}, expected ln 5")

    def test_places_in_the_cache(self):
        q = k = torch.ones(1, 10, 2)
        _, lse = attention_with_sinks(q[:, -1:], k, torch.ones(1, 10, 1), 3, 2)
        scores = [2 * math.cos(place) / math.sqrt(2) for place in (4, 3, 2, 1, 0)]
        want = math.log(sum(map(math.exp, scores)))
        by_text = math.log(sum(math.exp(2 * math.cos(n) / math.sqrt(2)) for n in (9, 8, 2, 1, 0)))
        near = abs(float(lse) - by_text) < 1e-4
        require(abs(float(lse) - want) < 1e-4, f"with all q and k 1, window 3 and two sinks, lse of token 9 is "
                f"{float(lse):.5f}, expected {want:.5f}: its keys are 4, 3, 2, 1 and 0 places away"
                + ("\nUsual cause: they are 9, 8, 2, 1 and 0 tokens away in the text" if near else ""))  # fmt: skip

    @pytest.mark.parametrize(("window", "num_sinks"), [(4, 2), (1, 1), (3, 4), (7, 0), (1, 5), (30, 4)])
    def test_windows(self, rng, window, num_sinks):
        assert_sinks(SinkCase(rng, window=window, num_sinks=num_sinks, n_queries=6, n_keys=25))

    @pytest.mark.parametrize("n_queries", [1, 2, 17])
    def test_the_whole_text_and_its_end(self, rng, n_queries):
        assert_sinks(SinkCase(rng, window=5, num_sinks=3, n_queries=n_queries, n_keys=17))

    @pytest.mark.parametrize("batch", [(3,), (2, 3)])
    def test_leading_axes(self, rng, batch):
        assert_sinks(SinkCase(rng, window=4, num_sinks=2, batch=batch))

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            window, num_sinks, n_queries, more, half, d_v = rng.integers((2, 1, 1, 2, 1, 2), (12, 6, 12, 30, 9, 9))
            sizes = {"n_queries": int(n_queries), "n_keys": int(n_queries + more), "d": 2 * int(half), "d_v": int(d_v)}
            assert_sinks(SinkCase(rng, window=int(window), num_sinks=int(num_sinks), **sizes))

    @robust
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(9, 4), (3, 1), (4, 0)])
    def test_more_queries_than_keys(self, rng, n_queries, n_keys):
        case = SinkCase(rng, window=3, num_sinks=2, n_queries=n_queries, n_keys=n_keys)
        assert_sinks(case, "a query before the first key sees nothing: o 0, lse −inf", NO_KEYS)

    @robust
    @pytest.mark.parametrize("dtype", [*HALF, torch.float64])
    def test_other_dtypes(self, rng, dtype):
        assert_sinks(SinkCase(rng, window=60, num_sinks=4, n_keys=100, d=16, dtype=dtype), SHORT_SUMS)

    @robust
    def test_large_logits(self, rng):
        assert_sinks(SinkCase(rng, window=6, num_sinks=3, logit_scale=300), OVERFLOW, OVERFLOW)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = SinkCase(rng, window=4, num_sinks=2)
        got = two_results("attention_with_sinks", on_nan("sinks", *case.arguments))
        case.check(got, sink_suspects(case), nan_hint=NAN_FROM_EMPTY)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = SinkCase(rng, window=4, num_sinks=2, batch=(2, 3))
        case.q, case.k, case.v = strided(case.q, case.k, case.v)
        with left_alone("qkv", (case.q, case.k, case.v)):
            assert_sinks(case, STRIDED)

    @small
    @pytest.mark.parametrize("n_queries", [1, 4])
    def test_nothing_that_was_forgotten_is_read(self, rng, n_queries):
        case = SinkCase(rng, window=60, num_sinks=4, n_queries=n_queries, n_keys=2048, d=32, d_v=32, batch=(2,))
        unseen = slice(4, 2048 - 60 - n_queries + 1)
        k, v = case.k.clone(), case.v.clone()
        k[..., unseen, :] = v[..., unseen, :] = torch.nan
        got = two_results("attention_with_sinks", attention_with_sinks(case.q, k, v, 60, 4))
        hint = "tokens are read that no query sees, and masked: a window costs what it keeps"
        told = f"NaN laid into tokens that no query sees reaches o\nUsual cause: {hint}"
        require(not got["o"].isnan().any(), told)
        got, told = counted("sinks", *case.arguments)
        case.check(two_results("attention_with_sinks", got), sink_suspects(case))
        name = f"attention_with_sinks (window 60, 4 sinks, {n_queries} queries, N_k = 2048)"
        assert_own_products(name, told)
        kept = (4 + 60 + n_queries - 1) * 2 * 32 * 4
        most = 2 * n_queries * (4 + 60) * 2 * 32 * 4  # each query may read its keys for itself, and turn them as views
        for which, read in zip("kv", told["read"][1:3], strict=True):
            assert_at_most(f"what {name} reads of {which}", read, most, hint=hint)
        assert_at_most(f"the peak of {name}", told["peak_bytes"], 16 * kept,
                       hint="memory grows with the text: it is for the sinks and the window")  # fmt: skip

    @refuses
    @pytest.mark.parametrize(
        ("window", "num_sinks", "name"), [(0, 2, "window"), (-1, 2, "window"), (3, -1, "num_sinks")]
    )
    def test_bad_numbers(self, rng, window, num_sinks, name):
        case = SinkCase(rng, window=3, num_sinks=2)
        assert_raises(ValueError, lambda: attention_with_sinks(case.q, case.k, case.v, window, num_sinks),
                      when=f"for window {window} and {num_sinks} sinks", mentions=[name])  # fmt: skip

    @refuses
    def test_bad_shapes(self):
        q, k, v = torch.zeros(2, 6), torch.zeros(5, 6), torch.zeros(5, 3)
        for wrong, when, said in [
            ((q, k, v[:4]), "when k and v differ in N_k", ("(5, 6)", "(4, 3)")),
            ((q[:, :4], k, v), "when q and k differ in d", ("(2, 4)", "(5, 6)")),
            ((q[:, :5], k[:, :5], v), "for an odd d", ("5",)),
        ]:
            assert_raises(ValueError, lambda wrong=wrong: attention_with_sinks(*wrong, 3, 1), when=when, mentions=said)


# A number in the denominator


def assert_logit(case, hint="", nan_hint=""):
    got = two_results("attention_sink_logit", attention_sink_logit(*case.arguments))
    case.check(got, logit_suspects(case), hint=hint, nan_hint=nan_hint)


class TestAttentionSinkLogit:
    """Weights that need not add up to 1."""

    def test_worked_example(self):
        q, k, v = torch.ones(1, 1, 1), torch.zeros(1, 2, 1), torch.tensor([[[2.0], [4.0]]])
        got = two_results("attention_sink_logit", attention_sink_logit(q, k, v, torch.zeros(1)))
        o, lse = float(got["o"]), float(got["lse"])
        near = abs(o - 2) < 1e-5 and abs(lse - math.log(3)) < 1e-5
        require(near, f"o is {o:.5g} and lse {lse:.5g}; expected (2 + 4) / 3 = 2 and ln 3 = 1.0986")

    @pytest.mark.parametrize("heads", [1, 2, 5])
    def test_heads(self, rng, heads):
        assert_logit(LogitCase(rng, heads=heads), hint="each head has its own sink")

    @pytest.mark.parametrize("sink", [-3.0, 2.0, 6.0])
    def test_small_and_large_sinks(self, rng, sink):
        assert_logit(LogitCase(rng, sink=sink))

    @pytest.mark.parametrize("batch", [(3,), (2, 3)])
    def test_leading_axes(self, rng, batch):
        assert_logit(LogitCase(rng, batch=batch), hint="heads are the third axis from the end")

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            heads, n_queries, n_keys, d, d_v = rng.integers((1, 1, 2, 2, 2), (5, 9, 60, 20, 20)).tolist()
            assert_logit(LogitCase(rng, heads=heads, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, sink=1.0))

    @robust
    def test_without_a_sink(self, rng):
        case = LogitCase(rng)
        case.sink = torch.full((3,), -torch.inf)
        assert_logit(case, hint="a sink of −inf is attention as it was")

    @robust
    @pytest.mark.parametrize("sink", [0.0, -torch.inf])
    def test_no_keys(self, rng, sink):
        case = LogitCase(rng, n_keys=0, sink=sink)
        assert_logit(case, hint="without a key o is 0 and lse the sink", nan_hint=NO_KEYS)

    @robust
    @pytest.mark.parametrize(("sink", "logit_scale"), [(1000.0, 1.0), (-1000.0, 1.0), (0.0, 300.0), (500.0, 300.0)])
    def test_large_numbers(self, rng, sink, logit_scale):
        assert_logit(LogitCase(rng, sink=sink, logit_scale=logit_scale), OVERFLOW, OVERFLOW)

    @robust
    @pytest.mark.parametrize("dtype", [*HALF, torch.float64])
    def test_other_dtypes(self, rng, dtype):
        case = LogitCase(rng, n_keys=200, sink=1.0, dtype=dtype)
        assert_logit(case, SHORT_SUMS)
        case.sink = case.sink.double() + 1 / 3  # a parameter may be kept longer than activations
        del case.__dict__["want"], case.__dict__["plain"]
        assert_logit(case, "the sink is rounded to q's dtype: it is used as it is given")

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = LogitCase(rng, heads=2)
        got = two_results("attention_sink_logit", on_nan("logit", *case.arguments))
        case.check(got, logit_suspects(case), nan_hint=NAN_FROM_EMPTY)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = LogitCase(rng, batch=(2,))
        case.q, case.k, case.v = strided(case.q, case.k, case.v)
        with left_alone(("q", "k", "v", "sink"), case.arguments):
            assert_logit(case, STRIDED)

    @refuses
    def test_bad_shapes(self):
        q, k, v, sink = torch.zeros(3, 2, 6), torch.zeros(3, 5, 6), torch.zeros(3, 5, 3), torch.zeros(3)
        for wrong, when, said in [
            ((q, k, v, sink[:1]), "for one sink and 3 heads", ("sink", "3")),
            ((q, k, v, torch.zeros(4)), "for 4 sinks and 3 heads", ("sink", "3")),
            ((q, k, v, torch.zeros(3, 1)), "for sinks of shape (3, 1)", ("sink",)),
            ((q, k, v[:, :4], sink), "when k and v differ in N_k", ("(3, 5, 6)", "(3, 4, 3)")),
            ((q[..., :5], k, v, sink), "when q and k differ in d", ("(3, 2, 5)", "(3, 5, 6)")),
        ]:
            assert_raises(ValueError, lambda wrong=wrong: attention_sink_logit(*wrong), when=when, mentions=said)


# Which of them

SCHEMES = {
    "full": [{"kind": "full"}],
    "grouped": [{"kind": "grouped", "group": 2}, {"kind": "grouped", "group": 4}],
    "window": [{"kind": "window", "window": 6, "num_sinks": 2}, {"kind": "window", "window": 15, "num_sinks": 1}],
    "latent": [{"kind": "latent", "rank": 5}, {"kind": "latent", "rank": 12}],
    "quantized": [{"kind": "quantized", "bits": bits, "group": 8} for bits in (2, 4, 8)],
}
ALL = [scheme for kind in SCHEMES.values() for scheme in kind]


@probe
def schemes_after(model, nbytes, tokens):
    """The schemes of a model when one has been chosen."""
    cache_under_budget(model, nbytes, tokens)
    return model["schemes"]


def drawn(rng, schemes, **sizes):
    """A model with these schemes, whose errors lie apart."""
    while True:
        model = drawn_model(rng, schemes, **sizes)
        if apart(model):
            return model


class TestCacheUnderBudget:
    """Bytes to the last, errors of the output, and the best that fits."""

    def test_worked_example(self, rng):
        model = drawn(rng, [{"kind": "full"}, {"kind": "quantized", "bits": 4, "group": 4}], heads=2, n_tokens=8, d=4,
                      layers=1)  # fmt: skip
        assert_equal("the bytes of 'full' in the handout's example", cache_under_budget(model, 256, 8)["bytes"], 256)
        assert_equal("the bytes of 4 bits in the handout's example", cache_under_budget(model, 255, 8)["bytes"], 192)

    @pytest.mark.parametrize("kind", SCHEMES)
    def test_one_kind(self, rng, kind):
        for scheme in SCHEMES[kind]:
            assert_scheme(cache_under_budget, drawn(rng, [scheme]), 10**9, 40)
            assert_scheme(cache_under_budget, drawn(rng, [scheme], heads=8, n_tokens=24, d=16, layers=5), 10**9, 10_000)

    def test_budgets_from_small_to_large(self, rng):
        model = drawn(rng, ALL)
        for size in sorted({scheme_bytes(scheme, model, 32) for scheme in ALL}):
            assert_scheme(cache_under_budget, model, size, 32)
            assert_scheme(cache_under_budget, model, size + 1, 32)

    def test_models_drawn_at_random(self, rng):
        for _ in range(6):
            sizes = {"heads": 4 * int(rng.integers(1, 3)), "n_tokens": 8 * int(rng.integers(3, 7)),
                     "d": 8 * int(rng.integers(1, 3)), "layers": int(rng.integers(1, 9)), "n_queries": 2}  # fmt: skip
            model, tokens = drawn(rng, ALL, **sizes), int(rng.integers(20, 3000))
            sized = sorted(scheme_bytes(scheme, model, tokens) for scheme in ALL)
            assert_scheme(cache_under_budget, model, int(rng.integers(sized[0], sized[-1] + 1)), tokens)

    def test_more_bytes_need_not_be_better(self, rng):
        schemes = [{"kind": "window", "window": 15, "num_sinks": 0}, {"kind": "quantized", "bits": 4, "group": 8}]
        model = drawn(rng, schemes, n_tokens=32)
        assert_scheme(cache_under_budget, model, 10**9, 32)
        assert_scheme(cache_under_budget, model, 10**9, 16)

    def test_of_equals_the_smaller(self, rng):
        schemes = [{"kind": "full"}, {"kind": "window", "window": 40, "num_sinks": 0}, {"kind": "grouped", "group": 1}]
        model = drawn_model(rng, schemes)
        got = cache_under_budget(model, 10**9, 100)
        assert_equal("the kind chosen of three that lose nothing, at 100 tokens", got["kind"], "window",
                     hint="of equal errors, rounded to nine decimals, the one with fewer bytes is taken")  # fmt: skip

    @robust
    def test_the_first_of_two_alike(self, rng):
        schemes = [{"kind": "grouped", "group": 1, "note": 1}, {"kind": "grouped", "group": 1, "note": 2}]
        model = drawn_model(rng, schemes)
        got = cache_under_budget(model, 10**9, 8)
        assert_equal("the note of the first of two alike", got["note"], 1)

    @robust
    def test_the_schemes_stay(self, rng):
        after = schemes_after(drawn_model(rng, ALL), 10**9, 32)
        changed = [now for now, old in zip(after, ALL, strict=True) if now != old]
        require(not changed, f"a scheme of model was changed, into {changed[:1]}: return a new dict")

    @robust
    def test_a_window_longer_than_the_text(self, rng):
        scheme = {"kind": "window", "window": 50, "num_sinks": 4}
        assert_scheme(cache_under_budget, drawn_model(rng, [scheme]), 10**9, 20)
        assert_scheme(cache_under_budget, drawn_model(rng, [scheme]), 10**9, 52)

    @robust
    def test_tokens_that_fill_no_group(self, rng):
        for tokens in (1, 7, 9):
            assert_scheme(cache_under_budget, drawn(rng, [SCHEMES["quantized"][1]]), 10**9, tokens)

    @robust
    def test_four_bytes_a_number(self, rng):
        for scheme in (SCHEMES["latent"][0], SCHEMES["quantized"][1]):
            assert_scheme(cache_under_budget, drawn(rng, [scheme], dtype_bytes=4), 10**9, 64)

    @robust
    def test_the_sample_stays(self, rng):
        model = drawn(rng, ALL)
        with left_alone("qkv", (model[name] for name in "qkv")):
            cache_under_budget(model, 10**9, 32)

    @refuses
    def test_nothing_fits(self, rng):
        model = drawn_model(rng, ALL)
        least = min(scheme_bytes(scheme, model, 32) for scheme in ALL)
        assert_raises(ValueError, lambda: cache_under_budget(model, least - 1, 32),
                      when=f"for {least - 1} bytes, when the smallest scheme needs {least}",
                      mentions=[str(least)])  # fmt: skip

    @refuses
    def test_bad_arguments(self, rng):
        model = drawn_model(rng, [{"kind": "full"}, {"kind": "pruned", "share": 0.5}])
        assert_raises(ValueError, lambda: cache_under_budget(model, 10**9, 32), when="for the kind 'pruned'",
                      mentions=["pruned"])  # fmt: skip
        model = drawn_model(rng, ALL)
        for tokens in (0, -3):
            assert_raises(ValueError, lambda tokens=tokens: cache_under_budget(model, 10**9, tokens),
                          when=f"for {tokens} tokens", mentions=["tokens"])  # fmt: skip
