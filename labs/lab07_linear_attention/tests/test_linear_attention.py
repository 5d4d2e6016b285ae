"""Lab 07's suite: linear attention's results and gradients by every route, and the memory and the work they take."""

import functools
import math

import numpy as np
import pytest
import torch
from linear_attention import (
    causal_linear_attention_chunked,
    causal_linear_attention_cumsum,
    causal_linear_attention_recurrent,
    causal_linear_attention_scan,
    feature_map,
    linear_attention,
    linear_attention_memory,
    profile_attention_memory,
)

from labkit.meters.tensors import measure_peak
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    Tolerance,
    assert_at_most,
    assert_close,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_refused,
    assert_type,
    require,
    require_at_least,
    require_at_most,
)
from labkit.testing.unchanged import report_mutation_first, unchanged

from .probes import (
    call_on_nan,
    gradients_of,
    kept_bytes_of,
    measured_call,
    peaks_of,
    profile_of_a_generator,
    profile_on_a_small_device,
    profile_seen,
)
from .support import (
    AGREEMENT,
    LENGTHS_DIFFER,
    OTHER_FEATURES,
    PARTS,
    ROUTES,
    SHAPES,
    LinearCase,
    assert_gradients,
    assert_grows_by_the_output_only,
    assert_mb,
    assert_prediction,
    assert_row,
    assert_within,
    counts_of,
    expected_bytes,
    features,
    peak_of,
    rows_of,
    standard_attention,
)

every_shape = pytest.mark.parametrize("row", SHAPES)
every_chunk = pytest.mark.parametrize(
    ("n", "chunk"), [(64, 16), (61, 16), (50, 7), (30, 64), (9, 1), (12, 12), (24, 8), (40, 8), (33, 3)]
)
simulated = pytest.mark.seconds(60)  # the first arithmetic on meta tensors imports a computer algebra system


class TestFeatureMap:
    """φ(x) = elu(x) + 1, and its gradient."""

    def check(self, x):
        """Compare φ of a tensor."""
        given = {"x": x.clone()}
        with report_mutation_first(given):
            got = feature_map(given["x"])
            assert_type("φ(x)", got, torch.Tensor, "a tensor")
            exact = x.double()
            (want,) = features(exact)
            usual = {text: feature(exact) for text, feature in OTHER_FEATURES.items()}
            assert_close("φ(x)", got, want, baseline=torch.nn.functional.elu(x.float()) + 1, mistakes=usual)

    @pytest.mark.basic
    def test_worked_example(self):
        self.check(torch.tensor([-1.0, 0.0, 2.0]))

    @pytest.mark.basic
    @pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 1, 4, 3), ()], ids=str)
    def test_every_shape(self, rng, shape):
        self.check(torch.from_numpy(np.asarray(rng.normal(0, 2, shape), dtype=np.float32)))

    @pytest.mark.robust
    def test_large_arguments(self):
        x = torch.tensor([-3e4, -200.0, 200.0, 3e4])
        got = feature_map(x.clone())
        require(bool(got.isfinite().all()), f"φ of ±200 and ±30,000 is {got.tolist()}: exp overflows above 88")
        self.check(x)

    @pytest.mark.robust
    @pytest.mark.parametrize(("dtype", "overflows"), [(torch.float16, 15.0), (torch.float32, 95.0)], ids=str)
    def test_gradient_of_large_arguments(self, dtype, overflows):
        """Also where the exponential of x overflows by little: a clamp of x lets a gradient through below its bound."""
        x = torch.tensor([-3e4, overflows, 3e4], dtype=dtype)
        (gradient,) = gradients_of("feature_map", [x], torch.ones_like(x))
        told = f"the derivative of φ in {dtype} at −30,000, {overflows:g} and 30,000 is {gradient.tolist()}"
        cause = f"exp({overflows:g}) overflows in {dtype}: clamp what goes into it to 0"
        require(gradient.tolist() == [0.0, 1.0, 1.0], f"{told}, expected [0.0, 1.0, 1.0]\nUsual cause: {cause}")

    @pytest.mark.robust
    def test_small_results(self):
        self.check(torch.tensor([-30.0, -12.0, -10.0]))

    @pytest.mark.robust
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_dtype_stays(self, dtype):
        got = feature_map(torch.tensor([-1.0, 2.0], dtype=dtype))
        require(got.dtype == dtype, f"φ of {dtype} is {got.dtype}, expected the dtype of x")

    @pytest.mark.robust
    def test_x_is_left_alone(self):
        x = torch.tensor([-1.0, 0.0, 2.0])
        with unchanged({"x": x}):
            feature_map(x)

    def test_gradient(self):
        x = torch.tensor([-3000.0, -12.0, -2.0, -0.5, 0.5, 3.0, 3000.0], dtype=torch.float64)
        (gradient,) = gradients_of("feature_map", [x], torch.ones_like(x))
        require(gradient is not None, "no gradient reaches x: it was detached on the way")
        want = x.clamp(max=0).exp()
        nan_hint = (
            "inf · 0: `where` hands a gradient of 0 to the branch not taken, whose exp overflowed: clamp what goes "
            "into it"
        )
        name = "the derivative of φ at −3000, −12, −2, −0.5, 0.5, 3 and 3000"
        assert_close(name, gradient, want, baseline=want, tolerance=Tolerance(atol=4 * AGREEMENT), nan_hint=nan_hint)


class Route:
    """What every route gives, whatever it costs."""

    chunks, eps = (), 5.0
    causal = True

    def draw(self, rng, **sizes):
        """Drawn inputs for this route."""
        return LinearCase.drawn(rng, causal=self.causal, **sizes)

    def compare(self, case, hint=""):
        """Compare the output with the reference, in chunks of 64 where the route has chunks."""
        given = case.given
        with report_mutation_first(given):
            case.check("out", self.route(*given.values()), chunk=64 if self.chunks else None, hint=hint)

    @pytest.mark.basic
    @every_shape
    def test_results(self, rng, row):
        self.compare(row.draw(self.draw, rng))

    @pytest.mark.basic
    def test_worked_example(self):
        self.compare(LinearCase.worked(self.causal))

    def test_eps(self, rng):
        case = self.draw(rng, n=37, d=6, d_v=5, batch=(2,), eps=self.eps)
        hint = "eps is not added to each query's sum of weights, or more than once"
        out = self.route(*case.inputs, *self.chunks, self.eps)
        case.check(f"out, with eps = {self.eps:g},", out, hint=hint)

    def test_gradients(self, rng):
        case = self.draw(rng, n=41, d=5, d_v=7, batch=(2,), dtype=torch.float64)
        assert_gradients(self.name, self.route, case)

    @pytest.mark.robust
    def test_bfloat16_stays(self, rng):
        short = self.route(*self.draw(rng, n=33, d=6, dtype=torch.bfloat16).inputs)
        require(short.dtype == torch.bfloat16, f"out is {short.dtype} for bfloat16 inputs, expected their dtype")

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = self.draw(rng, n=37, d=8, d_v=5, batch=(2,))
        case.check("out", call_on_nan(self.name, *case.inputs, *self.chunks), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = self.draw(rng, n=20, d=8).given
        with unchanged(given):
            self.route(*given.values())


class ChunkedRoute(Route):
    """A route that takes chunks."""

    chunks = (8,)

    @every_chunk
    def test_chunks(self, rng, n, chunk):
        case = self.draw(rng, n=n, d=6, d_v=4, batch=(2,))
        given = case.given
        with report_mutation_first(given):
            out = self.route(*given.values(), chunk)
            case.check(f"out, {n} positions in chunks of {chunk},", out, chunk=chunk, hint=self.where_chunks_meet)

    @pytest.mark.parametrize("chunk", [8, 64])
    def test_gradients(self, rng, chunk):
        case = self.draw(rng, n=41, d=5, d_v=7, batch=(2,), dtype=torch.float64)
        assert_gradients(self.name, self.route, case, chunk)

    @pytest.mark.refuses
    def test_impossible_chunk(self, rng):
        given = self.draw(rng, n=5, d=6).inputs
        table = [((*given, chunk), f"for chunk = {chunk}", {"chunk": chunk}) for chunk in (0, -3)]
        assert_refused(self.route, table)

    @pytest.mark.cost
    def test_work_is_linear(self, rng):
        """In chunks of 4, a product over all pairs of chunks would show."""
        work = [counts_of(self.name, self.draw(rng, n=n, d=16), 4)["flops"] for n in (256, 1024)]
        none = "makes no matrix product: the weights of a chunk are one, φ(q) times φ(k) transposed"
        require(work[0] > 0, f"{self.called} {none}")
        ratio = work[1] / work[0]
        told = f"4 times as many positions take {ratio:.3g} times the arithmetic, expected about 4"
        hint = "each chunk, or each state, goes back to all the keys before it"
        require_at_most("the arithmetic of 4 times the positions", ratio, 6, told, hint=hint)


class TestLinearAttention(Route):
    """Every query sees every key."""

    name, route = "linear_attention", staticmethod(linear_attention)
    causal, eps = False, 1000.0

    @pytest.mark.basic
    @pytest.mark.parametrize("row", [*SHAPES, *LENGTHS_DIFFER])
    def test_results(self, rng, row):
        self.compare(row.draw(self.draw, rng), row.hint)

    @pytest.mark.cost
    def test_memory_is_linear(self, rng):
        n, d, d_v = 600, 24, 20
        peak = peak_of("linear_attention", LinearCase.drawn(rng, n=n, d=d, d_v=d_v, causal=False))
        usual = f"six arrays of N · d ({n * d:,}) and four states of d · d_v ({d * d_v:,}) are allowed"
        if peak >= n * n:
            usual = f"Usual cause: the weights, N × N = {n * n:,} numbers, are made: multiply φ(k)ᵀ and v first"
        elif peak >= n * d * d_v:
            products = f"N × d × d_v = {n * d * d_v:,} products are made before they are summed"
            usual = f"Usual cause: {products}: φ(k)ᵀ v is one matrix product"
        name, limit = f"the peak over the inputs for N = {n:,}, d = {d}, d_v = {d_v}", 6 * n * d + 4 * d * d_v
        assert_at_most(name, peak, limit, unit="elements", hint=usual)

    @pytest.mark.cost
    def test_work_is_linear(self, rng):
        work = [
            counts_of("linear_attention", LinearCase.drawn(rng, n=n, d=16, causal=False))["flops"] for n in (100, 400)
        ]
        ratio = work[1] / max(work[0], 1)
        told = f"4 times as many tokens take {ratio:.3g} times the arithmetic, expected 4"
        require_at_most("the arithmetic of 4 times the tokens", ratio, 6, told, hint="φ(q) φ(k)ᵀ is multiplied first")

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=24)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        assert_within(memory_limit, linear_attention, rng, 4096, 64, causal=False)


class TestCumsum(Route):
    """The states of all positions at once."""

    name, route = "causal_linear_attention_cumsum", staticmethod(causal_linear_attention_cumsum)

    @pytest.mark.cost
    def test_no_loop(self, rng):
        counts = [
            len(counts_of("causal_linear_attention_cumsum", LinearCase.drawn(rng, n=n, d=4, d_v=5))["operators"])
            for n in (16, 64)
        ]
        told = f"{counts[0]} operators run for 16 positions and {counts[1]} for 64"
        hint = "a loop over positions: cumsum takes them all at once"
        require_at_most("the operators that 48 more positions take", counts[1] - counts[0], 5, told, hint=hint)

    @pytest.mark.cost
    def test_two_arrays_of_states(self, rng):
        n, d, d_v = 200, 8, 24
        peak = peak_of("causal_linear_attention_cumsum", LinearCase.drawn(rng, n=n, d=d, d_v=d_v))
        name = f"the peak over the inputs for N = {n}, d = {d}, d_v = {d_v}, less two arrays of states,"
        usual = (
            "a third array of N·d·d_v: reading the states with φ(q) is a matrix product (`@`, einsum); "
            "`(q * states).sum(-2)` makes all products first"
        )
        limit = 8 * n * max(d, d_v)
        assert_at_most(name, peak - 2 * n * d * d_v, limit, unit="elements", hint=f"Usual cause: {usual}")

    @pytest.mark.cost
    def test_no_weights(self, rng):
        n, d = 400, 4
        hint = "Usual cause: N × N weights: this route sums φ(k) vᵀ over the positions"
        name = f"the peak over the inputs for N = {n}, d = {d}"
        assert_at_most(
            name,
            peak_of("causal_linear_attention_cumsum", LinearCase.drawn(rng, n=n, d=d)),
            n * n // 2,
            unit="elements",
            hint=hint,
        )

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=44)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        assert_within(memory_limit, causal_linear_attention_cumsum, rng, 1024, 64)


class TestRecurrent(Route):
    """One position at a time, one state."""

    name, route = "causal_linear_attention_recurrent", staticmethod(causal_linear_attention_recurrent)

    @pytest.mark.cost
    def test_one_state(self, rng):
        peaks = assert_grows_by_the_output_only(
            "causal_linear_attention_recurrent", "the recurrence", rng, 16, 4, (60, 300)
        )
        limit = 2 * 60 * 4 + 5 * 16 * 5 + 64
        hint = "besides the output: one state of d·d_v, while it is replaced two or three"
        assert_at_most("its peak for 60 positions, d = 16, d_v = 4", peaks[0], limit, unit="elements", hint=hint)

    @pytest.mark.cost
    def test_work_of_a_step_stays(self, rng):
        counts = [counts_of("causal_linear_attention_recurrent", LinearCase.drawn(rng, n=n, d=8)) for n in (24, 96)]
        products, steps = [run["flops"] for run in counts], [len(run["operators"]) for run in counts]
        ratio = max(products[1] / max(products[0], 1), steps[1] / steps[0])
        told = f"4 times as many positions take {ratio:.3g} times the work, expected 4"
        hint = "each step goes back to the keys before it: the state holds all of them"
        require_at_most("the work of 4 times the positions", ratio, 6, told, hint=hint)
        told = "no loop over the positions runs: this route goes one by one"
        require_at_least("the operators that 72 more positions take", steps[1] - steps[0], 72, told)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=10)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        assert_within(memory_limit, causal_linear_attention_recurrent, rng, 128, 192)


class TestChunked(ChunkedRoute):
    """One chunk after the other, one state."""

    name, route = "causal_linear_attention_chunked", staticmethod(causal_linear_attention_chunked)
    called = "the chunked route"
    where_chunks_meet = "where chunks meet, the state before a chunk does not hold the keys of all earlier ones"

    @pytest.mark.cost
    def test_one_state_and_one_chunk(self, rng):
        d, d_v, c = 24, 8, 16
        peaks = assert_grows_by_the_output_only(
            "causal_linear_attention_chunked", "the chunked route", rng, d, d_v, (64, 512), c
        )
        limit = 2 * 64 * d_v + 4 * d * (d_v + 1) + 5 * c * (d + d_v) + 3 * c * c
        usual = "several chunks are alive at once"
        if peaks[0] > c * d * d_v:
            usual = f"a state for each position of a chunk: C·d·d_v is {c * d * d_v:,}"
        name = f"its peak for 64 positions in chunks of {c}, d = {d}, d_v = {d_v}"
        assert_at_most(name, peaks[0], limit, unit="elements", hint=f"Usual cause: {usual}")

    @pytest.mark.cost
    def test_chunk_is_used(self, rng):
        counts = [
            len(counts_of("causal_linear_attention_chunked", LinearCase.drawn(rng, n=128, d=4), c)["operators"])
            for c in (4, 16)
        ]
        told = f"chunks of 4 take {counts[0]} operators and chunks of 16 take {counts[1]}: the number must fall"
        told += "\nUsual cause: `chunk` is not used, or the loop is over positions"
        least = max(3 * counts[1] - 40, counts[1] + 1)
        require_at_least("the number of operators for 32 chunks", counts[0], least, told, unit="operators")
        limit, hint = 60 * (128 // 16) + 60, "Usual cause: a loop over positions: a chunk is four matrix products"
        assert_at_most("the number of operators for 8 chunks", counts[1], limit, unit="operators", hint=hint)
        one, shorter, two = (
            len(counts_of("causal_linear_attention_chunked", LinearCase.drawn(rng, n=n, d=4), 16)["operators"])
            for n in (16, 31, 32)
        )
        told = (
            f"in chunks of 16 the 17th to 31st position take {shorter - one} operators, and with the 32nd {two - one}"
        )
        told += "\nUsual cause: what is left over is taken into a longer chunk, and not into a shorter one"
        name = "the operators that the last, shorter chunk takes"
        require_at_least(name, shorter - one, (two - one) / 2, told, unit="operators")

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=10)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        assert_within(memory_limit, causal_linear_attention_chunked, rng, 2048, 192, 8)


class TestScan(ChunkedRoute):
    """All chunks at once, from states that a parallel scan makes."""

    name, route = "causal_linear_attention_scan", staticmethod(causal_linear_attention_scan)
    called = "the scan"
    where_chunks_meet = "an odd number of chunks, or one that is no power of two, loses some of them in the scan"

    @pytest.mark.cost
    def test_steps_grow_with_the_logarithm(self, rng):
        runs = [
            counts_of("causal_linear_attention_scan", LinearCase.drawn(rng, n=n, d=4), 2)["operators"]
            for n in (32, 1024)
        ]
        ready = [name for name in runs[0] if "cum" in name or "conv" in name or "fft" in name or "_scan" in name]
        names = ", ".join(ready[:3])
        require(not ready, f"{names} is called: the scan over chunks is yours to write, in sums of pairs")
        more = len(runs[1]) - len(runs[0])
        told = f"16 chunks take {len(runs[0])} operators and 512 take {more} more; five doublings explain some 5 · 20"
        hint = "a loop over the chunks: in a parallel scan every step works on all of them"
        name = "the operators that 496 more chunks take"
        require_at_most(name, more, 5 * 45, told, unit="operators", hint=hint)

    @pytest.mark.cost
    def test_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        peak, limit = peak_of("causal_linear_attention_scan", LinearCase.drawn(rng, n=n, d=d), c), self.limit(n, d, c)
        usual = f"weights of N × N = {n * n:,}, or a state for each position, N·d·d_v = {n * d * d:,}"
        name = f"the peak over the inputs for N = {n} in chunks of {c}, d = {d}"
        assert_at_most(name, peak, limit, unit="elements", hint=f"Usual cause: {usual}")

    @pytest.mark.cost
    def test_keeps_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        kept = kept_bytes_of("causal_linear_attention_scan", LinearCase.drawn(rng, n=n, d=d).inputs, c) // 4
        name = f"what autograd keeps for N = {n} in chunks of {c}, d = {d}"
        hint = (
            f"Usual cause: a state for each position ({n * d * d:,}), weights of N × N ({n * n:,}) or a copy of the "
            "states for each step of the scan is saved: adding saves nothing, multiplying saves both factors"
        )
        assert_at_most(name, kept, self.limit(n, d, c), unit="elements", hint=hint)

    def limit(self, n, d, c):
        """Ten arrays of N·d, three of N·C and six of states, in elements."""
        return 10 * n * d + 3 * n * c + 6 * n // c * d * (d + 1)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=32)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        assert_within(memory_limit, causal_linear_attention_scan, rng, 4096, 64)


class TestMemoryModel:
    """Bytes by the handout's steps, to 2 %; each part has tests of its own."""

    @pytest.mark.parametrize("part", PARTS)
    def test_worked_example(self, part):
        sizes = (1, 1, 512, 64, 4)
        assert_prediction(part, assert_keys("the result", linear_attention_memory(*sizes), PARTS)[part], sizes)

    @pytest.mark.parametrize("part", PARTS)
    def test_random_sizes(self, rng, part):
        for dtype_bytes in (2, 4, 8) * 4:
            batch, heads, n, d = rng.integers((1, 1, 1, 2), (5, 9, 65, 140)).tolist()
            for seq_len, width in ((n, d), (64 * n, d), (1, 8), (64, 2)):  # in the last two every term is above 2 %
                sizes = (batch, heads, seq_len, width, dtype_bytes)
                assert_prediction(part, linear_attention_memory(*sizes)[part], sizes)

    def test_bytes_are_ints(self):
        for part, got in linear_attention_memory(2, 3, 100, 16, 2).items():
            assert_type(f"{part} of linear_attention_memory(2, 3, 100, 16, 2)", got, int, "an int: bytes are whole")

    @pytest.mark.cost
    def test_makes_no_tensor(self):
        operators = measured_call("linear_attention_memory", 1, 2, 128, 16, 4)[1]["operators"]
        require(not operators, f"{len(operators)} operators run: the model is arithmetic, not a measurement")


@simulated
class TestProfile:
    """Measured and predicted, side by side."""

    def own_peaks(self, shape, dtype):
        """The peaks of the functions that a row is about, measured here."""
        qkv = [torch.ones(shape, dtype=dtype) for _ in range(3)]
        linear = ("linear_attention", "causal_linear_attention_cumsum", "causal_linear_attention_chunked")
        peaks = measure_peak(standard_attention, *qkv).peak_bytes, *peaks_of(linear, *qkv)
        return dict(zip(ROUTES, peaks, strict=True))

    def check(self, row, shape, dtype):
        """All columns of one row of nothing out of memory."""
        assert_row(row, self.own_peaks(shape, dtype), shape, dtype)

    @pytest.mark.basic
    def test_simulated_rows(self):
        lengths = [128, 64]
        got, devices = profile_seen(lengths, batch=2, heads=3, d=8)
        for row, n in zip(rows_of(got, lengths), lengths, strict=True):
            self.check(row, (2, 3, n, 8), torch.float16)
        known = {"no tensor is made: what should be measured is predicted": []}
        assert_equal("the devices of the tensors made with device left out", devices, ["meta"], mistakes=known)

    @pytest.mark.basic
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_rows_of_the_cpu(self, rng, dtype):
        lengths, heads, d = [int(rng.integers(24, 65)), 128], int(rng.integers(2, 5)), int(rng.integers(8, 25))
        got, devices = profile_seen(lengths, batch=1, heads=heads, d=d, dtype=dtype, device="cpu")
        for row, n in zip(rows_of(got, lengths), lengths, strict=True):
            self.check(row, (1, heads, n, d), dtype)
        hint = "the device asked for is not used"
        assert_equal("the devices of the tensors made with device='cpu'", devices, ["cpu"], hint=hint)

    @pytest.mark.robust
    def test_any_iterable_of_lengths(self):
        lengths, options = [16, 8, 16], (1, 2, 4, torch.float32, "cpu")
        for kind, rows, want in (
            ("an array", profile_attention_memory(np.array(lengths), *options), lengths),
            ("a generator, which can be gone through once,", profile_of_a_generator(lengths, *options), lengths),
            ("no lengths", profile_attention_memory([], *options), []),
        ):
            got = [row["seq_len"] for row in rows] if isinstance(rows, list) else rows
            hint = "seq_lens is an Iterable: go through it once"
            assert_equal(f"seq_len of the rows for {kind}", got, want, hint=hint)

    def test_capacity(self):
        shape, arguments = (1, 2, 128, 16), ([128], 1, 2, 16, torch.float32)
        want, peaks = expected_bytes(shape, 4), self.own_peaks(shape, torch.float32)
        for row in rows_of(profile_attention_memory([128, 64], *arguments[1:], capacity_bytes=0), [128, 64]):
            told = f"standard_memory_mb with capacity_bytes = 0 is {row['standard_memory_mb']}, expected nan"
            cause = "capacity_bytes is not looked at, or 0 is taken for None"
            require(math.isnan(row["standard_memory_mb"]), f"{told}\nUsual cause: {cause}")
            told = f"savings_bidir is {row['savings_bidir']} where the standard form is out of memory, expected nan"
            require(math.isnan(row["savings_bidir"]), told)
        for name in ("standard", "linear_causal"):
            need = want["inputs"] + peaks[name]
            for capacity, fits in ((need, True), (need - 1, False)):
                (row,) = rows_of(profile_attention_memory(*arguments, capacity_bytes=capacity), [128])
                got = row[f"{name}_memory_mb"]
                told = (
                    f"{name}_memory_mb, for which inputs and peak need {need:,} bytes, with capacity_bytes = "
                    f"{capacity:,}, is {got:.6g}, expected {'a number' if fits else 'nan'}"
                )
                cause = "the peak alone is compared: inputs and peak together must fit"
                if fits:
                    cause = "an exact fit is refused"
                require(math.isnan(got) != fits, f"{told}\nUsual cause: {cause}")
                after = row["linear_bidir_memory_mb"]
                told = f"linear_bidir_memory_mb is {after:.6g} where {name}'s memory runs out, but its own is enough"
                require(not math.isnan(after), f"{told}\nUsual cause: one form that does not fit ends the row")
                predicted = row[f"{name}_theoretical_mb"]
                assert_mb(f"{name}_theoretical_mb, out of memory or not,", predicted, want[f"{name}_peak"])

    @pytest.mark.robust
    @pytest.mark.parametrize("where", ["CUDA", "CPU", "CPU_on_Windows"])
    def test_out_of_memory_is_a_value(self, where):
        try:
            rows = profile_on_a_small_device(4 * 100 * 100, where, [64, 128, 32], 1, 1, 4, torch.float32, "cpu")
        except RuntimeError as uncaught:
            require("memory" not in str(uncaught), f"out of memory ends the profile: {str(uncaught)[:100]}")
            raise
        found = [
            [math.isnan(row["standard_memory_mb"]), math.isnan(row["linear_bidir_memory_mb"])]
            for row in rows_of(rows, [64, 128, 32])
        ]
        name = "whether (standard, bidirectional) are nan in three rows, where N × N of the second is too much,"
        assert_equal(name, found, [[False, False], [True, False], [False, False]])

    @pytest.mark.robust
    def test_other_errors_pass(self):
        arguments = (4 * 100 * 100, "", [128], 1, 1, 4, torch.float32, "cpu")
        when = "where an attention raised one that is not about memory"
        call = functools.partial(profile_on_a_small_device, *arguments)
        assert_raises(RuntimeError, call, when=when, mentions=("mat1 and mat2",))
