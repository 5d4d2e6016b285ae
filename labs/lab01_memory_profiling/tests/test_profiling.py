"""Lab 01's suite: what standard attention computes, and what it weighs."""

import copy
import functools
import math

import numpy as np
import pytest
from profiling import (
    analyze_scaling,
    estimate_attention_memory,
    measure_attention_memory,
    plot_memory_scaling,
    profile_memory_scaling,
    standard_attention,
)

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays
from labkit.meters.drawing import axes_drawn_in
from labkit.meters.weights import weights_computed
from labkit.testing.attention.array_bytes import (
    ESTIMATED,
    MEASURED,
    assert_estimated,
    assert_factor,
    assert_measured,
    made_up,
    true_bytes,
)
from labkit.testing.attention.cases import DTYPES, Case, worked_example
from labkit.testing.attention.reference import Attention, attention, random_qkv
from labkit.testing.attention.suspects import attention_suspects, matrix_suspects
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_tuple,
    assert_type,
    compare_each,
    require,
)
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone

robust, small, refuses = (pytest.mark.kind(name) for name in ("robust", "small", "refuses"))
HANDOUT_MIB = {512: 1, 1024: 4, 2048: 16, 4096: 64, 8192: 256}

NO_KEY = "a query that may look at no key gets weights and output 0: −inf − (−inf) and 0/0 are NaN"
TRANSPOSED = "Usual cause: K.T turns all axes round, those of the batch too: np.swapaxes(K, -1, -2) swaps the last two"
CURRENT = "plt.… speaks to the Axes made last, ax.… to those given"


def run(Q, K, V, *mask):
    """The student's output and weights."""
    try:
        result = standard_attention(Q, K, V, *mask)
    except ValueError as error:
        if Q.ndim > 2 and "broadcast together with shapes" not in str(error):
            error.add_note(TRANSPOSED)
        raise
    assert_tuple("standard_attention's result", result, ("output", "weights"))
    shapes = [getattr(array, "shape", None) for array in result]
    matrix = (*Q.shape[:-1], K.shape[-2])
    swapped = [matrix, (*Q.shape[:-1], V.shape[-1])]
    require(shapes != swapped or matrix == swapped[1], "the weights came first: the result is (output, weights)")
    return result


def assert_attention(Q, K, V, mask=None, hint="", nan_hint="", usual=None):
    """Compare output and weights with the reference, and name a usual mistake when one fits."""
    inputs = [array.copy() for array in (Q, K, V)]  # what is right must not be told from what the answer has changed
    output, weights = run(*inputs, *([] if mask is None else [mask]))
    case = Case(Q, K, V, mask=mask)
    found = lambda: (usual or {}) | attention_suspects(case) | matrix_suspects(case)  # noqa: E731
    results = {"weights": weights, "output": output}
    compare_each(
        results, lambda name: case.check(name, results[name], name, suspects=found, hint=hint, nan_hint=nan_hint)
    )


class TestStandardAttention:
    def test_worked_example(self):
        assert_attention(*worked_example(), hint="compare each step with the handout's worked numbers")

    def test_odd_lengths(self, rng):
        assert_attention(*random_qkv(rng, n_queries=63, d=17))

    def test_more_keys_than_queries(self, rng):
        assert_attention(*random_qkv(rng, n_queries=5, n_keys=129, d=16), hint="N_q is taken for N_k somewhere")

    def test_more_queries_than_keys(self, rng):
        assert_attention(*random_qkv(rng, n_queries=129, n_keys=7, d=16), hint="N_q is taken for N_k somewhere")

    def test_values_of_another_width(self, rng):
        assert_attention(*random_qkv(rng, n_queries=33, d=24, d_v=5), hint="d is taken for d_v somewhere")

    def test_batch(self, rng):
        assert_attention(
            *random_qkv(rng, n_queries=9, n_keys=11, d=8, batch=(3,)),
            hint="every batch entry is an attention of its own: swap the last two axes of K only",
        )

    def test_batch_and_heads(self, rng):
        assert_attention(*random_qkv(rng, n_queries=9, n_keys=6, d=8, batch=(2, 3)))

    def test_mask(self, rng):
        Q, K, V = random_qkv(rng, n_queries=21, n_keys=34, d=8)
        mask = rng.random((21, 34)) < 0.4
        mask[:, 0] = False
        assert_attention(Q, K, V, mask)

    def test_mask_of_one_row(self, rng):
        Q, K, V = random_qkv(rng, n_queries=9, n_keys=12, d=8, batch=(2,))
        padding = np.arange(12) >= 7
        assert_attention(Q, K, V, padding, hint="the mask broadcasts: one row stands for all queries")

    def test_mask_of_each_batch_entry(self, rng):
        Q, K, V = random_qkv(rng, n_queries=9, n_keys=12, d=8, batch=(3,))
        mask = np.arange(12) >= np.array([4, 12, 9])[:, None, None]
        assert_attention(Q, K, V, mask, hint="the mask broadcasts over (..., N_q, N_k): each batch entry has its own")

    @robust
    @pytest.mark.parametrize("logit_scale", [1e3, 1e12])
    def test_masked_keys_do_not_leak(self, rng, logit_scale):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=10, d=8)
        Q, K = np.float32(logit_scale) * (np.abs(Q) + 1), np.abs(K) + 1
        K[:4] *= -1
        mask = np.zeros((12, 10), bool)
        mask[:, 4:] = True
        V[4:] = 1e6
        hint = "a large negative number stands for −inf; beside scores that are lower still it is large"
        assert_attention(Q, K, V, mask, hint=hint, usual={hint: lambda: attention(Q, K, V)})
        leaked = float(np.abs(run(Q, K, V, mask)[1][:, 4:]).max())
        require(leaked == 0, f"a masked key has the weight {leaked:.3g}, expected 0\nUsual cause: {hint}")

    @robust
    def test_row_with_every_key_masked(self, rng):
        Q, K, V = random_qkv(rng, n_queries=6, n_keys=9, d=8)
        mask = np.zeros((6, 9), bool)
        mask[0, 3:] = mask[2] = mask[5] = True
        assert_attention(Q, K, V, mask, hint=NO_KEY, nan_hint=NO_KEY)

    @robust
    @pytest.mark.parametrize("dead", [(1, 2), (1,)], ids=["one_query", "all_queries"])
    def test_every_key_masked_in_one_batch_entry(self, rng, dead):
        Q, K, V = random_qkv(rng, n_queries=6, n_keys=9, d=8, batch=(3,))
        mask = rng.random((3, 6, 9)) < 0.4
        mask[..., 0] = False
        mask[dead] = True
        hint = f"{NO_KEY}; the same query of another batch entry keeps its own"
        assert_attention(Q, K, V, mask, hint=hint, nan_hint=hint)

    @robust
    @pytest.mark.parametrize("logit_scale", [100, 10_000])
    def test_large_logits(self, rng, logit_scale):
        assert_attention(
            *random_qkv(rng, n_queries=33, d=16, logit_scale=logit_scale),
            hint="exp overflows, or scores are clipped: take the row's maximum from every score before exp",
            nan_hint="exp overflows to inf, and inf/inf is NaN: take the row's maximum from every score before exp",
        )

    @robust
    def test_row_with_every_key_masked_beside_large_logits(self, rng):
        Q, K, V = random_qkv(rng, n_queries=6, n_keys=9, d=8, logit_scale=1_000)
        mask = np.zeros((6, 9), bool)
        mask[2] = True
        hint = "a query without keys must leave the others theirs: every row takes its own maximum before exp"
        assert_attention(Q, K, V, mask, hint=hint, nan_hint=hint)

    @robust
    def test_rows_far_apart(self, rng):
        Q, K, V = random_qkv(rng, n_queries=5, n_keys=12, d=8)
        Q *= np.array([[1], [1e4], [10], [1e3], [100]], np.float32)
        K[0] = Q[1] / np.linalg.norm(Q[1])
        cause = "the maximum of the whole matrix is taken from every row, and a row far below it underflows to 0"

        def one_maximum():
            logits = np.einsum("id,jd->ij", Q.astype(float), K.astype(float)) / math.sqrt(8)
            powers = np.exp(logits - logits.max())
            weights = powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(np.float32).tiny)
            return Attention(weights @ V, weights, np.zeros(5))

        assert_attention(Q, K, V, nan_hint=cause, usual={cause: one_maximum})

    @robust
    def test_float16_values(self, rng):
        Q, K, V = random_qkv(rng, n_queries=15, n_keys=21, d=16, dtype=np.float16, logit_scale=6)
        cause = "float16 ends at 65,504: exp overflows above 11; take the row's maximum from every score before exp"
        assert_attention(Q, K, V, hint=cause, nan_hint=cause)

    @robust
    def test_very_negative_logits(self, rng):
        Q = np.full((4, 8), 200, np.float32)
        K = -np.abs(rng.standard_normal((5, 8))).astype(np.float32) - 10
        V = rng.standard_normal((5, 3)).astype(np.float32)
        cause = "the maximum must be the row's own: a row may lie below 0 throughout"
        assert_attention(Q, K, V, hint=cause, nan_hint=cause)

    @robust
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtype_is_kept(self, rng, dtype):
        Q, K, V = random_qkv(rng, n_queries=7, d=64, dtype=dtype)
        mask = np.triu(np.ones((7, 7), bool), 1)
        for result in (run(Q, K, V), run(Q, K, V, mask)):
            for name, array in zip(("output", "weights"), result, strict=True):
                assert_dtype(name, array, dtype)

    def test_float64_is_computed_in_float64(self, rng):
        assert_attention(
            *random_qkv(rng, n_queries=20, d=32, dtype=np.float64),
            hint="a step is done in float32, or a small number was added to the sums",
        )

    @robust
    def test_arguments_are_left_alone(self, rng):
        arrays = dict(zip("QKV", random_qkv(rng, n_queries=8, d=4), strict=True))
        arrays["mask"] = np.triu(np.ones((8, 8), bool), 1)
        with left_alone(arrays, arrays.values()):
            run(*arrays.values())

    @small
    def test_weights_are_the_full_matrix(self, rng):
        Q, K, V = random_qkv(rng, n_queries=128, n_keys=192, d=32)
        assert_attention(Q, K, V)
        memory = measure_arrays(standard_attention, Q.copy(), K.copy(), V.copy())
        weights = 128 * 192 * 4
        require(memory.kept_bytes >= weights, "the weights returned hold less memory than N_q · N_k elements")
        assert_at_most(
            "the peak",
            memory.peak_bytes,
            12 * weights + BOOKKEEPING_BYTES,
            hint="Twelve arrays of N_q × N_k are plenty. Usual cause: products formed by broadcasting, (N_q, N_k, d)",
        )

    @refuses
    @pytest.mark.parametrize(
        ("shapes", "mentions"),
        [
            (((5, 8), (6, 7), (6, 8)), ("(5, 8)", "(6, 7)")),
            (((5, 8), (6, 8), (4, 8)), ("(6, 8)", "(4, 8)")),
        ],
        ids=["Q_and_K_differ_in_d", "K_and_V_differ_in_length"],
    )
    def test_shapes_that_do_not_fit(self, shapes, mentions):
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        assert_raises(
            ValueError, lambda: standard_attention(*arrays), when="for shapes that do not fit", mentions=mentions
        )


@probe
def measured_in_turn(sizes):
    """Measure each of `sizes`; what the calls returned, seen after the last one, and how many different objects."""
    results = [measure_attention_memory(*each) for each in sizes]
    return results, len({id(result) for result in results})


@probe
def watched(task, *args):
    """What a task returns, and how many weights it computed in rows of each length: [[row length, weights], …]."""
    functions = {"measure": measure_attention_memory, "profile": profile_memory_scaling}
    result, weights = weights_computed(functions[task], *args, others=functions.values())
    return result, sorted(map(list, weights.items()))


def assert_really_run(weights, seq_len, batch_size=1):
    """Fail unless as many weights were computed as attention at this length has."""
    want, seen = batch_size * seq_len**2, dict(map(tuple, weights)).get(seq_len, 0)
    require(
        seen >= want,
        f"at N = {seq_len}, batch_size = {batch_size}, {seen:,} of {want:,} weights were computed\n"
        "Usual cause: sizes computed by formula, arrays made for show, or scaled from another length or from one entry "
        "of the batch: run attention on all",
    )


class TestMeasureAttentionMemory:
    def measure(self, *args, **kwargs):
        return self.assert_stats(measure_attention_memory(*args, **kwargs))

    def assert_stats(self, result):
        return assert_keys("the result", result, (*MEASURED, "seq_len", "d_model"))

    def test_worked_example(self):
        assert_measured(self.measure(512, 64), 512, 64)

    def test_odd_sizes(self):
        assert_measured(self.measure(129, 17), 129, 17)

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(3):
            sizes = [int(n) for n in rng.integers(5, 90, 3)]
            assert_measured(self.measure(*sizes), *sizes)

    def test_batch_counts(self):
        assert_measured(self.measure(33, 8, batch_size=5), 33, 8, batch_size=5)

    def test_batch_is_the_third_argument(self):
        assert_measured(self.measure(20, 6, 3), 20, 6, batch_size=3)

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    def test_dtype_counts(self, dtype):
        assert_measured(self.measure(40, 12, dtype=dtype), 40, 12, dtype=dtype)

    def test_sizes_are_handed_through(self):
        stats = self.measure(48, 10, batch_size=2)
        assert_equal("seq_len", stats["seq_len"], 48, suspects={"it is batch_size": 2, "it is d_model": 10})
        assert_equal("d_model", stats["d_model"], 10, suspects={"it is seq_len": 48})

    def test_bytes_are_whole_numbers(self):
        stats = self.measure(16, 4)
        for key in MEASURED:
            assert_type(key, stats[key], (int, np.integer), "a whole number of bytes")

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_attention_is_really_run(self, batch_size):
        stats, weights = watched("measure", 64, 8, batch_size)
        assert_measured(self.assert_stats(stats), 64, 8, batch_size)
        assert_really_run(weights, 64, batch_size)

    @small
    def test_the_weights_are_really_there(self):
        peak = measure_arrays(measure_attention_memory, 256, 8).peak_bytes
        weights = 256 * 256 * 4
        require(
            peak >= weights,
            f"the call allocates {peak:,} bytes at most, less than the weights alone ({weights:,})\n"
            "Usual cause: sizes computed by formula; this task measures arrays, the estimate comes later",
        )

    @robust
    def test_measurements_are_of_this_call(self):
        (first, second), n_dicts = measured_in_turn([(64, 8), (32, 8)])
        self.assert_stats(first)
        self.assert_stats(second)
        require(n_dicts == 2, "two calls returned the same dict: what the second writes, the first shows too")
        assert_equal(
            "attention_matrix_memory of the first call, after a second", first["attention_matrix_memory"], 64 * 64 * 4
        )


class TestProfileMemoryScaling:
    def profile(self, seq_lengths, **kwargs):
        return self.assert_lengths(profile_memory_scaling(seq_lengths, **kwargs), list(seq_lengths))

    def assert_lengths(self, results, lengths):
        assert_type("the result", results, dict, "a dict {seq_len: stats}")
        require(set(results) == set(lengths), f"the keys of the result are {list(results)}, expected {lengths}")
        return results

    def weights_of(self, results):
        return {
            n: assert_keys(f"results[{n}]", stats, (*MEASURED, "seq_len", "d_model"))["attention_matrix_memory"]
            for n, stats in results.items()
        }

    def test_every_length_is_measured(self):
        lengths = [64, 31, 128]
        for n, weights in self.weights_of(self.profile(lengths)).items():
            usual = {f"the value of another length ({m}) stands here": m * m * 4 for m in lengths if m != n}
            assert_equal(f"attention_matrix_memory at {n}", weights, n * n * 4, suspects=usual)

    def test_lengths_drawn_at_random(self, rng):
        d_model, *lengths = (int(n) for n in rng.choice(np.arange(5, 120), 4, replace=False))
        for n, stats in self.profile(lengths, d_model=d_model).items():
            one, weights, _ = true_bytes(n, d_model)
            assert_equal(f"attention_matrix_memory at {n}", stats["attention_matrix_memory"], weights)
            assert_equal(f"input_memory at {n}, d_model {d_model}", stats["input_memory"], 3 * one)

    def test_all_stats_are_there(self):
        stats = self.profile([48])[48]
        one, weights, output = true_bytes(48, 64)
        for key, want in zip(MEASURED, (3 * one, weights, output, 3 * one + weights + output), strict=True):
            assert_equal(f"results[48][{key!r}]", stats[key], want)
        assert_equal("results[48]['seq_len']", stats["seq_len"], 48)

    def test_default_width_is_64(self):
        assert_equal("input_memory at 32", self.profile([32])[32]["input_memory"], 3 * 32 * 64 * 4)

    def test_width_is_handed_on(self):
        stats = self.profile([32], d_model=10)[32]
        usual = {"d_model is always 64": 24_576}
        assert_equal("input_memory", stats["input_memory"], 3 * 32 * 10 * 4, suspects=usual)
        assert_equal("d_model", stats["d_model"], 10)

    def test_batch_is_handed_on(self):
        weights = self.profile([32], batch_size=3)[32]["attention_matrix_memory"]
        usual = {"batch_size is dropped": 4096, "d_model and batch_size are swapped": 64 * 4096}
        assert_equal("attention_matrix_memory", weights, 3 * 32 * 32 * 4, suspects=usual)

    def test_order_is_kept(self):
        assert_equal(
            "the keys, in order",
            list(self.profile([64, 16, 32])),
            [64, 16, 32],
            suspects={"the lengths are sorted: they stay in the order given": [16, 32, 64]},
        )

    @robust
    def test_any_iterable_of_lengths(self):
        self.assert_lengths(profile_of_a_generator([16, 32]), [16, 32])
        assert_equal("the number of lengths for an empty list", len(self.profile([])), 0)

    @pytest.mark.parametrize("lengths", [(16, 48, 31), (48, 16, 31)], ids=["shortest_first", "longest_first"])
    def test_attention_is_really_run(self, lengths):
        results, weights = watched("profile", list(lengths), 8, 2)
        for n, found in self.weights_of(self.assert_lengths(results, list(lengths))).items():
            assert_equal(f"attention_matrix_memory at {n}", found, 2 * n * n * 4)
        for n in lengths:
            assert_really_run(weights, n, 2)


class TestEstimateAttentionMemory:
    def estimate(self, *args, **kwargs):
        return assert_keys("the result", estimate_attention_memory(*args, **kwargs), ESTIMATED)

    def test_worked_example(self):
        assert_estimated(self.estimate(4096, 64), 4096, 64)

    @pytest.mark.parametrize(("seq_len", "mib"), HANDOUT_MIB.items())
    def test_table_of_the_handout(self, seq_len, mib):
        weights = self.estimate(seq_len, 64)["attention_matrix_memory"]
        usual = {
            "it has N · d elements in place of N · N": seq_len * 64 * 4,
            "elements are counted in place of bytes": seq_len**2,
            "only the lower triangle is counted": seq_len * (seq_len + 1) // 2 * 4,
            "the value is in MiB: memory is in bytes": mib,
        }
        assert_equal(f"attention_matrix_memory at {seq_len}", weights, mib * 2**20, suspects=usual)

    def test_odd_sizes(self):
        assert_estimated(self.estimate(129, 17), 129, 17)

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(5):
            seq_len, d_model, itemsize, batch_size = (int(n) for n in rng.integers(2, 9000, 4))
            stats = self.estimate(seq_len, d_model, itemsize, batch_size)
            assert_estimated(stats, seq_len, d_model, itemsize, batch_size)

    def test_bytes_of_an_element_count(self):
        assert_estimated(self.estimate(100, 20, dtype_bytes=2), 100, 20, itemsize=2)

    def test_dtype_bytes_is_the_third_argument(self):
        assert_estimated(self.estimate(100, 20, 8), 100, 20, itemsize=8)

    def test_batch_counts(self):
        assert_estimated(self.estimate(50, 16, batch_size=7), 50, 16, batch_size=7)

    def test_bytes_are_whole_numbers(self):
        for key, value in self.estimate(3, 5).items():
            assert_type(key, value, (int, np.integer), "a whole number of bytes")

    @robust
    def test_large_sizes_do_not_overflow(self):
        sizes = {"seq_len": 1_000_003, "d_model": 129, "batch_size": 63_001}
        assert_estimated(self.estimate(**sizes), **sizes)

    @small
    def test_nothing_is_allocated(self):
        peak = measure_arrays(estimate_attention_memory, 1500, 64).peak_bytes
        assert_at_most(
            "the peak of the call",
            peak,
            BOOKKEEPING_BYTES,
            hint="An estimate needs shapes, not arrays: nothing is made",
        )

    def test_agrees_with_a_measurement(self):
        for seq_len, d_model, batch_size in ((96, 24, 2), (65, 7, 1)):
            stats = self.estimate(seq_len, d_model, batch_size=batch_size)
            shape = {"n_queries": seq_len, "d": d_model, "batch": (batch_size,)}
            Q, K, V = random_qkv(np.random.default_rng(0), **shape)
            output, weights, _ = attention(Q, K, V, dtype=np.float32)
            for key, array in zip(ESTIMATED, (Q, K, V, weights, output), strict=False):
                assert_equal(f"{key} against a real array's nbytes", stats[key], array.nbytes)


@probe
def profile_of_a_generator(lengths):
    """The profile of lengths that can be gone through once."""
    return profile_memory_scaling(n for n in lengths)


@probe
def results_once_analyzed(results):
    """What `results` hold after a call that reads them."""
    analyze_scaling(results)
    return results


class TestAnalyzeScaling:
    def analyze(self, results):
        keys = ("seq_lengths", "attention_memory", "total_memory", "scaling_factor")
        return assert_keys("the result", analyze_scaling(results), keys)

    def assert_factor(self, results, want, usual=None, rel=1e-3):
        assert_factor(self.analyze(results)["scaling_factor"], results, want, usual or {}, rel)

    def test_growth_with_the_square(self):
        self.assert_factor(made_up([128, 256, 512]), 4.0, {"total growth is taken from first to last": 16.0})

    def test_lengths_and_growth_drawn_at_random(self, rng):
        for _ in range(3):
            lengths = rng.choice(np.arange(100, 4000, 7), 4, replace=False)
            exponent = float(rng.uniform(0.5, 3.5))
            self.assert_factor(made_up([int(n) for n in lengths], exponent=exponent), 2.0**exponent, rel=0.02)

    def test_lengths_that_triple(self):
        self.assert_factor(made_up([10, 30, 90, 270]), 4.0)

    def test_lengths_at_uneven_steps(self):
        self.assert_factor(made_up([100, 150, 400, 1000]), 4.0)

    def test_linear_and_cubic_growth(self):
        self.assert_factor(made_up([64, 128, 512], exponent=1), 2.0, {"the square is assumed": 4.0})
        self.assert_factor(made_up([8, 16, 64], exponent=3), 8.0, {"the square is assumed": 4.0})

    def test_every_length_counts_in_the_fit(self):
        results = made_up([64, 128, 256, 512])
        for n, factor in zip((128, 256, 512), (4, 2, 3), strict=True):
            results[n]["attention_matrix_memory"] *= factor
        logs = [np.log2(results[n]["attention_matrix_memory"]) for n in sorted(results)]
        slope = np.polyfit([6, 7, 8, 9], logs, 1)[0]
        self.assert_factor(
            results,
            2.0**slope,
            {
                "only the first and the last length are used": 2.0 ** ((logs[-1] - logs[0]) / 3),
                "the square is assumed, or the exponent rounded": 4.0,
                "the ratios of neighbours are averaged": np.mean(2.0 ** np.diff(logs)),
                "the median of the neighbours' ratios is taken": np.median(2.0 ** np.diff(logs)),
            },
        )

    def test_of_the_weights_not_of_the_total(self):
        results = made_up([64, 128, 256])
        for n in results:
            results[n]["total_memory"] = 11 * n
        self.assert_factor(results, 4.0, {"the total is fitted in place of the weights": 2.0})

    def test_lists_are_sorted_by_length(self):
        results = made_up([512, 64, 256])
        analysis = self.analyze(results)
        assert_equal(
            "seq_lengths",
            list(analysis["seq_lengths"]),
            [64, 256, 512],
            suspects={"the order given is kept: they must ascend": [512, 64, 256]},
        )
        for key, source in (("attention_memory", "attention_matrix_memory"), ("total_memory", "total_memory")):
            want = [results[n][source] for n in (64, 256, 512)]
            given = [stats[source] for stats in results.values()]
            usual = {"it is in the order given, seq_lengths is sorted": given}
            assert_equal(key, list(analysis[key]), want, suspects=usual, hint="in the order of seq_lengths")
        self.assert_factor(results, 4.0)

    def test_two_lengths_are_enough(self):
        self.assert_factor(made_up([100, 300]), 4.0)

    @refuses
    def test_one_length_is_too_few(self):
        for results, when in (({}, "for empty results"), (made_up([64]), "for results of a single length")):
            assert_raises(ValueError, lambda results=results: analyze_scaling(results), when=when)

    @robust
    def test_results_are_left_alone(self):
        results = results_once_analyzed(made_up([64, 32]))
        require(list(results.items()) == list(made_up([64, 32]).items()), "results, the argument, was changed")


@probe
def drawn(results, given=True, others_current=False):
    """What stands in the Axes that the task drew `results` in."""
    return axes_drawn_in(plot_memory_scaling, results, given=given, others_current=others_current)


RESULTS = made_up([64, 512, 128, 256])


@functools.cache
def drawn_once(**options):
    """`drawn`, of the results that most tests draw."""
    return drawn(copy.deepcopy(RESULTS), **options)


def stop_at_a_stub():
    """Raise what a stub raises, before matplotlib is imported: that takes longer than all the other tests together."""
    try:
        plot_memory_scaling({}, ax=object())
    except NotImplementedError:
        raise
    except Exception:
        return


class TestPlotMemoryScaling:
    def draw(self, **options):
        """What stands in the Axes drawn in: one drawing for all tests that look at it."""
        stop_at_a_stub()
        return drawn_once(**options)

    def drawn_twice(self):
        """What stands in the Axes given, when they are the current ones and when not; and why it may differ then."""
        for others_current, why in ((False, ""), (True, f"\nUsual cause: {CURRENT}")):
            told = self.draw(others_current=others_current)
            self.lines(told)
            yield told, why

    def assert_axes(self, told):
        if not told["is_axes"]:
            assert_type("the result", told["result"], (), "the Axes drawn in")

    def lines(self, told):
        """The lines in the Axes given, by their labels: {label: (x, y)}."""
        self.assert_axes(told)
        require(
            told["is_there_before"],
            "other Axes were returned than those given: a new figure is for ax=None only",
        )
        found = {label: points for label, *points in told["lines"]}
        for label in ("attention weights", "Q, K, V"):
            labels = ", ".join(map(repr, found)) or "none"
            require(label in found, f"no line has the label {label!r}; the labels of the lines: {labels}")
        return found

    @pytest.mark.parametrize(
        ("label", "key"), [("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")]
    )
    def test_points(self, label, key):
        x, y = self.lines(self.draw())[label]
        lengths = sorted(RESULTS)
        usual = {
            "the lengths are in the order given: points must ascend": list(RESULTS),
            "x is log2 of the length: the axis takes the logarithm, not the data": [int(math.log2(n)) for n in lengths],
        }
        assert_equal(f"x of {label!r}", [int(n) for n in x], lengths, suspects=usual)
        in_bytes = np.array([RESULTS[n][key] for n in lengths])
        total = np.array([RESULTS[n]["total_memory"] for n in lengths])
        usual = {
            "the values are bytes: divide by 2**20": in_bytes,
            "the values are MB (10⁶ bytes): MiB are 2**20": in_bytes / 1e6,
            "the values are KiB": in_bytes / 2**10,
            "it is the total that is drawn": total / 2**20,
        }
        want = in_bytes / 2**20
        assert_close(f"y of {label!r}", np.asarray(y, float), want, plain=want.astype(np.float32), suspects=usual)

    def test_lengths_drawn_at_random(self, rng):
        stop_at_a_stub()
        results = made_up([int(n) for n in rng.choice(np.arange(60, 4000), 4, replace=False)])
        x, y = self.lines(drawn(copy.deepcopy(results)))["attention weights"]
        assert_equal("x of 'attention weights'", [int(n) for n in x], sorted(results))
        want = np.array([results[n]["attention_matrix_memory"] for n in sorted(results)]) / 2**20
        assert_close("y of 'attention weights'", np.asarray(y, float), want, plain=want.astype(np.float32))

    def test_both_axes_are_logarithmic_to_base_2(self):
        for told, why in self.drawn_twice():
            self.assert_scales(told, why)

    def assert_scales(self, told, why=""):
        for name in "xy":
            scale, base = told["scales"][name], told["bases"][name]
            require(scale == "log", f"the {name} axis's scale is {scale!r}, expected 'log': ax.set_{name}scale{why}")
            hint = f"without base=2, ax.set_{name}scale takes 10"
            assert_equal(f"the base of the {name} axis", float(base), 2.0, hint=hint)

    def test_labels_say_what_and_in_which_unit(self):
        for told, why in self.drawn_twice():
            require(told["labels"]["x"].strip(), f"the x axis has no label{why}")
            label = told["labels"]["y"]
            require("MiB" in label, f"the y axis's label is {label!r}; it must name the unit, MiB{why}")

    def test_legend_is_shown(self):
        for told, why in self.drawn_twice():
            require(told["legend"] is not None, f"no legend is shown: ax.legend(){why}")
            shown = ", ".join(sorted(told["legend"])) or "nothing"
            require({"attention weights", "Q, K, V"} <= set(told["legend"]), f"the legend shows only {shown}")

    def test_makes_axes_when_none_are_given(self):
        told = self.draw(given=False)
        self.assert_axes(told)
        require(
            not told["is_there_before"],
            "without ax it drew into a figure that was already there, in place of one of its own",
        )
        n_lines = len(told["lines"])
        require(n_lines >= 2, f"the new Axes hold {n_lines} lines, expected 2")
        self.assert_scales(told)

    @robust
    def test_leaves_other_axes_alone(self):
        told = self.draw(others_current=True)
        others = told["others"]
        require(not others["lines"], "it drew into the current Axes (plt.plot), not into those given (ax.plot)")
        changed = others["legend"] is not None or any((*others["labels"].values(), others["scales"]["x"] == "log"))
        require(not changed, f"it changed the current Axes, which are not those given\nUsual cause: {CURRENT}")
        assert_equal("the number of new figures, after a call with ax", told["n_new_figures"], 0)

    @robust
    def test_results_are_left_alone(self):
        told = self.draw()
        self.lines(told)
        require(list(told["results"].items()) == list(RESULTS.items()), "results, the argument, was changed")
