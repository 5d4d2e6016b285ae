"""Lab 12's suite: a cache of latent vectors, of few bits, of a window with sinks, and the one that suits a budget."""

import functools
import math
from typing import ClassVar

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

from labkit.testing.attention.tensor_cases import strided
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    assert_at_most,
    assert_equal,
    assert_raises,
    require,
)
from labkit.testing.decoding.steps import assert_own_products
from labkit.testing.unchanged import left_alone

from .probes import bytes_kept, call_on_nan, measured_call, model_after
from .support import (
    Case,
    LatentCase,
    LogitCase,
    SinkCase,
    assert_quantized,
    assert_restored,
    assert_scheme,
    drawn_model,
    drawn_sizes,
    keys_and_values,
    quantized,
    scheme_bytes,
)

OVERFLOW = "exp overflows: no score and no sink may enter exp without a maximum taken from it"
SHORT_SUMS = "sums of half-precision inputs belong in float32, and are rounded once, at the end"
NO_KEYS = "nothing is seen: the maximum is −inf, −inf − (−inf) is NaN, and so is 0 / 0"
STRIDED = "a tensor whose axes are exchanged in memory: its rows are not adjacent"

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
by_bits = pytest.mark.parametrize("bits", [2, 4, 8])


def assert_refused(function, table):
    """Fail unless the function raises a ValueError for each row of (arguments, when, what the message mentions)."""
    for arguments, when, mentions in table:
        assert_raises(ValueError, functools.partial(function, *arguments), when=when, mentions=mentions)


# Three kinds of attention


class EveryAttention:
    """What is asked of attention, whatever its cache holds."""

    function: ClassVar
    case: ClassVar[type[Case]]

    def check(self, case, hint="", nan_hint=""):
        case.check(self.function(*case.arguments.values()), hint, nan_hint)

    @pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=["B3", "B2x3"])
    def test_leading_axes(self, rng, batch):
        self.check(self.case(rng, batch=batch), hint="axes before the usual ones are a batch")

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            self.check(self.case.drawn(rng))

    @robust
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_other_dtypes(self, rng, dtype):
        self.check(self.case(rng, n_keys=200, logit_scale=4.0, dtype=dtype), hint=SHORT_SUMS)

    @robust
    def test_large_logits(self, rng):
        self.check(self.case(rng, n_keys=300, logit_scale=300), hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    def test_no_keys(self, rng):
        self.check(self.case(rng, n_keys=0), hint="without a key o is 0", nan_hint=NO_KEYS)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = self.case(rng, n_keys=37)
        got = call_on_nan(self.task, *case.arguments.values())
        o = got[0] if isinstance(got, tuple) else got
        told = f"o is NaN where uninitialised memory holds NaN\nUsual cause: {NAN_FROM_EMPTY}"
        require(not o.isnan().any(), told)
        case.check(got)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = self.case(rng, batch=(2, 3))
        for name in ("q", "k", "v", "c_kv", "k_rope"):
            if hasattr(case, name):
                setattr(case, name, strided(getattr(case, name))[0])
        tensors = {name: x for name, x in case.arguments.items() if isinstance(x, torch.Tensor)}
        with left_alone(tensors, tensors.values()):
            self.check(case, hint=STRIDED)


class TestMlaDecode(EveryAttention):
    """One latent vector a token, read once, and never a key or a value of a head."""

    task, function, case = "mla_decode", staticmethod(mla_decode), LatentCase

    def test_worked_example(self):
        one = torch.ones(1, 1)
        c_kv, W_UK, W_UV = torch.tensor([[0.0], [1.0]]), torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 3.0)
        got = mla_decode(one * math.log(3) / math.sqrt(2), 0 * one, c_kv, torch.zeros(2, 1), W_UK, W_UV)
        require(got.shape == (1, 1), f"o has shape {tuple(got.shape)}, expected (1, 1)")
        require(abs(float(got) - 2.25) < 1e-5, f"o is {float(got):.6g}, expected 3 · 3/4 = 2.25")

    @pytest.mark.parametrize("heads", [1, 2, 5])
    def test_heads(self, rng, heads):
        hint = "W_UK[h] is (d_n, d_c): the key is W_UK[h] c, the value W_UV[h] c"
        self.check(LatentCase(rng, heads=heads, n_keys=33), hint=hint)

    def test_many_blocks_of_tokens(self, rng):
        hint = (
            "blocks of tokens do not fit together: l and o are rescaled when the maximum moves, and the last block "
            "is smaller"
        )
        self.check(LatentCase(rng, n_keys=1037, logit_scale=4.0), hint=hint)

    @small
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_the_cache_is_read_once_and_never_expanded(self, rng, dtype):
        case = LatentCase(rng, heads=8, n_keys=4096, d_n=32, d_r=16, d_c=64, d_v=32, dtype=dtype)
        got, counts = measured_call(self.task, *case.arguments.values())
        case.check(got)
        name = "mla_decode (8 heads, N = 4096, d_c = 64, d_r = 16)"
        assert_own_products(name, counts)
        absorbed = 2 * 8 * (4096 * (64 + 16 + 64) + 2 * 32 * 64)
        hint = "keys or values of the heads are made, a block at a time: W_UK belongs to the query, W_UV to the sum"
        assert_at_most(f"what {name} multiplies", counts["flops"], 2 * absorbed, unit="FLOPs", hint=hint)
        hint = (
            "keys or values of the heads are made, or the whole cache is copied: W_UK belongs to the query, W_UV to "
            "the sum, and a block of the cache is copied at a time"
        )
        in_float32 = 4096 * (64 + 16) * 4
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], in_float32 // 2, hint=hint)
        for which, x, read in zip(("c_kv", "k_rope"), (case.c_kv, case.k_rope), counts["read"][2:4], strict=True):
            hint = f"{which} is read again: a block is copied once, and serves as keys and as values"
            assert_at_most(f"what {name} reads of {which}, which holds {x.nbytes:,} bytes,", read, x.nbytes, hint=hint)
            require(read >= x.nbytes, f"{name} reads {read:,} of {x.nbytes:,} bytes of {which}: every token counts")

    @small
    def test_memory_does_not_grow_with_the_cache(self, rng):
        peaks = []
        for n_keys in (4096, 16_384):
            case = LatentCase(rng, heads=2, n_keys=n_keys, d_n=8, d_r=4, d_c=32, d_v=8)
            peaks.append(measured_call(self.task, *case.arguments.values())[1]["peak_bytes"])
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
    def test_bad_shapes(self, rng):
        fitting = LatentCase(rng, n_keys=5).arguments
        wrong = {"q_rope": (2, 4), "k_rope": (6, 4), "W_UK": (3, 8, 7), "W_UV": (2, 6, 12)}
        for name, shape in wrong.items():
            given = fitting | {name: torch.zeros(shape)}
            assert_refused(mla_decode, [(given.values(), f"for {name} of shape {shape}", (name, str(shape)))])


class TestAttentionWithSinks(EveryAttention):
    """What stays in the cache, and its places there."""

    task, function, case = "attention_with_sinks", staticmethod(attention_with_sinks), SinkCase

    def test_worked_example(self):
        o, lse = attention_with_sinks(torch.zeros(1, 2), torch.zeros(10, 2), torch.eye(10), 3, 2)
        seen = (o[0] > 0).nonzero().flatten().tolist()
        told = f"the last of 10 tokens sees {seen} with window 3 and two sinks; expected 0, 1, 7, 8 and 9"
        require(seen == [0, 1, 7, 8, 9], told)
        require(abs(float(lse) - math.log(5)) < 1e-5, f"lse of five scores 0 is {float(lse):.6g}, expected ln 5")

    def test_places_in_the_cache(self):
        def lse_of(distances):
            return math.log(sum(math.exp(2 * math.cos(n) / math.sqrt(2)) for n in distances))

        q = k = torch.ones(1, 10, 2)
        _, lse = attention_with_sinks(q[:, -1:], k, torch.ones(1, 10, 1), 3, 2)
        want, by_text = lse_of((4, 3, 2, 1, 0)), lse_of((9, 8, 2, 1, 0))
        told = (
            f"with all q and k 1, window 3 and two sinks, lse of token 9 is {float(lse):.5f}, expected {want:.5f}: its "
            "keys are 4, 3, 2, 1 and 0 places away"
        )
        if abs(float(lse) - by_text) < 1e-4:
            told += "\nUsual cause: they are 9, 8, 2, 1 and 0 tokens away in the text"
        require(abs(float(lse) - want) < 1e-4, told)

    @pytest.mark.parametrize(("window", "num_sinks"), [(4, 2), (1, 1), (3, 4), (7, 0), (1, 5), (30, 4)])
    def test_windows(self, rng, window, num_sinks):
        self.check(SinkCase(rng, window=window, num_sinks=num_sinks, n_queries=6, n_keys=25))

    @pytest.mark.parametrize("n_queries", [1, 2, 17])
    def test_the_whole_text_and_its_end(self, rng, n_queries):
        self.check(SinkCase(rng, window=5, num_sinks=3, n_queries=n_queries, n_keys=17))

    @robust
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(9, 4), (3, 1)])
    def test_more_queries_than_keys(self, rng, n_queries, n_keys):
        hint = "a query before the first key sees nothing: o 0, lse −inf"
        self.check(SinkCase(rng, window=3, n_queries=n_queries, n_keys=n_keys), hint, NO_KEYS)

    @small
    @pytest.mark.parametrize("n_queries", [1, 4])
    def test_nothing_that_was_forgotten_is_read(self, rng, n_queries):
        case = SinkCase(rng, window=60, num_sinks=4, n_queries=n_queries, n_keys=2048, d=32, d_v=32, batch=(2,))
        unseen = slice(4, 2048 - 60 - n_queries + 1)
        k, v = case.k.clone(), case.v.clone()
        k[..., unseen, :] = v[..., unseen, :] = torch.nan
        o, _ = attention_with_sinks(case.q, k, v, 60, 4)
        hint = "tokens are read that no query sees, and masked: a window costs what it keeps"
        require(not o.isnan().any(), f"NaN laid into tokens that no query sees reaches o\nUsual cause: {hint}")
        got, counts = measured_call(self.task, *case.arguments.values())
        case.check(got)
        name = f"attention_with_sinks (window 60, 4 sinks, {n_queries} queries, N_k = 2048)"
        assert_own_products(name, counts)
        most = 2 * n_queries * (4 + 60) * 2 * 32 * 4  # each query may read its keys for itself, and turn them as views
        for which, read in zip("kv", counts["read"][1:3], strict=True):
            assert_at_most(f"what {name} reads of {which}", read, most, hint=hint)
        hint = "memory grows with the text: it is for the sinks and the window"
        kept = (4 + 60 + n_queries - 1) * 2 * 32 * 4
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], 16 * kept, hint=hint)

    @refuses
    def test_bad_arguments(self):
        q, k, v = torch.zeros(2, 6), torch.zeros(5, 6), torch.zeros(5, 3)
        table = [
            ((q, k, v, 0, 2), "for window 0", ("window",)),
            ((q, k, v, 3, -1), "for −1 sinks", ("num_sinks",)),
            ((q, k, v[:4], 3, 1), "when k and v differ in N_k", ("(5, 6)", "(4, 3)")),
            ((q[:, :4], k, v, 3, 1), "when q and k differ in d", ("(2, 4)", "(5, 6)")),
            ((q[:, :5], k[:, :5], v, 3, 1), "for an odd d", ("5",)),
        ]
        assert_refused(attention_with_sinks, table)


class TestAttentionSinkLogit(EveryAttention):
    """Weights that need not add up to 1."""

    task, function, case = "attention_sink_logit", staticmethod(attention_sink_logit), LogitCase

    def test_worked_example(self):
        v = torch.tensor([[[2.0], [4.0]]])
        o, lse = map(float, attention_sink_logit(torch.ones(1, 1, 1), torch.zeros(1, 2, 1), v, torch.zeros(1)))
        near = abs(o - 2) < 1e-5 and abs(lse - math.log(3)) < 1e-5
        require(near, f"o is {o:.5g} and lse {lse:.5g}; expected (2 + 4) / 3 = 2 and ln 3 = 1.0986")

    @pytest.mark.parametrize("heads", [1, 2, 5])
    def test_heads(self, rng, heads):
        self.check(LogitCase(rng, heads=heads), hint="each head has its own sink")

    @pytest.mark.parametrize("sink", [-3.0, 2.0, 6.0])
    def test_small_and_large_sinks(self, rng, sink):
        self.check(LogitCase(rng, sink=sink))

    @robust
    @pytest.mark.parametrize("n_keys", [0, 20])
    def test_without_a_sink(self, rng, n_keys):
        case = LogitCase(rng, n_keys=n_keys, sink=-torch.inf)
        self.check(case, hint="a sink of −inf is attention as it was", nan_hint=NO_KEYS)

    @robust
    @pytest.mark.parametrize(("sink", "logit_scale"), [(1000.0, 1.0), (-1000.0, 1.0), (500.0, 300.0)])
    def test_large_sinks(self, rng, sink, logit_scale):
        self.check(LogitCase(rng, sink=sink, logit_scale=logit_scale), hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_sinks_of_another_dtype(self, rng, dtype):
        """A parameter may be stored in more bits than activations."""
        case = LogitCase(rng, sink=1.0, dtype=dtype)
        case.sink = case.sink.double() + 1 / 3
        self.check(case, hint="the sink is rounded to q's dtype: it is used as it is given")

    @refuses
    def test_bad_shapes(self):
        q, k, v, sink = torch.zeros(3, 2, 6), torch.zeros(3, 5, 6), torch.zeros(3, 5, 3), torch.zeros(3)
        table = [
            ((q, k, v, sink[:1]), "for one sink and 3 heads", ("sink", "3")),
            ((q, k, v, torch.zeros(4)), "for 4 sinks and 3 heads", ("sink", "3")),
            ((q, k, v, torch.zeros(3, 1)), "for sinks of shape (3, 1)", ("sink",)),
            ((q, k, v[:, :4], sink), "when k and v differ in N_k", ("(3, 5, 6)", "(3, 4, 3)")),
            ((q[..., :5], k, v, sink), "when q and k differ in d", ("(3, 2, 5)", "(3, 5, 6)")),
        ]
        assert_refused(attention_sink_logit, table)


# Few bits


class TestQuantizeKv:
    """Keys by channel, values by token, and not a byte more than needed."""

    def check(self, k, v, bits, group, hint=""):
        assert_quantized(quantize_kv(k, v, bits, group), k, v, bits, group, hint)

    def test_worked_example(self):
        v = torch.tensor([[1.0, 2.0, 4.0, 2.4]]).repeat(4, 1)
        got = quantize_kv(torch.zeros(4, 4), v, 2, 4)
        found = {name: got[name].flatten()[:1].tolist() for name in ("v", "v_zero", "v_scale")}
        told = f"the values 1, 2, 4, 2.4 in 2 bits give {found}, expected zero 1, scale 1, byte 116"
        require(found == {"v": [116], "v_zero": [1.0], "v_scale": [1.0]}, told)

    @by_bits
    @pytest.mark.parametrize("group", [4, 16])
    def test_groups(self, rng, bits, group):
        self.check(*keys_and_values(rng), bits, group)

    @by_bits
    def test_sizes_drawn_at_random(self, rng, bits):
        for _ in range(4):
            group, sizes = drawn_sizes(rng)
            self.check(*keys_and_values(rng, **sizes), bits, group)

    def test_no_leading_axes(self, rng):
        self.check(*keys_and_values(rng, batch=()), 4, 8)

    @robust
    @by_bits
    def test_numbers_far_from_zero(self, rng, bits):
        hint = "codes are computed with the zero and the scale as they are kept, rounded to float16"
        self.check(*keys_and_values(rng, offset=100), bits, 4, hint)

    @robust
    def test_groups_of_equal_numbers(self, rng):
        k, v = keys_and_values(rng)
        k[..., 3], v[..., 5, :] = 2.5, 0.0
        k[..., 2] = 1 + 2e-7 * torch.arange(16.0)  # a range that float16 rounds to 0
        hint = "the range is 0, and 0 / 0 is NaN, which is any code: where the scale is 0, codes are 0"
        self.check(k, v, 8, 16, hint)

    @robust
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_other_dtypes(self, rng, dtype):
        self.check(*keys_and_values(rng, dtype=dtype), 4, 8, "steps are computed in float32 at least")

    @robust
    def test_no_tokens(self, rng):
        self.check(*keys_and_values(rng, n_tokens=0), 4, 8)

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        k, v = (strided(x)[0] for x in keys_and_values(rng, batch=(2, 3)))
        with left_alone("kv", (k, v)):
            self.check(k, v, 4, 8, STRIDED)

    @small
    @by_bits
    @pytest.mark.parametrize("group", [8, 32])
    def test_exact_bytes(self, rng, bits, group):
        k, v = keys_and_values(rng, n_tokens=64, d=32, d_v=64)
        kept, count = bytes_kept(k, v, bits, group), k.numel() + v.numel()
        want, hint = count * (bits + 32 // group) // 8, f"bits + 32 / group = {bits + 32 / group:g} bits a number"
        name = f"the bytes of {count} numbers in {bits} bits, groups of {group}"
        assert_equal(name, sum(own for _, own in kept.values()), want, hint=hint)
        for name, (alive, own) in kept.items():
            hint = f"{name} is a view of something larger, which stays alive with it: keep a tensor of its own"
            assert_at_most(f"the memory that {name} keeps alive", alive, own, hint=hint)

    @refuses
    def test_bad_numbers(self, rng):
        k, v = keys_and_values(rng, n_tokens=12)
        for bits, group in ((3, 4), (16, 4), (0, 4), (4, 0), (4, 3), (4, 8), (4, 12), (4, 32)):
            name = "group" if bits == 4 else "bits"
            when = f"for {bits} bits, groups of {group}, 12 tokens and d_v = 16"
            assert_refused(quantize_kv, [((k, v, bits, group), when, (name,))])

    @refuses
    def test_what_does_not_fit(self, rng):
        k, v = keys_and_values(rng)
        one_large = k * 0 + 1e6 * (torch.arange(16.0)[:, None] == 3)
        table = [
            ((k[..., :7], v, 4, 4), "for a k 7 wide and 4 bits", "k"),
            ((k, v[..., :6], 2, 2), "for a v 6 wide and 2 bits", "v"),
            ((k, v[..., :8, :], 4, 4), "when k and v differ in tokens", "v"),
            ((k * 1e5, v, 4, 4), "for a k beyond float16", "k"),
            ((one_large, v, 2, 16), "for a k whose scale is beyond float16", "k"),
            ((k, v / 0, 4, 4), "for a v of infinities", "v"),
        ]
        assert_refused(quantize_kv, table)


class TestDequantizeKv:
    """The way back, from a cache that the tests have packed."""

    def check(self, cache):
        assert_restored(dequantize_kv(cache), cache)

    def test_worked_example(self):
        sizes = torch.ones(1, 4, dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
        byte = torch.full((4, 1), 116, dtype=torch.uint8)
        cache = {"k": byte, "k_scale": sizes[0], "k_zero": 0 * sizes[0], "v": byte, "v_scale": sizes[1],
                 "v_zero": sizes[1], "bits": 2, "group": 4}  # fmt: skip
        got = dequantize_kv(cache)
        assert_restored(got, cache)
        values = got[1][0].tolist()
        require(values == [1, 2, 4, 2], f"byte 116 with scale 1 and zero 1 gives {values}, expected 1, 2, 4, 2")

    @by_bits
    @pytest.mark.parametrize("group", [4, 16])
    def test_groups(self, rng, bits, group):
        self.check(quantized(*keys_and_values(rng), bits, group))

    @by_bits
    def test_sizes_drawn_at_random(self, rng, bits):
        for _ in range(4):
            group, sizes = drawn_sizes(rng)
            self.check(quantized(*keys_and_values(rng, **sizes), bits, group))

    def test_no_leading_axes(self, rng):
        self.check(quantized(*keys_and_values(rng, batch=()), 4, 8))

    @robust
    @by_bits
    def test_numbers_far_from_zero(self, rng, bits):
        self.check(quantized(*keys_and_values(rng, offset=1000), bits, 4))

    @robust
    def test_the_cache_stays(self, rng):
        cache = quantized(*keys_and_values(rng), 4, 8)
        tensors = {name: x for name, x in cache.items() if isinstance(x, torch.Tensor)}
        with left_alone(tensors, tensors.values()):
            self.check(cache)


# A scheme for a budget

SCHEMES = {
    "full": [{"kind": "full"}],
    "grouped": [{"kind": "grouped", "group": 2}, {"kind": "grouped", "group": 4}],
    "window": [{"kind": "window", "window": 6, "num_sinks": 2}, {"kind": "window", "window": 15, "num_sinks": 1}],
    "latent": [{"kind": "latent", "rank": 5}, {"kind": "latent", "rank": 12}],
    "quantized": [{"kind": "quantized", "bits": bits, "group": 8} for bits in (2, 4, 8)],
}
ALL = [scheme for kind in SCHEMES.values() for scheme in kind]
UNLIMITED = 10**9


class TestCacheUnderBudget:
    """Bytes to the last, errors of the output, and the best that fits."""

    def check(self, model, nbytes, tokens):
        assert_scheme(cache_under_budget(model, nbytes, tokens), model, nbytes, tokens)

    def test_worked_example(self, rng):
        schemes = [{"kind": "full"}, {"kind": "quantized", "bits": 4, "group": 4}]
        model = drawn_model(rng, schemes, heads=2, n_tokens=8, d=4, layers=1)
        assert_equal("the bytes of 'full' in the handout's example", cache_under_budget(model, 256, 8)["bytes"], 256)
        assert_equal("the bytes of 4 bits in the handout's example", cache_under_budget(model, 255, 8)["bytes"], 192)

    @pytest.mark.parametrize("kind", SCHEMES)
    def test_one_kind(self, rng, kind):
        for scheme in SCHEMES[kind]:
            self.check(drawn_model(rng, [scheme]), UNLIMITED, 40)
            self.check(drawn_model(rng, [scheme], heads=8, n_tokens=24, d=16, layers=5), UNLIMITED, 10_000)
            self.check(drawn_model(rng, [scheme], dtype_bytes=4), UNLIMITED, 64)

    def test_budgets_from_small_to_large(self, rng):
        model = drawn_model(rng, ALL)
        for size in sorted({scheme_bytes(scheme, model, 32) for scheme in ALL}):
            self.check(model, size, 32)

    def test_models_drawn_at_random(self, rng):
        for _ in range(4):
            heads, groups, width, layers = rng.integers((1, 3, 1, 1), (3, 7, 3, 9)).tolist()
            sizes = {"heads": 4 * heads, "n_tokens": 8 * groups, "d": 8 * width, "layers": layers, "n_queries": 2}
            model, tokens = drawn_model(rng, ALL, **sizes), int(rng.integers(20, 3000))
            least, *_, most = sorted(scheme_bytes(scheme, model, tokens) for scheme in ALL)
            self.check(model, int(rng.integers(least, most + 1)), tokens)

    def test_more_bytes_need_not_be_better(self, rng):
        schemes = [{"kind": "window", "window": 15, "num_sinks": 0}, {"kind": "quantized", "bits": 4, "group": 8}]
        self.check(drawn_model(rng, schemes), UNLIMITED, 16)

    def test_of_equals_the_smaller(self, rng):
        schemes = [{"kind": "full"}, {"kind": "window", "window": 40, "num_sinks": 0}, {"kind": "grouped", "group": 1}]
        got = cache_under_budget(drawn_model(rng, schemes), UNLIMITED, 100)
        hint = "of equal errors, rounded to nine decimals, the one with fewer bytes is taken"
        assert_equal("the kind chosen of three that lose nothing, at 100 tokens", got["kind"], "window", hint=hint)

    @robust
    def test_the_first_of_two_alike(self, rng):
        schemes = [{"kind": "grouped", "group": 1, "note": 1}, {"kind": "grouped", "group": 1, "note": 2}]
        got = cache_under_budget(drawn_model(rng, schemes), UNLIMITED, 8)
        assert_equal("the note of the first of two alike", got["note"], 1)

    @robust
    def test_the_model_stays(self, rng):
        model = drawn_model(rng, ALL)
        sample = {name: model[name].clone() for name in "qkv"}
        after = model_after(model, UNLIMITED, 32)
        changed = [now for now, old in zip(after["schemes"], ALL, strict=True) if now != old]
        require(not changed, f"a scheme of model was changed, into {changed[:1]}: return a new dict")
        for name in "qkv":
            require(torch.equal(after[name], sample[name]), f"the sample's {name} was changed in place")

    @robust
    @pytest.mark.parametrize("tokens", [20, 52])
    def test_a_window_longer_than_the_text(self, rng, tokens):
        self.check(drawn_model(rng, [{"kind": "window", "window": 50, "num_sinks": 4}]), UNLIMITED, tokens)

    @robust
    @pytest.mark.parametrize("tokens", [1, 7, 9])
    def test_tokens_that_fill_no_group(self, rng, tokens):
        self.check(drawn_model(rng, [SCHEMES["quantized"][1]]), UNLIMITED, tokens)

    @refuses
    def test_nothing_fits(self, rng):
        model = drawn_model(rng, ALL)
        least = min(scheme_bytes(scheme, model, 32) for scheme in ALL)
        when = f"for {least - 1} bytes, when the smallest scheme needs {least}"
        assert_refused(cache_under_budget, [((model, least - 1, 32), when, (str(least),))])

    @refuses
    def test_bad_arguments(self, rng):
        model = drawn_model(rng, [{"kind": "full"}])
        unknown = drawn_model(rng, [{"kind": "full"}, {"kind": "pruned", "share": 0.5}])
        table = [
            ((unknown, UNLIMITED, 32), "for the kind 'pruned'", ("pruned",)),
            ((model, UNLIMITED, 0), "for 0 tokens", ("tokens",)),
            ((model, UNLIMITED, -3), "for −3 tokens", ("tokens",)),
        ]
        assert_refused(cache_under_budget, table)
