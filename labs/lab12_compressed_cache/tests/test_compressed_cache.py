"""Lab 12's suite: a cache of latent vectors, of few bits, of a window with sinks, and the one that suits a budget."""

import copy
import dataclasses
import math
from functools import partial

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

from labkit.testing.attention.table import SHORT_SUMS, mismatched_shapes, strided
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    Tolerance,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_refused,
    assert_tuple,
    assert_type,
    compare_each,
    require,
    require_at_most,
    require_own_work,
)
from labkit.testing.decoding.steps import assert_own_products
from labkit.testing.unchanged import copied, report_mutation_first, unchanged

from . import mistakes as known
from .probes import bytes_kept, call_on_nan, last_of_many, measured_call, model_after
from .reference import (
    PARTS,
    LatentCase,
    LogitCase,
    SinkCase,
    dequantize_reference,
    drawn_qkv,
    error_of,
    extremes,
    keys_and_values,
    quantized,
    random_model,
    random_sizes,
    rows,
    scheme_bytes,
    unclipped_positions,
    unpacked,
)

NO_KEYS = "nothing is seen: the maximum is −inf, −inf − (−inf) is NaN, and so is 0 / 0"

by_bits = pytest.mark.parametrize("bits", [2, 4, 8])
full_and_half = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
halves = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


# Three kinds of attention


def compare(case, got, mistakes, hint="", nan_hint=""):
    """Compare o, and lse where it is asked for, and name a usual mistake where one fits."""
    parts = (got,) if case.results == ("o",) else assert_tuple("the result", got, case.results)
    given = dict(zip(case.results, parts, strict=True))

    def check(name):
        assert_type(name, given[name], torch.Tensor, "a tensor")
        if name == "lse":
            assert_dtype(name, given[name], case.precise, because="with half-precision inputs too")
        cause = f"\nUsual cause: {nan_hint}" if nan_hint else ""
        require(not given[name].isposinf().any(), f"{name} is +inf somewhere{cause}")
        case.check(name, given[name], lambda: known.values(case, name, mistakes(case)), hint=hint, nan_hint=nan_hint)
        if name == "o":
            assert_dtype(name, given[name], case.Q.dtype)

    compare_each(case.results, check)


IN_HALF = "a rotation, a product or a sum is kept in half precision: convert once, at the end"
TOP_OF_ALL = "the maximum is that of the scores and the sink, and it may be far below 0"


class TestMlaDecode:
    """One latent vector a token, read once, and never a key or a value of a head. A head is one query."""

    def check(self, case, got, hint="", nan_hint=""):
        compare(case, got, known.latent_mistakes, hint, nan_hint)

    @pytest.mark.parametrize("row", rows("long_sums", "logits_times_10000"))
    def test_results(self, rng, row):
        case = row.draw(LatentCase.drawn, rng)
        given = case.arguments
        with report_mutation_first(given):
            self.check(case, mla_decode(*given.values()), hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_many_blocks_of_tokens(self, rng):
        """What is right for a few tokens, and not for many, is wrong between blocks."""
        hint = "blocks of tokens do not fit together: l and o are rescaled when the maximum moves, and the last block"
        for n_keys, told in ((5, ""), (1037, f"{hint} is smaller")):
            case = LatentCase.drawn(rng, n_keys=n_keys, logit_scale=4.0)
            self.check(case, mla_decode(*case.arguments.values()), hint=told)

    @pytest.mark.basic
    def test_worked_example(self):
        one, c_kv = torch.ones(1, 1), torch.tensor([[0.0], [1.0]])
        W_UK, W_UV = torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 3.0)
        case = LatentCase(one * math.log(3) / math.sqrt(2), 0 * one, c_kv, torch.zeros(2, 1), W_UK, W_UV)
        given = case.arguments
        with report_mutation_first(given):
            self.check(case, mla_decode(*given.values()))

    @pytest.mark.robust
    @halves
    def test_long_sums_in_half_precision(self, rng, dtype):
        """Scores of which the parts with positions are large, and the same for every token."""
        case = LatentCase.drawn(rng, dtype=dtype)
        case.q_rope, case.k_rope = torch.full_like(case.q_rope, 10), torch.full_like(case.k_rope, 10)
        self.check_in_half(case)

    @pytest.mark.robust
    @halves
    def test_sums_over_many_blocks(self, rng, dtype):
        """Sums that grow all the time, so that what a block loses stays lost; rounded once, o is within half a unit."""
        case = LatentCase.drawn(rng, n_keys=8192, dtype=dtype)
        case.K = case.K / 4 + 2
        case.tolerance = dataclasses.replace(case.tolerance, slack=2)
        self.check_in_half(case)

    def check_in_half(self, case):
        """The same in float32 first: where that is wrong, half precision is not to blame."""
        in_float32 = LatentCase(*(x.float() for x in case.arguments.values()))
        self.check(in_float32, mla_decode(*in_float32.arguments.values()))
        self.check(case, mla_decode(*case.arguments.values()), hint=SHORT_SUMS)

    @pytest.mark.robust
    def test_without_tokens(self, rng):
        case = LatentCase.drawn(rng, n_keys=0)
        self.check(case, mla_decode(*case.arguments.values()), hint="without a token o is 0", nan_hint=NO_KEYS)

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = LatentCase.drawn(rng, n_queries=37, n_keys=21, batch=(2,))
        self.check(case, call_on_nan("mla_decode", *case.arguments.values()), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = LatentCase.drawn(rng).arguments
        with unchanged(given):
            mla_decode(*given.values())

    @pytest.mark.cost
    @full_and_half
    def test_the_cache_is_read_once_and_never_expanded(self, rng, dtype):
        case = LatentCase.drawn(rng, n_queries=8, n_keys=4096, d=32, d_r=16, d_c=64, d_v=32, dtype=dtype)
        got, counts = measured_call("mla_decode", case.arguments)
        self.check(case, got)
        name = "mla_decode (8 heads, N = 4096, d_c = 64, d_r = 16)"
        assert_own_products(name, counts)
        absorbed = 2 * 8 * (4096 * (64 + 16 + 64) + 2 * 32 * 64)
        hint = "keys or values of the heads are made, a block at a time: W_UK belongs to the query, W_UV to the sum"
        assert_at_most(f"what {name} multiplies", counts["flops"], 2 * absorbed, unit="FLOPs", hint=hint)
        hint = "keys or values of the heads are made, or the whole cache is copied or converted to float32: "
        hint += "a block is copied at a time"
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], 4096 * (64 + 16) * 4 // 2, hint=hint)
        for which in ("c_kv", "k_rope"):
            size, read = case.arguments[which].nbytes, counts["read"][which]
            hint = f"{which} is read again: a block is copied once, and serves as keys and as values"
            assert_at_most(f"what {name} reads of {which}, which holds {size:,} bytes,", read, size, hint=hint)
            require(read >= size, f"{name} reads {read:,} of {size:,} bytes of {which}: every token counts")

    @pytest.mark.cost
    @full_and_half
    def test_memory_does_not_grow_with_the_tokens(self, rng, dtype):
        peaks = []
        for n_keys in (4096, 16_384):
            case = LatentCase.drawn(rng, n_queries=8, n_keys=n_keys, d=32, d_r=16, d_c=64, d_v=32, dtype=dtype)
            peaks.append(measured_call("mla_decode", case.arguments)[1]["peak_bytes"])
        found = f"the peak is {peaks[0]:,} bytes for 4,096 tokens and {peaks[1]:,} for 16,384"
        message = f"{found}: it grows with N, at most 1.5 times are allowed\n"
        message += "No size may depend on N: neither that of a block nor that of scores or copies"
        require_at_most("the growth of the peak", peaks[1] / peaks[0], 1.5, message)

    @pytest.mark.memory_limit(mib=8)
    @pytest.mark.cost
    def test_far_from_expanded(self, rng, memory_limit):
        case = LatentCase.drawn(rng, n_queries=2, n_keys=98_304, d=16, d_r=16, d_c=32, d_v=16, dtype="bfloat16")
        self.check(case, memory_limit(mla_decode, *case.arguments.values()))

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        fitting = LatentCase.drawn(rng, n_keys=5).arguments
        wrong = [("q_rope", (2, 4)), ("k_rope", (6, 4)), ("k_rope", (5, 3)), ("W_UK", (3, 8, 7)), ("W_UV", (2, 6, 12))]
        table = []
        for name, shape in wrong:
            given = fitting | {name: torch.zeros(shape)}
            table.append((given.values(), f"for {name} of shape {shape}", [name, str(shape)]))
        assert_refused(mla_decode, table)


class TestAttentionWithSinks:
    """What stays in the cache, and its places there."""

    def check(self, case, got, hint="", nan_hint=""):
        compare(case, got, known.sink_mistakes, hint, nan_hint)

    @pytest.mark.basic
    @pytest.mark.parametrize(("window", "num_sinks"), [(4, 2), (50, 2)])
    @pytest.mark.parametrize("row", rows("N129x7", "N65x20", "logits_times_10000"))
    def test_results(self, rng, row, window, num_sinks):
        case = row.draw(partial(SinkCase.drawn, window=window, num_sinks=num_sinks), rng)
        given = case.arguments
        hint = IN_HALF if row.hint == SHORT_SUMS else row.hint
        with report_mutation_first(given):
            self.check(case, attention_with_sinks(*given.values(), window, num_sinks), hint=hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        """All numbers of q and k are 1: weights show which tokens token 9 sees, and how far away each is."""
        case = SinkCase(torch.ones(1, 2), torch.ones(10, 2), torch.eye(10), window=3, num_sinks=2)
        given = case.arguments
        with report_mutation_first(given):
            self.check(case, attention_with_sinks(*given.values(), 3, 2))

    @pytest.mark.parametrize(("window", "num_sinks"), [(1, 5), (7, 0)])
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(63, 63), (5, 129), (20, 65)])
    def test_one_token_and_no_sinks(self, rng, n_queries, n_keys, window, num_sinks):
        case = SinkCase.drawn(rng, n_queries=n_queries, n_keys=n_keys, window=window, num_sinks=num_sinks)
        self.check(case, attention_with_sinks(*case.arguments.values(), window, num_sinks))

    @pytest.mark.robust
    @pytest.mark.parametrize("far", [1e3, 1e7])
    def test_hidden_keys_do_not_leak(self, rng, far):
        case = SinkCase.drawn(rng, n=24, dtype="float64", window=4, num_sinks=2)
        case.Q[..., -1], case.K[..., -1] = far, -1  # the pair that turns the least: every score is far below 0
        hint = "a large negative number stands for −inf; beside scores that are lower still it is large"
        self.check(case, attention_with_sinks(*case.arguments.values(), 4, 2), hint=hint)

    @pytest.mark.robust
    @pytest.mark.parametrize(("window", "num_sinks"), [(4, 2), (7, 0)])
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(129, 7), (65, 20)])
    def test_queries_before_all_tokens(self, rng, n_queries, n_keys, window, num_sinks):
        case = SinkCase.drawn(rng, n_queries=n_queries, n_keys=n_keys, window=window, num_sinks=num_sinks)
        hint = "the first N_q − N_k queries see no key: their p is below 0, and the end of a slice below 0 is counted"
        got = attention_with_sinks(*case.arguments.values(), window, num_sinks)
        self.check(case, got, hint=f"{hint} from the end", nan_hint=NO_KEYS)

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = SinkCase.drawn(rng, n_queries=37, n_keys=21, batch=(2,), window=4, num_sinks=2)
        self.check(case, call_on_nan("attention_with_sinks", *case.arguments.values(), 4, 2), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = SinkCase.drawn(rng).arguments
        with unchanged(given):
            attention_with_sinks(*given.values(), 4, 2)

    @pytest.mark.cost
    @full_and_half
    @pytest.mark.parametrize("n_queries", [1, 4])
    def test_nothing_that_was_forgotten_is_read(self, rng, n_queries, dtype):
        sizes = {"batch": (2,), "n_queries": n_queries, "n_keys": 2048, "d": 32, "d_v": 32}
        case = SinkCase.drawn(rng, window=60, num_sinks=4, dtype=dtype, **sizes)
        unseen = slice(4, 2048 - 60 - n_queries + 1)
        k, v = case.K.clone(), case.V.clone()
        k[..., unseen, :] = v[..., unseen, :] = torch.nan
        o, _ = attention_with_sinks(case.Q, k, v, 60, 4)
        hint = "tokens are read that no query sees, and masked: a window costs what it keeps"
        require(not o.isnan().any(), f"NaN laid into tokens that no query sees reaches o\nUsual cause: {hint}")
        got, counts = measured_call("attention_with_sinks", case.arguments, **case.options)
        self.check(case, got)
        name = f"attention_with_sinks (window 60, 4 sinks, {n_queries} queries, N_k = 2048)"
        require_own_work(not counts["fused"], f"{name} calls torch's own attention ({', '.join(counts['fused'])})")
        # each query may read its keys for itself, and turn them as views
        most = 2 * n_queries * (4 + 60) * 2 * 32 * case.K.itemsize
        if dtype == "bfloat16":
            hint += "; a cache that is converted to float32 is read whole: convert only what is seen"
        for which in "kv":
            assert_at_most(f"what {name} reads of {which}", counts["read"][which], most, hint=hint)
        hint = "memory grows with the text: it is for the sinks and the window"
        kept = (4 + 60 + n_queries - 1) * 2 * 32 * 4
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], 16 * kept, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_far_from_the_whole_text(self, rng, memory_limit):
        sizes = {"n_queries": 2, "n_keys": 65_536, "d": 32, "d_v": 64}
        case = SinkCase.drawn(rng, window=60, num_sinks=4, dtype="bfloat16", **sizes)
        self.check(case, memory_limit(attention_with_sinks, *case.arguments.values(), **case.options))

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        assert_refused(attention_with_sinks, mismatched_shapes(*drawn_qkv(rng, n_queries=6, n_keys=5), 4, 2))

    @pytest.mark.refuses
    def test_numbers_that_do_not_fit(self):
        q, k, v = torch.zeros(2, 6), torch.zeros(5, 6), torch.zeros(5, 3)
        table = [
            ((q, k, v, 0, 2), "for window 0", {"window": 0}),
            ((q, k, v, 3, -1), "for −1 sinks", {"num_sinks": -1}),
            ((q[:, :5], k[:, :5], v, 3, 1), "for an odd d", {"d": 5}),
        ]
        assert_refused(attention_with_sinks, table)


class TestAttentionSinkLogit:
    """Weights that need not add up to 1. The last of the leading axes is the heads."""

    def check(self, case, hint="", nan_hint=""):
        given = case.arguments
        with report_mutation_first(given):
            compare(case, attention_sink_logit(*given.values()), known.logit_mistakes, hint, nan_hint)

    @pytest.mark.basic
    @pytest.mark.parametrize("row", rows("logits_far_below", "logits_times_10000"))
    def test_results(self, rng, row):
        hint = IN_HALF if row.hint == SHORT_SUMS else row.hint
        self.check(row.draw(LogitCase.drawn, rng), hint=hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        v = torch.tensor([[[2.0], [4.0]]])
        case = LogitCase(torch.ones(1, 1, 1), torch.zeros(1, 2, 1), v, torch.zeros(1))
        self.check(case)

    @pytest.mark.robust
    @pytest.mark.parametrize("n_keys", [0, 20])
    @pytest.mark.parametrize("sink", [-torch.inf, 1.0])
    def test_without_keys_or_a_sink(self, rng, sink, n_keys):
        hint = "a sink of −inf is attention as it was; without a key o is 0"
        self.check(LogitCase.drawn(rng, n_keys=n_keys, sink=sink), hint=hint, nan_hint=NO_KEYS)

    @pytest.mark.robust
    @pytest.mark.parametrize("sink", [-torch.inf, 1.0])
    def test_scores_of_minus_infinity(self, rng, sink):
        case = LogitCase.drawn(rng, sink=sink)
        case.Q, case.K = abs(case.Q) + 1, torch.full_like(case.K, -torch.inf)
        self.check(case, hint="without a score above −inf o is 0, and lse is the sink", nan_hint=NO_KEYS)

    @pytest.mark.robust
    @pytest.mark.parametrize(("sink", "logit_scale"), [(1000.0, 1.0), (-1000.0, 1.0), (500.0, 300.0)])
    def test_large_sinks(self, rng, sink, logit_scale):
        hint = "exp overflows: the maximum that is taken from the scores and the sink is that of all of them"
        self.check(LogitCase.drawn(rng, sink=sink, logit_scale=logit_scale), hint=hint, nan_hint=hint)

    @pytest.mark.robust
    @pytest.mark.parametrize("sink", [0.0, -500.0, -torch.inf])
    def test_scores_far_below_zero(self, rng, sink):
        case = LogitCase.drawn(rng, sink=sink, n=40, d=16)
        case.Q, case.K = abs(case.Q) * 300, -abs(case.K) - 1
        self.check(case, hint=TOP_OF_ALL, nan_hint=TOP_OF_ALL)

    @pytest.mark.robust
    @halves
    def test_sinks_of_another_dtype(self, rng, dtype):
        """A parameter may be stored in more bits than activations."""
        case = LogitCase.drawn(rng, sink=1.0, dtype=dtype)
        case.sink = case.sink.double() + 1 / 3
        self.check(case, hint="the sink is rounded to q's dtype: it is used as it is given")

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = LogitCase.drawn(rng, n_queries=37, n_keys=21)
        got = call_on_nan("attention_sink_logit", *case.arguments.values())
        compare(case, got, known.logit_mistakes, nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = LogitCase.drawn(rng).arguments
        with unchanged(given):
            attention_sink_logit(*given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        assert_refused(
            attention_sink_logit,
            mismatched_shapes(*LogitCase.drawn(rng, n_queries=6, n_keys=5).arguments.values()),
        )

    @pytest.mark.refuses
    def test_sinks_that_do_not_fit(self):
        q, k, v, sink = torch.zeros(3, 2, 6), torch.zeros(3, 5, 6), torch.zeros(3, 5, 3), torch.zeros(3)
        table = [
            ((q, k, v, sink[:1]), "for one sink and 3 heads", ("sink",)),
            ((q, k, v, torch.zeros(4)), "for 4 sinks and 3 heads", ("sink",)),
            ((q, k, v, torch.zeros(3, 1)), "for sinks of shape (3, 1)", ("sink",)),
        ]
        assert_refused(attention_sink_logit, table)


# Few bits

TIE = 0.501
"""How far a number may be from its code: half a step, and what rounding in float32 explains."""
WORKED = torch.zeros(4, 4), torch.tensor([[1.0, 2.0, 4.0, 2.4]]).repeat(4, 1)
"""The handout's example: keys of 0, and values of which every token has the same."""


class TestQuantizeKv:
    """Keys by channel, values by token, and not a byte more than needed."""

    def check(self, k, v, bits, group, hint=""):
        given = dict(zip("kv", copied(k, v), strict=True))
        with report_mutation_first(given):
            self.compare(quantize_kv(*given.values(), bits, group), k, v, bits, group, hint)

    def compare(self, got, k, v, bits, group, hint=""):
        """Compare what `quantize_kv` made of k and v with what the handout says, part by part."""
        want = quantized((k, v), bits, group)
        assert_keys("what quantize_kv returns", got, want)
        for name, part in want.items():
            if isinstance(part, int):
                assert_equal(name, got[name], part)
                continue
            assert_type(name, got[name], torch.Tensor, "a tensor")
            found, expected = tuple(got[name].shape), tuple(part.shape)
            cause = known.shape_causes(k, v, bits, group).get((name, found), "")
            cause = cause and f"\nUsual cause: {cause}"
            require(found == expected, f"{name} has shape {found}, expected {expected}{cause}")
            assert_dtype(name, got[name], part.dtype, because="whatever the dtype of k and v")
        for (name, axis), x in zip(PARTS, (k, v), strict=True):
            low, high = extremes(x, group, axis)
            usual = known.size_mistakes(low, high, bits)
            scale, zero = got[f"{name}_scale"], got[f"{name}_zero"]
            for part, found, mistakes in ((f"{name}_scale", scale, usual), (f"{name}_zero", zero, {})):
                # rounded from float32 instead of float64, it may be the next float16
                assert_close(
                    part,
                    found,
                    want[part],
                    baseline=want[part],
                    tolerance=Tolerance(roundings=1),
                    mistakes=mistakes,
                    hint=hint,
                )
                self.check_each_rounded(part, found, want[part])
            exact = unclipped_positions(x, scale, zero, group, axis).clamp(0, 2**bits - 1)
            usual = partial(known.code_mistakes, x, scale, zero, bits, group, axis)
            codes = unpacked(got[name], bits)
            # each is the nearest to where its number is, under the scale and the zero that are kept with it
            assert_close(
                f"a code of {name}",
                codes,
                exact,
                baseline=exact,
                tolerance=Tolerance(roundings=0, atol=TIE),
                mistakes=usual,
                hint=hint,
            )

    def check_each_rounded(self, name, got, want):
        """Compare each number on its own: `want`, or a float16 next to it."""
        off = (got.double() - want.double()).abs() > want.double().abs() * 2**-10 + 2**-24
        if off.any():
            at = tuple(off.nonzero()[0].tolist())
            require(False, f"{name}{list(at)} is {float(got[at]):.6g}, expected {float(want[at]):.6g}")

    @pytest.mark.basic
    def test_worked_example(self):
        self.check(*WORKED, 2, 4)

    @pytest.mark.basic
    @by_bits
    def test_random_sizes(self, rng, bits):
        for _ in range(6):
            group, sizes = random_sizes(rng)
            self.check(*keys_and_values(rng, **sizes), bits, group)

    @pytest.mark.robust
    @by_bits
    def test_numbers_far_from_zero(self, rng, bits):
        self.check(*keys_and_values(rng, offset=100), bits, 4)

    @pytest.mark.robust
    def test_groups_of_equal_numbers(self, rng):
        k, v = keys_and_values(rng)
        k[..., 3], v[..., 5, :] = 2.5, 0.0
        k[..., 2] = 1 + 2e-7 * torch.arange(16.0)  # a range that float16 rounds to 0
        k[..., 1] = 5001.9  # a zero that float16 rounds to 5000, two steps of 1 away
        hint = "the range is 0, or rounded to 0: there 0 / 0 is NaN, which is any code, and the rounded zero is not x"
        self.check(k, v, 8, 16, hint)

    @pytest.mark.robust
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
    def test_precisions(self, rng, dtype):
        k, v = keys_and_values(rng, dtype=dtype)
        self.check(k, v, 4, 8, "steps are computed in float32 at least")

    @pytest.mark.robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        k, v = (strided(x) for x in keys_and_values(rng, batch=(2, 3)))
        with unchanged({"k": k, "v": v}):
            got = quantize_kv(k, v, 4, 8)
        hint = "a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent"
        self.compare(got, k, v, 4, 8, hint)

    @pytest.mark.cost
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

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=20)
    def test_many_caches_seen_from_outside(self, rng, memory_limit):
        k, v = keys_and_values(rng, n_tokens=2048, d=64, d_v=64, batch=(), dtype="bfloat16")
        cache = memory_limit(last_of_many, quantize_kv, k, v, 2, 32, 96)
        self.compare(cache, k, v, 2, 32)

    @pytest.mark.refuses
    def test_what_does_not_fit(self, rng):
        k, v = keys_and_values(rng)
        one_large = k * 0 + 1e6 * (torch.arange(16.0)[:, None] == 3)
        table = [
            ((k[..., :7], v, 4, 4), "for a k 7 wide and 4 bits", ["k"]),
            ((k, v[..., :6], 2, 2), "for a v 6 wide and 2 bits", ["v"]),
            ((k, v[..., :8, :], 4, 4), "when k and v differ in tokens", ["v"]),
            ((k * 1e5, v, 4, 4), "for a k beyond float16", ["k"]),
            ((one_large, v, 2, 16), "for a k whose scale is beyond float16", ["k"]),
            ((k, v / 0, 4, 4), "for a v of infinities", ["v"]),
        ]
        k, v = keys_and_values(rng, n_tokens=12)
        for bits, group in ((1, 4), (3, 4), (16, 4), (0, 4), (4, 0), (4, 3), (4, 8), (4, 12), (4, 32)):
            when = f"for {bits} bits, groups of {group}, 12 tokens and d_v = 16"
            table.append(((k, v, bits, group), when, {"group": group} if bits == 4 else {"bits": bits}))
        assert_refused(quantize_kv, table)


class TestDequantizeKv:
    """The way back, from a cache that the tests have packed."""

    def check(self, cache):
        (given,) = copied(cache)
        with report_mutation_first({name: x for name, x in given.items() if isinstance(x, torch.Tensor)}):
            self.compare(dequantize_kv(given), cache)

    def compare(self, got, cache):
        parts = assert_tuple("dequantize_kv's result", got, ("k", "v"))
        for (name, axis), value in zip(PARTS, parts, strict=True):
            want, baseline = (
                dequantize_reference(cache, name, axis, dtype) for dtype in (torch.float64, torch.float32)
            )
            mistakes = partial(known.restoring_mistakes, cache, name, axis)
            assert_close(name, value, want, baseline=baseline, reference=dequantize_reference, mistakes=mistakes)
            assert_dtype(name, value, torch.float32)

    def test_worked_example(self):
        self.check(quantized(WORKED, 2, 4))

    @by_bits
    def test_random_sizes(self, rng, bits):
        for _ in range(6):
            group, sizes = random_sizes(rng)
            self.check(quantized(keys_and_values(rng, **sizes), bits, group))

    @pytest.mark.robust
    def test_the_cache_stays(self, rng):
        cache = quantized(keys_and_values(rng), 4, 8)
        tensors = {name: x for name, x in cache.items() if isinstance(x, torch.Tensor)}
        with unchanged(tensors):
            got = dequantize_kv(cache)
        self.compare(got, cache)


# A scheme for a budget

SCHEMES = [
    {"kind": "full"},
    {"kind": "grouped", "group": 2},
    {"kind": "grouped", "group": 4},
    {"kind": "window", "window": 6, "num_sinks": 2},
    {"kind": "window", "window": 15, "num_sinks": 1},
    {"kind": "latent", "rank": 5},
    {"kind": "latent", "rank": 12},
    {"kind": "quantized", "bits": 2, "group": 8},
    {"kind": "quantized", "bits": 4, "group": 8},
    {"kind": "quantized", "bits": 8, "group": 8},
]
OVERLAPPING = {"kind": "window", "window": 30, "num_sinks": 4}
"""Some of its sinks are in its window, too, where a sample has 32 tokens or fewer."""
UNLIMITED = 10**9
NEAR = 5e-3
"""How far, as a share, the error of a quantized scheme may be off: a code between two steps may be either of them."""
SMALLEST = 2e-9
"""How far any error may be off: it is rounded to nine decimals."""


def scheme_id(scheme):
    """As window6-num_sinks2."""
    return "-".join(f"{name}{value}" for name, value in scheme.items()).removeprefix("kind")


class TestCacheUnderBudget:
    """Bytes to the last, errors of the output, and the best that fits."""

    def check(self, model, nbytes, tokens):
        got = cache_under_budget(copy.deepcopy(model), nbytes, tokens)
        chosen = f"the scheme chosen for {nbytes:,} bytes and {tokens} tokens"
        require(isinstance(got, dict), f"{chosen} is {type(got).__name__}, expected a dict")
        own = {name: value for name, value in got.items() if name not in ("bytes", "error")}
        require(own in model["schemes"], f"{chosen} is {own}, which is not one of the model's")
        assert_keys(chosen, got, (*own, "bytes", "error"))
        name = f"the bytes of {own} for {tokens} tokens in {model['layers']} layers"
        assert_type(name, got["bytes"], int, "an int: bytes are counted")
        assert_equal(
            name, got["bytes"], scheme_bytes(own, model, tokens), mistakes=known.byte_mistakes(own, model, tokens)
        )
        name, error = f"the error of {own}", error_of(own, model)
        assert_type(name, got["error"], (int, float), "a float")
        allowed = max(NEAR * error, SMALLEST) if own["kind"] == "quantized" else SMALLEST
        mistakes = partial(known.error_mistakes, own, model)
        assert_close(
            name, got["error"], error, baseline=error, tolerance=Tolerance(roundings=0, atol=allowed), mistakes=mistakes
        )
        require(got["bytes"] <= nbytes, f"{chosen}, {own}, takes {got['bytes']:,} bytes")
        fitting = [scheme for scheme in model["schemes"] if scheme_bytes(scheme, model, tokens) <= nbytes]
        least, best = min((error_of(scheme, model), i) for i, scheme in enumerate(fitting))
        message = (
            f"{chosen} is {own}, whose error is {error:.4g}; {fitting[best]} fits too, with an error of {least:.4g}"
        )
        hint = "Of those that fit, the one with the least error is taken, not the one with the fewest bytes"
        if scheme_bytes(fitting[best], model, tokens) == nbytes:
            hint = f"Usual cause: a scheme that takes exactly {nbytes:,} bytes fits: bytes ≤ nbytes"
            if got["bytes"] == min(scheme_bytes(scheme, model, tokens) for scheme in fitting):
                hint += "; or the one with the fewest bytes is taken, and not the one with the least error"
        require(error <= least * (1 + 2 * NEAR) + SMALLEST, f"{message}\n{hint}")

    @pytest.mark.basic
    def test_worked_example(self, rng):
        schemes = [{"kind": "full"}, {"kind": "quantized", "bits": 4, "group": 4}]
        model = random_model(rng, schemes, heads=2, n_tokens=8, d=4, layers=1)
        for nbytes in (256, 255):
            self.check(model, nbytes, 8)

    @pytest.mark.basic
    @pytest.mark.parametrize("scheme", [*SCHEMES, OVERLAPPING], ids=scheme_id)
    def test_one_scheme(self, rng, scheme):
        """Also for fewer tokens than a window or a group of the scheme holds."""
        for tokens in (1, 7, 64):
            self.check(random_model(rng, [scheme], dtype_bytes=4), UNLIMITED, tokens)
        self.check(random_model(rng, [scheme], heads=8, n_tokens=24, d=16, layers=5), UNLIMITED, 10_000)

    def test_random_models(self, rng):
        """With every number of bytes that some scheme needs."""
        for _ in range(2):
            heads, groups, width, layers = rng.integers((1, 3, 1, 1), (3, 7, 3, 9)).tolist()
            sizes = {"heads": 4 * heads, "n_tokens": 8 * groups, "d": 8 * width, "layers": layers, "n_queries": 2}
            model, tokens = random_model(rng, SCHEMES, **sizes), int(rng.integers(20, 3000))
            for nbytes in sorted({scheme_bytes(scheme, model, tokens) for scheme in SCHEMES}):
                self.check(model, nbytes, tokens)

    def test_equal_errors(self, rng):
        window = {"kind": "window", "window": 40, "num_sinks": 0}
        alike = [window | {"note": note} for note in ("first", "second")]
        schemes = [{"kind": "full"}, alike[0], {"kind": "grouped", "group": 1}, alike[1]]
        got = cache_under_budget(random_model(rng, schemes), UNLIMITED, 100)
        hint = "equal errors, rounded to nine decimals, are not compared by bytes: the fewest are taken"
        assert_equal("the kind chosen of three that lose nothing, at 100 tokens", got["kind"], "window", hint=hint)
        assert_equal("the one chosen of two alike", got["note"], "first")

    def test_errors_are_rounded(self, rng):
        for scheme in SCHEMES:
            error = cache_under_budget(random_model(rng, [scheme]), UNLIMITED, 32)["error"]
            require(error == round(error, 9), f"the error of {scheme} is {error}: it is not rounded to nine decimals")

    @pytest.mark.robust
    def test_the_model_stays(self, rng):
        model = random_model(rng, SCHEMES)
        sample = {name: model[name].clone() for name in "qkv"}
        after = model_after(model, UNLIMITED, 32)
        changed = [now for now, old in zip(after["schemes"], SCHEMES, strict=True) if now != old]
        require(not changed, f"a scheme of model was changed, into {changed[:1]}: return a new dict")
        for name in "qkv":
            require(torch.equal(after[name], sample[name]), f"the sample's {name} was changed in place")

    @pytest.mark.refuses
    def test_what_is_refused(self, rng):
        model = random_model(rng, SCHEMES)
        unknown = random_model(rng, [{"kind": "full"}, {"kind": "pruned", "share": 0.5}])
        least = min(scheme_bytes(scheme, model, 32) for scheme in SCHEMES)
        table = [
            ((model, least - 1, 32), f"for {least - 1} bytes, when the smallest scheme needs {least}", [str(least)]),
            ((unknown, UNLIMITED, 32), "for the kind 'pruned'", ["pruned"]),
            ((model, UNLIMITED, 0), "for 0 tokens", {"tokens": 0}),
            ((model, UNLIMITED, -3), "for −3 tokens", {"tokens": -3}),
        ]
        assert_refused(cache_under_budget, table)
