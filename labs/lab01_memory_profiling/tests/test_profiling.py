"""Lab 01's suite: what standard attention computes, and how much memory its arrays take."""

import copy
import functools

import numpy as np
import pytest
from profiling import (
    analyze_scaling,
    estimate_attention_memory,
    measure_attention_memory,
    profile_memory_scaling,
    standard_attention,
)

from labkit.meters.arrays import BOOKKEEPING_BYTES
from labkit.testing.attention.cases import Case, array_case, worked_example
from labkit.testing.attention.mistakes import attention_mistakes, matrix_mistakes
from labkit.testing.attention.table import attention_cases, mismatched_shapes
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    compare_each,
    require,
)
from labkit.testing.unchanged import report_mutation_first, unchanged

from .probes import (
    arrays_of_call,
    measured_in_turn,
    plotted,
    profile_of_a_generator,
    result_and_weights,
    results_once_analyzed,
)
from .support import ESTIMATED, MEASURED, assert_bytes, assert_factor, assert_really_run, made_up, true_bytes

NO_KEY = "a query that may look at no key gets weights and output 0: −inf − (−inf) and 0/0 are NaN"
OTHER_ENTRIES = f"{NO_KEY}; the same query of another batch entry keeps its own"
OTHER_QUERIES = "a query without keys must leave the others theirs: every row takes its own maximum before exp"
TRANSPOSED = "Usual cause: K.T turns all axes round, those of the batch too: np.swapaxes(K, -1, -2) swaps the last two"
CURRENT = "plt.… speaks to the Axes made last, ax.… to those given"


CASES = attention_cases("full", "masked", dtypes=("float16", "float32", "float64"), sums="own")


def attend(*arguments):
    """The student's (output, weights)."""
    try:
        result = standard_attention(*arguments)
    except ValueError as error:
        if "core dimension" in str(error) or "remapped shapes" in str(error):  # matmul's own words
            error.add_note(TRANSPOSED)
        raise
    return assert_tuple("standard_attention's result", result, ("output", "weights"))


def assert_attention(case, result, hint="", nan_hint="", usual=None):
    """Compare (output, weights) with the reference, in float64; name a known mistake where one fits."""
    results = dict(zip("OP", result, strict=True))
    shapes = [getattr(array, "shape", None) for array in result]
    matrix, output = case.want["P"].shape, case.want["O"].shape
    require(shapes != [matrix, output] or matrix == output, "the weights came first: the result is (output, weights)")

    def known_mistakes():
        return (usual or {}) | attention_mistakes(case) | matrix_mistakes(case)

    def check(name):
        called = {"O": "output", "P": "weights"}[name]
        options = {"called": called, "dtype": case.Q.dtype, "hint": hint, "nan_hint": nan_hint}
        case.check(name, results[name], known_mistakes, **options)

    compare_each("PO", check)


class TestStandardAttention:
    @pytest.mark.basic
    def test_worked_example(self):
        case = Case(*worked_example())
        given = case.arguments
        with report_mutation_first(given):
            assert_attention(case, attend(*given.values()))

    @pytest.mark.basic
    @pytest.mark.parametrize("row", CASES)
    def test_results(self, rng, row):
        case = row.draw(array_case, rng)
        given = case.arguments
        with report_mutation_first(given):
            assert_attention(case, attend(*given.values()), hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.parametrize("shape", [(12,), (9, 1), (3, 1, 12), (3, 9, 12)], ids=str)
    def test_mask_broadcasts(self, rng, shape):
        case = array_case(rng, n_queries=9, n_keys=12, d=8, batch=(3,))
        case.mask = rng.random(shape) < 0.4
        hint = f"the mask has shape {shape} and broadcasts over (..., N_q, N_k)"
        assert_attention(case, attend(*case.arguments.values()), hint=hint)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = array_case(rng, n=20, d=8, masked=True).arguments
        with unchanged(given):
            attend(*given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        assert_refused(standard_attention, mismatched_shapes(*array_case(rng, n_queries=6, n_keys=5, d=8).inputs))

    @pytest.mark.robust
    @pytest.mark.parametrize("logit_scale", [1e3, 1e12])
    def test_masked_keys_do_not_leak(self, rng, logit_scale):
        Q, K, V = array_case(rng, n_queries=12, n_keys=10, d=8).inputs
        Q, K = np.float32(logit_scale) * (np.abs(Q) + 1), np.abs(K) + 1
        K[:4] *= -1
        mask = np.zeros((12, 10), bool)
        mask[:, 4:] = True
        V[4:] = 1e6
        hint = "a large negative number stands for −inf; beside scores that are lower still it is large"
        case = Case(Q, K, V, mask=mask)
        result = attend(*case.arguments.values())
        assert_attention(case, result, hint=hint, usual={hint: lambda: Case(Q, K, V).want})
        leaked = float(np.abs(result[1][:, 4:]).max())
        require(leaked == 0, f"a masked key has the weight {leaked:.3g}, expected 0\nUsual cause: {hint}")

    @pytest.mark.robust
    @pytest.mark.parametrize(
        ("batch", "without_keys", "logit_scale", "hint"),
        [
            pytest.param((), np.s_[[2, 5]], 1, NO_KEY, id="two_queries"),
            pytest.param((3,), np.s_[1, 2], 1, OTHER_ENTRIES, id="one_query_of_one_batch_entry"),
            pytest.param((3,), np.s_[1], 1, OTHER_ENTRIES, id="all_queries_of_one_batch_entry"),
            pytest.param((), np.s_[2], 1_000, OTHER_QUERIES, id="beside_large_logits"),
        ],
    )
    def test_queries_without_keys(self, rng, batch, without_keys, logit_scale, hint):
        case = array_case(rng, n_queries=6, n_keys=9, d=8, batch=batch, logit_scale=logit_scale)
        case.mask = rng.random((*batch, 6, 9)) < 0.4
        case.mask[..., 0] = False
        case.mask[without_keys] = True
        assert_attention(case, attend(*case.arguments.values()), hint=hint, nan_hint=hint)

    @pytest.mark.robust
    def test_rows_far_apart(self, rng):
        Q, K, V = array_case(rng, n_queries=5, n_keys=12, d=8).inputs
        Q *= np.array([[1], [1e4], [10], [1e3], [100]], np.float32)
        K[0] = Q[1] / np.linalg.norm(Q[1])
        case = Case(Q, K, V)
        cause = "the maximum of the whole matrix is taken from every row, and a row far below it underflows to 0"

        def one_maximum():
            powers = np.exp(case.scores - case.scores.max())
            weights = powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(np.float32).tiny)
            return {"O": weights @ V, "P": weights}

        assert_attention(case, attend(*case.arguments.values()), nan_hint=cause, usual={cause: one_maximum})

    @pytest.mark.cost
    def test_weights_are_the_full_matrix(self, rng):
        case = array_case(rng, n_queries=128, n_keys=192, d=32)
        assert_attention(case, attend(*case.arguments.values()))
        peak, kept, _ = arrays_of_call("standard_attention", *case.inputs)
        weights = 128 * 192 * 4
        require(kept >= weights, "the weights returned hold less memory than N_q · N_k elements")
        hint = "Twelve arrays of N_q × N_k are plenty. Usual cause: products formed by broadcasting, (N_q, N_k, d)"
        assert_at_most("the peak", peak, 12 * weights + BOOKKEEPING_BYTES, hint=hint)


class TestMeasureAttentionMemory:
    def measure(self, *args, **kwargs):
        return self.with_all_keys(measure_attention_memory(*args, **kwargs))

    def with_all_keys(self, result):
        return assert_keys("the result", result, (*MEASURED, "seq_len", "d_model"))

    def test_worked_example(self):
        assert_bytes(MEASURED, self.measure(512, 64), 512, 64)

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(3):
            sizes = [int(n) for n in rng.integers(5, 90, 3)]
            assert_bytes(MEASURED, self.measure(*sizes), *sizes)

    def test_batch_counts(self):
        assert_bytes(MEASURED, self.measure(33, 8, batch_size=5), 33, 8, batch_size=5)

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    def test_dtype_counts(self, dtype):
        assert_bytes(MEASURED, self.measure(40, 12, dtype=dtype), 40, 12, itemsize=np.dtype(dtype).itemsize)

    def test_sizes_are_returned(self):
        stats = self.measure(48, 10, batch_size=2)
        assert_equal("seq_len", stats["seq_len"], 48, mistakes={"it is batch_size": 2, "it is d_model": 10})
        assert_equal("d_model", stats["d_model"], 10, mistakes={"it is seq_len": 48})

    @pytest.mark.parametrize("batch_size", [1, 3], ids=["B1", "B3"])
    def test_attention_is_really_run(self, batch_size):
        stats, weights = result_and_weights("measure", 64, 8, batch_size)
        assert_bytes(MEASURED, self.with_all_keys(stats), 64, 8, batch_size)
        assert_really_run(weights, 64, batch_size)

    @pytest.mark.cost
    def test_the_weights_are_really_there(self):
        peak, _, _ = arrays_of_call("measure_attention_memory", 256, 8)
        weights = 256 * 256 * 4
        require(
            peak >= weights,
            f"the call allocates {peak:,} bytes at most, less than the weights alone ({weights:,})\n"
            "Usual cause: sizes computed by formula; this task measures arrays, the estimate comes later",
        )

    @pytest.mark.robust
    def test_measurements_are_of_this_call(self):
        (first, second), n_dicts = measured_in_turn([(64, 8), (32, 8)])
        require(n_dicts == 2, "two calls returned the same dict: what the second writes, the first shows too")
        assert_bytes(MEASURED, self.with_all_keys(first), 64, 8)
        assert_bytes(MEASURED, self.with_all_keys(second), 32, 8)


class TestProfileMemoryScaling:
    def profile(self, seq_lengths, *args, **kwargs):
        return self.of_lengths(profile_memory_scaling(seq_lengths, *args, **kwargs), list(seq_lengths))

    def of_lengths(self, results, lengths):
        """The results, if their keys are these lengths and each has all stats."""
        assert_type("the result", results, dict, "a dict {seq_len: stats}")
        require(set(results) == set(lengths), f"the keys of the result are {list(results)}, expected {lengths}")
        return {
            n: assert_keys(f"results[{n}]", stats, (*MEASURED, "seq_len", "d_model")) for n, stats in results.items()
        }

    def test_every_length_is_measured(self):
        lengths = [64, 31, 128]
        for n, stats in self.profile(lengths).items():
            usual = {f"the value of another length ({m}) stands here": m * m * 4 for m in lengths if m != n}
            name = f"attention_matrix_memory at {n}"
            assert_equal(name, stats["attention_matrix_memory"], n * n * 4, mistakes=usual)
            assert_bytes(MEASURED, stats, n, 64)

    def test_lengths_drawn_at_random(self, rng):
        d_model, *lengths = (int(n) for n in rng.choice(np.arange(5, 120), 4, replace=False))
        for n, stats in self.profile(lengths, d_model=d_model).items():
            usual = {"d_model is always 64": 3 * n * 64 * 4}
            want = true_bytes(n, d_model)["input_memory"]
            assert_equal(f"input_memory at {n}, d_model {d_model}", stats["input_memory"], want, mistakes=usual)
            assert_bytes(MEASURED, stats, n, d_model)

    def test_batch_is_handed_on(self):
        weights = self.profile([32], batch_size=3)[32]["attention_matrix_memory"]
        usual = {"batch_size is dropped": 4096, "d_model and batch_size are swapped": 64 * 4096}
        assert_equal("attention_matrix_memory", weights, 3 * 32 * 32 * 4, mistakes=usual)

    def test_order_is_kept(self):
        usual = {"the lengths are sorted: they stay in the order given": [16, 32, 64]}
        assert_equal("the keys, in order", list(self.profile([64, 16, 32])), [64, 16, 32], mistakes=usual)

    @pytest.mark.robust
    def test_any_iterable_of_lengths(self):
        self.of_lengths(profile_of_a_generator([16, 32]), [16, 32])
        assert_equal("the number of lengths for an empty list", len(self.profile([])), 0)

    @pytest.mark.parametrize("lengths", [(16, 48, 31), (48, 16, 31)], ids=["shortest_first", "longest_first"])
    def test_attention_is_really_run(self, lengths):
        results, weights = result_and_weights("profile", list(lengths), 8, 2)
        for n, stats in self.of_lengths(results, list(lengths)).items():
            assert_bytes(MEASURED, stats, n, 8, 2)
            assert_really_run(weights, n, 2)


class TestEstimateAttentionMemory:
    def estimate(self, *args, **kwargs):
        return assert_keys("the result", estimate_attention_memory(*args, **kwargs), ESTIMATED)

    @pytest.mark.basic
    def test_worked_example(self):
        assert_bytes(ESTIMATED, self.estimate(4096, 64), 4096, 64)

    @pytest.mark.basic
    @pytest.mark.parametrize(("seq_len", "mib"), [(512, 1), (8192, 256)], ids=["N512", "N8192"])
    def test_table_of_the_handout(self, seq_len, mib):
        stats = self.estimate(seq_len, 64)
        assert_bytes(ESTIMATED, stats, seq_len, 64)
        assert_equal(f"attention_matrix_memory at {seq_len}", stats["attention_matrix_memory"], mib * 2**20)

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(5):
            seq_len, d_model, itemsize, batch_size = (int(n) for n in rng.integers(2, 9000, 4))
            stats = self.estimate(seq_len, d_model, itemsize, batch_size)
            assert_bytes(ESTIMATED, stats, seq_len, d_model, batch_size, itemsize)

    def test_bytes_of_an_element_count(self):
        assert_bytes(ESTIMATED, self.estimate(100, 20, dtype_bytes=2), 100, 20, itemsize=2)

    def test_batch_counts(self):
        assert_bytes(ESTIMATED, self.estimate(50, 16, batch_size=7), 50, 16, batch_size=7)

    def test_bytes_are_whole_numbers(self):
        for key, value in self.estimate(3, 5).items():
            assert_type(key, value, (int, np.integer), "a whole number of bytes")

    @pytest.mark.robust
    def test_large_sizes_do_not_overflow(self):
        sizes = {"seq_len": 1_000_003, "d_model": 129, "batch_size": 63_001}
        assert_bytes(ESTIMATED, self.estimate(**sizes), **sizes)

    @pytest.mark.cost
    def test_nothing_is_allocated(self):
        peak, _, _ = arrays_of_call("estimate_attention_memory", 1500, 64)
        hint = "An estimate needs shapes, not arrays: nothing is made"
        assert_at_most("the peak of the call", peak, BOOKKEEPING_BYTES, hint=hint)


class TestAnalyzeScaling:
    def analyze(self, results):
        keys = ("seq_lengths", "attention_memory", "total_memory", "scaling_factor")
        return assert_keys("the result", analyze_scaling(results), keys)

    def assert_factor(self, results, want, usual=None, rel=1e-3):
        factor = self.analyze(copy.deepcopy(results))["scaling_factor"]
        assert_factor(factor, results, want, usual or {}, rel)

    @pytest.mark.basic
    @pytest.mark.parametrize(
        ("lengths", "exponent"),
        [
            pytest.param([128, 256, 512], 2, id="doubled"),
            pytest.param([10, 30, 90, 270], 2, id="tripled"),
            pytest.param([100, 150, 400, 1000], 2, id="uneven"),
            pytest.param([100, 300], 2, id="two_lengths"),
            pytest.param([64, 128, 512], 1, id="linear_growth"),
            pytest.param([8, 16, 64], 3, id="cubic_growth"),
        ],
    )
    def test_growth(self, lengths, exponent):
        self.assert_factor(made_up(lengths, exponent), 2.0**exponent)

    @pytest.mark.basic
    def test_lengths_and_growth_drawn_at_random(self, rng):
        for _ in range(3):
            lengths = rng.choice(np.arange(100, 4000, 7), 4, replace=False)
            exponent = float(rng.uniform(0.5, 3.5))
            self.assert_factor(made_up(lengths, exponent), 2.0**exponent, rel=0.02)

    def test_of_the_weights_not_of_the_total(self):
        results = made_up([64, 128, 256])
        for n in results:
            results[n]["total_memory"] = 11 * n
        self.assert_factor(results, 4.0, {"the total is fitted instead of the weights": 2.0})

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
                "the ratios of neighbours are averaged": np.mean(2.0 ** np.diff(logs)),
            },
        )

    def test_lists_are_sorted_by_length(self):
        results = made_up([512, 64, 256])
        analysis = self.analyze(copy.deepcopy(results))
        assert_equal(
            "seq_lengths",
            list(analysis["seq_lengths"]),
            [64, 256, 512],
            mistakes={"the order given is kept: they must ascend": [512, 64, 256]},
        )
        for key, source in (("attention_memory", "attention_matrix_memory"), ("total_memory", "total_memory")):
            want = [results[n][source] for n in (64, 256, 512)]
            given = [stats[source] for stats in results.values()]
            usual = {"it is in the order given, seq_lengths is sorted": given}
            assert_equal(key, list(analysis[key]), want, mistakes=usual, hint="in the order of seq_lengths")
        self.assert_factor(results, 4.0)

    @pytest.mark.refuses
    def test_one_length_is_too_few(self):
        for results, when in (({}, "for empty results"), (made_up([64]), "for results of a single length")):
            named = {"results": len(results)}
            assert_raises(ValueError, lambda results=results: analyze_scaling(results), when=when, mentions=named)

    @pytest.mark.robust
    def test_results_are_left_alone(self):
        results = results_once_analyzed(made_up([64, 32]))
        require(list(results.items()) == list(made_up([64, 32]).items()), "results, the argument, was changed")


RESULTS = made_up([64, 512, 128, 256])


@functools.cache
def drawn_once(**options):
    """What is in the Axes after drawing RESULTS; drawn once for all tests that look at it."""
    return plotted(copy.deepcopy(RESULTS), **options)


class TestPlotMemoryScaling:
    def drawn_twice(self):
        """What is in the Axes given, when they are the current ones and when not; and why it may differ then."""
        for others_current, why in ((False, ""), (True, f"\nUsual cause: {CURRENT}")):
            axes = drawn_once(others_current=others_current)
            self.lines(axes)
            yield axes, why

    def assert_axes(self, axes):
        if not axes["is_axes"]:
            assert_type("the result", axes["result"], (), "the Axes drawn in")

    def lines(self, axes):
        """The lines in the Axes given, by their labels: {label: (x, y)}."""
        self.assert_axes(axes)
        message = "other Axes were returned than those given: a new figure is for ax=None only"
        require(axes["is_there_before"], message)
        for label in ("attention weights", "Q, K, V"):
            labels = ", ".join(map(repr, axes["lines"])) or "none"
            require(label in axes["lines"], f"no line has the label {label!r}; the labels of the lines: {labels}")
        return axes["lines"]

    @pytest.mark.basic
    @pytest.mark.parametrize(
        ("label", "key"), [("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")]
    )
    def test_points(self, label, key):
        x, y = self.lines(drawn_once())[label]
        lengths = sorted(RESULTS)
        usual = {"the lengths are in the order given: points must ascend": list(RESULTS)}
        assert_equal(f"x of {label!r}", [int(n) for n in x], lengths, mistakes=usual)
        in_bytes = np.array([RESULTS[n][key] for n in lengths])
        usual = {
            "the values are bytes: divide by 2**20": in_bytes,
            "the values are MB (10⁶ bytes): MiB are 2**20": in_bytes / 1e6,
        }
        want = in_bytes / 2**20
        assert_close(f"y of {label!r}", np.asarray(y, float), want, baseline=want.astype(np.float32), mistakes=usual)

    @pytest.mark.basic
    def test_lengths_drawn_at_random(self, rng):
        results = made_up([int(n) for n in rng.choice(np.arange(60, 4000), 4, replace=False)])
        x, y = self.lines(plotted(copy.deepcopy(results)))["attention weights"]
        assert_equal("x of 'attention weights'", [int(n) for n in x], sorted(results))
        want = np.array([results[n]["attention_matrix_memory"] for n in sorted(results)]) / 2**20
        assert_close("y of 'attention weights'", np.asarray(y, float), want, baseline=want.astype(np.float32))

    def test_both_axes_are_logarithmic_to_base_2(self):
        for axes, why in self.drawn_twice():
            self.assert_scales(axes, why)

    def assert_scales(self, axes, why=""):
        for name in "xy":
            scale, base = axes["scales"][name], axes["bases"][name]
            require(scale == "log", f"the {name} axis's scale is {scale!r}, expected 'log': ax.set_{name}scale{why}")
            hint = f"without base=2, ax.set_{name}scale takes 10"
            assert_equal(f"the base of the {name} axis", float(base), 2.0, hint=hint)

    def test_labels_say_what_and_in_which_unit(self):
        for axes, why in self.drawn_twice():
            require(axes["labels"]["x"].strip(), f"the x axis has no label{why}")
            label = axes["labels"]["y"]
            require("MiB" in label, f"the y axis's label is {label!r}; it must name the unit, MiB{why}")

    def test_legend_is_shown(self):
        for axes, why in self.drawn_twice():
            require(axes["legend"] is not None, f"no legend is shown: ax.legend(){why}")
            shown = ", ".join(sorted(axes["legend"])) or "nothing"
            require({"attention weights", "Q, K, V"} <= set(axes["legend"]), f"the legend shows only {shown}")

    def test_makes_axes_when_none_are_given(self):
        axes = drawn_once(given=False)
        self.assert_axes(axes)
        message = "without ax it drew into a figure that was already there, not into one of its own"
        require(not axes["is_there_before"], message)
        n_lines = len(axes["lines"])
        require(n_lines >= 2, f"the new Axes hold {n_lines} lines, expected 2")
        self.assert_scales(axes)

    @pytest.mark.robust
    def test_leaves_other_axes_alone(self):
        axes = drawn_once(others_current=True)
        others = axes["others"]
        require(not others["lines"], "it drew into the current Axes (plt.plot), not into those given (ax.plot)")
        changed = others["legend"] is not None or any((*others["labels"].values(), others["scales"]["x"] == "log"))
        require(not changed, f"it changed the current Axes, which are not those given\nUsual cause: {CURRENT}")
        assert_equal("the number of new figures, after a call with ax", axes["n_new_figures"], 0)
