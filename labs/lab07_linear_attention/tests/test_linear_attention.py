"""Lab 07's suite: linear attention's results and gradients by every route, and the memory and the work they take."""

import functools
import math
from typing import ClassVar

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

from labkit.meters.tensors import kept_by_forward, measure_peak
from labkit.testing.compare import (
    SLACK,
    assert_at_most,
    assert_close,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_type,
    require,
    require_at_least,
    require_at_most,
)
from labkit.testing.contracts.attention import Memory, Shapes
from labkit.testing.unchanged import left_alone

from .probes import (
    call_on_nan,
    gradients_of,
    measured_call,
    profile_of_a_generator,
    profile_on_a_small_device,
    profile_seen,
)
from .support import (
    AGREEMENT,
    NOT_POSITIVE,
    PARTS,
    ROUTES,
    LinearCase,
    assert_mb,
    assert_prediction,
    assert_row,
    attend,
    expected_bytes,
    phi,
    rows_of,
    standard_attention,
)

robust, cost, refuses = (pytest.mark.kind(kind) for kind in ("robust", "cost", "refuses"))
simulated = pytest.mark.seconds(60)  # the first arithmetic on meta tensors imports a computer algebra system


class TestFeatureMap:
    """φ(x) = elu(x) + 1, and its gradient."""

    def check(self, x):
        """Compare φ of a tensor, which must stay as it is."""
        with left_alone("x", [x]):
            got = feature_map(x)
        assert_type("φ(x)", got, torch.Tensor, "a tensor")
        exact = x.double()
        usual = {
            "the + 1 is missing: φ(x) = elu(x) + 1": phi(exact) - 1,
            "φ is relu(x) + 1, flat below 0": exact.relu() + 1,
            "φ is softplus": torch.nn.functional.softplus(exact),
        }
        plain = torch.nn.functional.elu(x.float()) + 1
        hint = "exp overflows above 88" if float(x.abs().max()) > 88 else ""
        assert_close("φ(x)", got, phi(exact), plain=plain, mistakes=usual, hint=hint)

    def test_worked_example(self):
        self.check(torch.tensor([-1.0, 0.0, 2.0]))

    @pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 1, 4, 3), ()], ids=str)
    def test_every_shape(self, rng, shape):
        self.check(torch.from_numpy(np.asarray(rng.normal(0, 2, shape), dtype=np.float32)))

    @robust
    def test_large_arguments(self):
        x = torch.tensor([-3e4, -200.0, 200.0, 3e4])
        got = feature_map(x)
        require(bool(got.isfinite().all()), f"φ of ±200 and ±30,000 is {got.tolist()}: exp overflows above 88")
        self.check(x)

    @robust
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_dtype_stays(self, dtype):
        got = feature_map(torch.tensor([-1.0, 2.0], dtype=dtype))
        require(got.dtype == dtype, f"φ of {dtype} is {got.dtype}, expected the dtype of x")

    def test_gradient(self):
        x = torch.tensor([-3000.0, -2.0, -0.5, 0.5, 3.0, 3000.0], dtype=torch.float64)
        (gradient,) = gradients_of("feature_map", [x], torch.ones_like(x))
        require(gradient is not None, "no gradient reaches x: it was detached on the way")
        want = x.clamp(max=0).exp()
        nan_hint = (
            "inf · 0: `where` hands a gradient of 0 to the branch not taken, whose exp overflowed: clamp what goes "
            "into it"
        )
        name = "the derivative of φ at −3000, −2, −0.5, 0.5, 3 and 3000"
        assert_close(name, gradient, want, plain=want + AGREEMENT, nan_hint=nan_hint)


class Route(Memory, Shapes):
    """Tests of a route, whichever it is; and what its further tests are made of."""

    task, route, causal = "", None, True
    default_chunk = None
    variants: ClassVar = {"causal": {}}
    batches = ((2,), (2, 1, 2))  # the third entry's φ would be 0
    test_unequal_lengths = None  # a causal route takes as many keys as queries

    def case(self, rng, *, n=None, n_queries=None, n_keys=None, **sizes):
        n_queries = n or n_queries
        n_keys = n_queries if self.causal else n_keys
        return LinearCase.drawn(rng, n_queries=n_queries, n_keys=n_keys, causal=self.causal, **sizes)

    def worked_case(self):
        return LinearCase(*(torch.tensor(x) for x in ([[0.0], [0.0]], [[0.0], [1.0]], [[3.0], [0.0]])), self.causal)

    def arguments(self, case):
        return dict(zip("qkv", case.inputs, strict=True))

    def call(self, q, k, v):
        return self.route(q, k, v)

    def check(self, case, hint="", nan_hint=NOT_POSITIVE):
        case.check("out", self.route(*case.inputs), chunk=self.default_chunk, hint=hint, nan_hint=nan_hint)

    def check_on_nan(self, case, hint="", nan_hint=""):
        chunk = [8] if self.default_chunk else []
        case.check("out", call_on_nan(self.task, *case.inputs, *chunk), nan_hint=nan_hint)

    def test_eps(self, rng):
        case = self.case(rng, n=37, d=4, d_v=5, batch=(2,), eps=5.0)
        options = {"chunk": 8} if self.default_chunk else {}
        out = self.route(*case.inputs, eps=5.0, **options)
        case.check("out, with eps = 5,", out, hint="eps is added once to each query's sum of weights")

    def test_gradients(self, rng):
        self.check_gradients(rng)

    @robust
    def test_bfloat16_stays(self, rng):
        short = self.route(*self.case(rng, n=33, d=6, dtype=torch.bfloat16).inputs)
        require(short.dtype == torch.bfloat16, f"out is {short.dtype} for bfloat16 inputs, expected their dtype")

    def check_gradients(self, rng, *chunk):
        """Output and gradients in float64, to 1e-10 of the reference."""
        case = self.case(rng, n=41, d=5, d_v=7, batch=(2,), dtype=torch.float64)
        leaves = [x.clone().requires_grad_() for x in case.inputs]
        got = self.route(*leaves, *chunk)
        hint = f"rounding explains {AGREEMENT:g}: is something in float32?"
        case.check("out in float64", got, chunk=chunk[0] if chunk else None, hint=hint)
        cut = "the output requires no grad though q, k and v do\nUsual cause: a detach, a .data, or no_grad on the way"
        require(got.requires_grad, cut)
        factors = torch.from_numpy(rng.standard_normal(tuple(got.shape)))
        gradients = gradients_of(self.task, case.inputs, factors, *chunk)
        wanted = torch.autograd.grad((case.output(*leaves) * factors).sum(), leaves)
        hint = "part of the way back is cut by a detach or no_grad, often around the state"
        for name, gradient, want in zip("qkv", gradients, wanted, strict=True):
            require(gradient is not None, f"the gradient of {name} is None: it was detached on the way")
            assert_close(f"the gradient of {name}", gradient, want, plain=want + AGREEMENT / SLACK, hint=hint)

    def counts(self, rng, n, d, d_v, *options):
        """What one call allocates, computes and runs. Its result must be right, or another function was counted."""
        case = self.case(rng, n=n, d=d, d_v=d_v)
        got, counts = measured_call(self.task, *case.inputs, *options)
        right = isinstance(got, torch.Tensor) and got.shape == case.want.shape
        right = right and torch.allclose(got.double(), case.want, 1e-3, 1e-3)
        told = f"memory and work are counted for N = {n}, d = {d}, d_v = {d_v}, and there the output is wrong"
        require(right, f"{told}\nWhat is wrong with it, the tests of lengths or of chunks say")
        return counts

    def peak(self, rng, n, d, d_v, *options):
        """The peak over the inputs, in elements of float32."""
        return self.counts(rng, n, d, d_v, *options)["peak_bytes"] // 4

    def check_grows_by_the_output_only(self, rng, name, d, d_v, lengths, *options):
        """What is held at two lengths, in elements of float32."""
        short, long = lengths
        peaks = [self.peak(rng, n, d, d_v, *options) for n in lengths]
        rate = (peaks[1] - peaks[0]) / (long - short)
        usual = f"φ(q) or φ(k) (d = {d}) or padded copies are made of the whole input: take a piece at a time"
        if 0.9 <= rate / (short + long) <= 1.8:
            usual = "weights of N × N are made"
        elif rate >= d * d_v:
            usual = f"a state of d × d_v = {d * d_v} is kept for every position"
        told = f"what {name} holds at its peak grows by {rate:,.0f} elements for each position (d = {d}, d_v = {d_v})"
        told += f"; the output and its pieces explain {2 * d_v}"
        held = f"what {name} holds for each further position"
        require_at_most(held, rate, 3 * d_v, told, kind="elements", hint=usual)
        return peaks

    def check_within(self, memory_limit, rng, n, d, *options):
        """Within the bound of the test's mark, the last queries' output is right: they see most keys."""
        q, k, v = (torch.from_numpy(rng.standard_normal((n, d), dtype=np.float32)) for _ in range(3))
        got = memory_limit(self.route, q, k, v, *options)
        seen = torch.ones(8, n, dtype=torch.float64).tril(n - 8 if self.causal else n)
        want = attend(phi(q[-8:].double()) @ phi(k.double()).mT * seen, v.double(), 1e-6)
        right = isinstance(got, torch.Tensor) and got.shape == v.shape
        right = right and torch.allclose(got[-8:].double(), want, 1e-3, 1e-3)
        require(right, f"memory stayed within the limit, but the output is wrong, at N = {n}, d = {d}")


class TestLinearAttention(Route):
    """Every query sees every key."""

    task, causal = "linear_attention", False
    route = staticmethod(linear_attention)
    variants: ClassVar = {"full": {}}

    def test_unequal_lengths(self, rng, lengths, variant):
        Shapes.test_unequal_lengths(self, rng, lengths, variant)

    @cost
    def test_memory_is_linear(self, rng):
        n, d, d_v = 600, 24, 20
        peak = self.peak(rng, n, d, d_v)
        usual = f"N × d × d_v = {n * d * d_v:,} products are made before they are summed: φ(k)ᵀ v is one matrix product"
        if peak >= n * n:
            usual = f"the weights, N × N = {n * n:,} numbers, are made: multiply φ(k)ᵀ and v first"
        name, limit = f"the peak over the inputs for N = {n:,}, d = {d}, d_v = {d_v}", 6 * n * d + 4 * d * d_v
        assert_at_most(name, peak, limit, unit="elements", hint=f"Usual cause: {usual}")

    @cost
    def test_work_is_linear(self, rng):
        work = [self.counts(rng, n, 16, 16)["flops"] for n in (100, 400)]
        ratio = work[1] / max(work[0], 1)
        told = f"4 times as many tokens take {ratio:.3g} times the arithmetic, expected 4"
        require_at_most("the arithmetic of 4 times the tokens", ratio, 6, told, hint="φ(q) φ(k)ᵀ is multiplied first")

    @cost
    @pytest.mark.memory_limit(mib=24)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        self.check_within(memory_limit, rng, 4096, 64)


class TestCumsum(Route):
    """The states of all positions at once."""

    task = "causal_linear_attention_cumsum"
    route = staticmethod(causal_linear_attention_cumsum)

    @cost
    def test_no_loop(self, rng):
        counts = [len(self.counts(rng, n, 4, 5)["operators"]) for n in (16, 64)]
        told = f"{counts[0]} operators run for 16 positions and {counts[1]} for 64"
        hint = "a loop over positions: cumsum takes them all at once"
        require_at_most("the operators that 48 more positions take", counts[1] - counts[0], 5, told, hint=hint)

    @cost
    def test_two_arrays_of_states(self, rng):
        n, d, d_v = 200, 8, 24
        peak = self.peak(rng, n, d, d_v)
        name = f"the peak over the inputs for N = {n}, d = {d}, d_v = {d_v}, less two arrays of states,"
        usual = (
            "a third array of N·d·d_v: reading the states with φ(q) is a matrix product (`@`, einsum); "
            "`(q * states).sum(-2)` makes all products first"
        )
        limit = 8 * n * max(d, d_v)
        assert_at_most(name, peak - 2 * n * d * d_v, limit, unit="elements", hint=f"Usual cause: {usual}")

    @cost
    def test_no_weights(self, rng):
        n, d = 400, 4
        hint = "Usual cause: N × N weights: this route sums φ(k) vᵀ over the positions"
        name = f"the peak over the inputs for N = {n}, d = {d}"
        assert_at_most(name, self.peak(rng, n, d, d), n * n // 2, unit="elements", hint=hint)

    @cost
    @pytest.mark.memory_limit(mib=50)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        self.check_within(memory_limit, rng, 1024, 64)


class TestRecurrent(Route):
    """One position at a time, one state."""

    task = "causal_linear_attention_recurrent"
    route = staticmethod(causal_linear_attention_recurrent)

    @cost
    def test_one_state(self, rng):
        peaks = self.check_grows_by_the_output_only(rng, "the recurrence", 16, 4, (24, 72))
        limit = 2 * 24 * 4 + 5 * 16 * 5 + 64
        hint = "besides the output: one state of d·d_v, while it is replaced two or three"
        assert_at_most("its peak for 24 positions, d = 16, d_v = 4", peaks[0], limit, unit="elements", hint=hint)

    @cost
    def test_work_of_a_step_stays(self, rng):
        counts = [self.counts(rng, n, 8, 8) for n in (24, 96)]
        products, steps = [run["flops"] for run in counts], [len(run["operators"]) for run in counts]
        ratio = max(products[1] / max(products[0], 1), steps[1] / steps[0])
        told = f"4 times as many positions take {ratio:.3g} times the work, expected 4"
        hint = "each step goes back to the keys before it: the state holds all of them"
        require_at_most("the work of 4 times the positions", ratio, 6, told, hint=hint)
        told = "no loop over the positions runs: this route goes one by one"
        require_at_least("the operators that 72 more positions take", steps[1] - steps[0], 72, told)

    @cost
    @pytest.mark.memory_limit(mib=10)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        self.check_within(memory_limit, rng, 128, 192)


class InChunks(Route):
    """Tests of a route that takes a chunk."""

    default_chunk, called, where_wrong = 64, "", ""

    @pytest.mark.parametrize(
        ("n", "chunk"), [(64, 16), (61, 16), (50, 7), (30, 64), (9, 1), (12, 12), (24, 8), (40, 8), (33, 3)]
    )
    def test_chunks(self, rng, n, chunk):
        case = self.case(rng, n=n, d=6, d_v=4, batch=(2,))
        out = self.route(*case.inputs, chunk)
        case.check(f"out, {n} positions in chunks of {chunk},", out, chunk=chunk, hint=self.where_wrong)

    @pytest.mark.parametrize("chunk", [8, 64])
    def test_gradients(self, rng, chunk):
        self.check_gradients(rng, chunk)

    @cost
    def test_work_is_linear(self, rng):
        """In chunks of 4, a product over all pairs of chunks would show."""
        work = [self.counts(rng, n, 16, 16, 4)["flops"] for n in (256, 1024)]
        none = "makes no matrix product: the weights of a chunk are one, φ(q) times φ(k) transposed"
        require(work[0] > 0, f"{self.called} {none}")
        ratio = work[1] / work[0]
        told = f"4 times as many positions take {ratio:.3g} times the arithmetic, expected about 4"
        hint = "each chunk, or each state, goes back to all the keys before it"
        require_at_most("the arithmetic of 4 times the positions", ratio, 6, told, hint=hint)

    @refuses
    @pytest.mark.parametrize("chunk", [0, -3])
    def test_impossible_chunk(self, rng, chunk):
        call = functools.partial(self.route, *self.case(rng, n=5, d=6).inputs, chunk)
        assert_raises(ValueError, call, when=f"for chunk = {chunk}", mentions={"chunk": chunk})


class TestChunked(InChunks):
    """One chunk after the other, one state."""

    task = "causal_linear_attention_chunked"
    route = staticmethod(causal_linear_attention_chunked)
    called = "the chunked route"
    where_wrong = "where chunks meet: the state before a chunk holds the keys of all earlier ones"

    @cost
    def test_one_state_and_one_chunk(self, rng):
        d, d_v, c = 24, 8, 16
        peaks = self.check_grows_by_the_output_only(rng, "the chunked route", d, d_v, (64, 512), c)
        limit = 2 * 64 * d_v + 4 * d * (d_v + 1) + 5 * c * (d + d_v) + 3 * c * c
        usual = "several chunks are alive at once"
        if peaks[0] > c * d * d_v:
            usual = f"a state for each position of a chunk: C·d·d_v is {c * d * d_v:,}"
        name = f"its peak for 64 positions in chunks of {c}, d = {d}, d_v = {d_v}"
        assert_at_most(name, peaks[0], limit, unit="elements", hint=f"Usual cause: {usual}")

    @cost
    def test_chunk_is_used(self, rng):
        counts = [len(self.counts(rng, 128, 4, 4, c)["operators"]) for c in (4, 16)]
        told = f"chunks of 4 take {counts[0]} operators and chunks of 16 take {counts[1]}: the number must fall"
        told += "\nUsual cause: `chunk` is not used, or the loop is over positions"
        least = max(3 * counts[1] - 40, counts[1] + 1)
        require_at_least("the number of operators for 32 chunks", counts[0], least, told, kind="operators")
        limit, hint = 60 * (128 // 16) + 60, "Usual cause: a loop over positions: a chunk is four matrix products"
        assert_at_most("the number of operators for 8 chunks", counts[1], limit, unit="operators", hint=hint)

    @cost
    @pytest.mark.memory_limit(mib=10)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        self.check_within(memory_limit, rng, 1024, 192, 8)


class TestScan(InChunks):
    """All chunks at once, from states that a parallel scan makes."""

    task = "causal_linear_attention_scan"
    route = staticmethod(causal_linear_attention_scan)
    called = "the scan"
    where_wrong = "an odd number of chunks, or one that is no power of two, needs care in a scan"

    @cost
    def test_steps_grow_with_the_logarithm(self, rng):
        runs = [self.counts(rng, n, 4, 4, 2)["operators"] for n in (32, 1024)]
        ready = [name for name in runs[0] if "cum" in name or "conv" in name or "fft" in name or "_scan" in name]
        names = ", ".join(ready[:3])
        require(not ready, f"{names} is called: the scan over chunks is yours to write, in sums of pairs")
        more = len(runs[1]) - len(runs[0])
        told = f"16 chunks take {len(runs[0])} operators and 512 take {more} more; five doublings explain some 5 · 20"
        hint = "a loop over the chunks: in a parallel scan every step works on all of them"
        name = "the operators that 496 more chunks take"
        require_at_most(name, more, 5 * 45, told, kind="operators", hint=hint)

    @cost
    def test_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        peak, limit = self.peak(rng, n, d, d, c), self.limit(n, d, c)
        usual = f"weights of N × N = {n * n:,}: a query needs those of its own chunk"
        if peak >= n * d * d:
            usual = f"a state for each position, N·d·d_v = {n * d * d:,}"
        name = f"the peak over the inputs for N = {n} in chunks of {c}, d = {d}"
        assert_at_most(name, peak, limit, unit="elements", hint=f"Usual cause: {usual}")

    @cost
    def test_keeps_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        q, k, v = (x.requires_grad_() for x in self.case(rng, n=n, d=d).inputs)
        kept = kept_by_forward(self.route, q, k, v, c) // 4
        name = f"what autograd keeps for N = {n} in chunks of {c}, d = {d}"
        hint = (
            f"Usual cause: a state for each position ({n * d * d:,}) or a copy of the states for each step of the scan "
            "is saved: adding saves nothing, multiplying saves both factors"
        )
        assert_at_most(name, kept, self.limit(n, d, c), unit="elements", hint=hint)

    def limit(self, n, d, c):
        """Ten arrays of N·d, three of N·C and six of states, in elements."""
        return 10 * n * d + 3 * n * c + 6 * n // c * d * (d + 1)

    @cost
    @pytest.mark.memory_limit(mib=32)
    def test_memory_seen_from_outside(self, rng, memory_limit):
        self.check_within(memory_limit, rng, 4096, 64)


class TestMemoryModel:
    """Bytes by the handout's steps, to 2 %."""

    def check(self, *sizes):
        got = assert_keys("linear_attention_memory's result", linear_attention_memory(*sizes), PARTS)
        for part in PARTS:
            assert_prediction(part, got[part], sizes)

    def test_worked_example(self):
        self.check(1, 1, 512, 64, 4)

    def test_random_sizes(self, rng):
        for dtype_bytes in (2, 4, 8) * 4:
            batch, heads, n, d = rng.integers((1, 1, 1, 2), (5, 9, 65, 140)).tolist()
            for seq_len in (n, 64 * n):
                self.check(batch, heads, seq_len, d, dtype_bytes)

    @cost
    def test_makes_no_tensor(self):
        operators = measured_call("linear_attention_memory", 1, 2, 128, 16, 4)[1]["operators"]
        require(not operators, f"{len(operators)} operators run: the model is arithmetic, not a measurement")


@simulated
class TestProfile:
    """Measured and predicted, side by side."""

    def own_peaks(self, shape, dtype):
        """The peaks of the functions that a row is about, measured here."""
        linear = (linear_attention, causal_linear_attention_cumsum, causal_linear_attention_chunked)
        q, k, v = (torch.ones(shape, dtype=dtype) for _ in range(3))
        routes = zip(ROUTES, (standard_attention, *linear), strict=True)
        return {name: measure_peak(route, q, k, v)[0] for name, route in routes}

    def check(self, row, shape, dtype):
        """All columns of one row of nothing out of memory."""
        assert_row(row, self.own_peaks(shape, dtype), shape, dtype)

    def test_simulated_rows(self):
        lengths = [128, 64]
        got, devices = profile_seen(lengths, batch=2, heads=3, d=8)
        for row, n in zip(rows_of(got, lengths), lengths, strict=True):
            self.check(row, (2, 3, n, 8), torch.float16)
        assert_equal("the devices of the tensors made with device left out", devices, ["meta"])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_rows_of_the_cpu(self, rng, dtype):
        lengths, heads, d = [int(rng.integers(24, 65)), 128], int(rng.integers(2, 5)), int(rng.integers(8, 25))
        got, devices = profile_seen(lengths, batch=1, heads=heads, d=d, dtype=dtype, device="cpu")
        for row, n in zip(rows_of(got, lengths), lengths, strict=True):
            self.check(row, (1, heads, n, d), dtype)
        hint = "the device asked for is not used"
        assert_equal("the devices of the tensors made with device='cpu'", devices, ["cpu"], hint=hint)

    @robust
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
        want, peaks = expected_bytes(*shape, 4), self.own_peaks(shape, torch.float32)
        for name in ("standard", "linear_causal"):
            need = want["inputs"] + peaks[name]
            for capacity, fits in ((need, True), (need - 1, False)):
                (row,) = rows_of(profile_attention_memory(*arguments, capacity_bytes=capacity), [128])
                got = row[f"{name}_memory_mb"]
                told = (
                    f"{name}_memory_mb, for which inputs and peak need {need:,} bytes, with capacity_bytes = "
                    f"{capacity:,}, is {got:.6g}, expected {'a number' if fits else 'nan'}"
                )
                cause = "inputs and peak together must fit, and may fill the memory exactly"
                require(math.isnan(got) != fits, f"{told}\nUsual cause: {cause}")
                predicted = row[f"{name}_theoretical_mb"]
                assert_mb(f"{name}_theoretical_mb, out of memory or not,", predicted, want[f"{name}_peak"])
        (row,) = rows_of(profile_attention_memory(*arguments, capacity_bytes=1), [128])
        told = f"savings_bidir is {row['savings_bidir']} where the standard form is out of memory, expected nan"
        require(math.isnan(row["savings_bidir"]), told)

    @robust
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

    @robust
    def test_other_errors_pass(self):
        arguments = (4 * 100 * 100, "", [128], 1, 1, 4, torch.float32, "cpu")
        when = "where an attention raised one that is not about memory"
        call = functools.partial(profile_on_a_small_device, *arguments)
        assert_raises(RuntimeError, call, when=when, mentions=("mat1 and mat2",))
