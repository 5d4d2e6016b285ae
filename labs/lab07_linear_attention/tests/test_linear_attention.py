"""Lab 07's suite: linear attention's results and gradients by every route, and the memory and the work they take."""

import itertools
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
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter, measure_peak
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.linear_cases import AGREEMENT, LinearCase, divided, mapped, numbers, weights_of
from labkit.testing.linear_memory import NEAR, PARTS, Handout, assert_bytes, expected_bytes
from labkit.testing.programs import program
from labkit.testing.reference import random_qkv


@program
class Device(TorchDispatchMode):
    """Notes the operators that run and the devices of what they make; raises `error` where too large an array is."""

    def __init__(self, most_elements=None, error=None):
        super().__init__()
        self.most_elements, self.error = most_elements, error
        self.operators, self.devices = [], set()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators.append(func._schema.name.removeprefix("aten::"))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.devices.add(tensor.device.type)
                if self.most_elements and tensor.numel() > self.most_elements:
                    raise self.error
        return out


@program
def measured_call(task, *args):
    """What the task's function returns, and what it allocated, computed and ran."""
    function = _function(task)
    with Device() as seen, ProductMeter() as products, AllocationMeter() as memory:
        result = function(*args)
    counts = {"flops": products.flops, "operators": seen.operators}
    return result, counts | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


@program
def profile_seen(*args, **options):
    """The rows of a profile, and the devices of all that it made."""
    with Device() as seen:
        rows = profile_attention_memory(*args, **options)
    return rows, sorted(seen.devices)


@program
def profile_of_a_generator(lengths, *args):
    """The rows of a profile whose lengths can be gone through once."""
    return profile_attention_memory((n for n in lengths), *args)


@program
def profile_on_a_small_device(most_elements, kind, said, *args):
    """The rows of a profile where an array of more than `most_elements` elements is an error of a kind that says so."""
    error = {"OutOfMemoryError": torch.OutOfMemoryError, "RuntimeError": RuntimeError}[kind](said)
    with Device(most_elements, error):
        return profile_attention_memory(*args)


@program
def _function(task):
    return {
        "linear_attention": linear_attention,
        "causal_linear_attention_cumsum": causal_linear_attention_cumsum,
        "causal_linear_attention_recurrent": causal_linear_attention_recurrent,
        "causal_linear_attention_chunked": causal_linear_attention_chunked,
        "causal_linear_attention_scan": causal_linear_attention_scan,
        "linear_attention_memory": linear_attention_memory,
    }[task]


simulated = pytest.mark.seconds(60)  # the first arithmetic on meta tensors imports a computer algebra system
# What every route must do


ONE_POSITION = pytest.param((1, 4, 6, ()), marks=pytest.mark.kind("robust"))  # there v itself comes out
SHAPES = [(63, 16, 16, ()), (129, 5, 9, (2,)), (70, 8, 3, (2, 3)), ONE_POSITION, (40, 12, 1, (1, 2, 1, 2))]
BLOCKS = [
    (64, 16), (61, 16), (65, 32), (50, 7), (30, 64), (9, 1), (17, 4), (12, 12), (24, 8), (40, 8), (33, 3),
]  # fmt: skip


def assert_worked_example(route, causal=True):
    q, k, v = (torch.tensor(x) for x in ([[0.0], [0.0]], [[0.0], [1.0]], [[3.0], [0.0]]))
    got = route(q, k, v)
    assert_type("the output", got, torch.Tensor, "a tensor")
    want = [[3.0], [1.0]] if causal else [[1.0], [1.0]]
    near = tuple(got.shape) == (2, 1) and bool((got - torch.tensor(want)).abs().max() < 1e-4)
    require(near, f"out is {got.tolist()}, expected {want}: the weights of query 0 are 1 and 2, those of query 1 too")


def assert_values(route, rng, shape, causal=True, chunk=None):
    case = LinearCase(rng, *shape, causal=causal)
    case.check("out", route(*case.inputs), chunk=chunk, hint="d is taken for d_v, or a batch axis for another")


def assert_eps(route, rng, causal=True, **options):
    case = LinearCase(rng, 37, 4, 5, (2,), causal=causal, eps=5.0)
    name = "out, with eps = 5,"
    case.check(name, route(*case.inputs, eps=5.0, **options), hint="eps is added once to each query's sum of weights")


def assert_gradients(route, rng, causal=True, chunk=None, n=41, **sizes):
    """Output and gradients in float64, to 1e-10 of the reference."""
    case = LinearCase(rng, n, 5, 7, (2,), causal=causal, dtype=torch.float64, **sizes)
    leaves = [x.clone().requires_grad_() for x in case.inputs]
    theirs = [x.clone().requires_grad_() for x in case.inputs]
    got = route(*leaves) if chunk is None else route(*leaves, chunk)
    case.check("out in float64", got, chunk=chunk, hint=f"rounding explains {AGREEMENT:g}: is something in float32?")
    require(got.requires_grad, "the output requires no grad though q, k and v do\n"
            "Usual cause: a detach, a .data, or no_grad on the way")  # fmt: skip
    factors = torch.from_numpy(rng.standard_normal(tuple(got.shape)))
    (got * factors).sum().backward()
    (case.by_weights(*theirs) * factors).sum().backward()
    for name, own, other in zip("qkv", leaves, theirs, strict=True):
        require(own.grad is not None, f"the gradient of {name} is None: it was detached on the way")
        want = numbers(other.grad)
        assert_close(f"the gradient of {name}", own.grad, want, plain=want + AGREEMENT / 2,
                     hint="part of the way back is cut by a detach or no_grad, often around the state")  # fmt: skip


def assert_inputs_stay(route, rng, causal=True):
    """Arguments are neither changed nor assumed to be contiguous, and float32 and bfloat16 stay what they are."""
    case = LinearCase(rng, 33, 6, 4, (3,), causal=causal)
    strided = [x.mT.contiguous().mT for x in case.inputs]
    before = [x.clone() for x in strided]
    case.check("out, of inputs that are not contiguous,", route(*strided))
    for name, x, old in zip("qkv", strided, before, strict=True):
        assert_unchanged(name, x, old)
    short = route(*(x.bfloat16() for x in case.inputs))
    require(short.dtype == torch.bfloat16, f"out is {short.dtype} for bfloat16 inputs, expected their dtype")


# Memory and work


def inputs(rng, n, d, d_v, batch=()):
    return tuple(torch.from_numpy(x) for x in random_qkv(rng, n_queries=n, d=d, d_v=d_v, batch=batch))


def measured(task, rng, n, d, d_v, *options):
    """What one call allocates, computes and runs. Its result must be right, or another function was counted."""
    q, k, v = inputs(rng, n, d, d_v)
    got, counts = measured_call(task, q, k, v, *options)
    weights = weights_of(q.double(), k.double())
    want = divided(weights if task == "linear_attention" else weights.tril(), v.double(), 1e-6)
    right = isinstance(got, torch.Tensor) and got.shape == want.shape and torch.allclose(got.double(), want, 1e-3, 1e-3)
    require(right, f"memory and work are counted for N = {n}, d = {d}, d_v = {d_v}, and there the output is wrong\n"
            "What is wrong with it, test_values tells or test_chunks")  # fmt: skip
    return counts


def elements(rng, task, n, d, d_v, *options):
    """The peak over the inputs, in elements of float32."""
    return measured(task, rng, n, d, d_v, *options)["peak_bytes"] // 4


def assert_grows_by_the_output_only(rng, task, name, d, d_v, lengths, *options):
    short, long = lengths
    peaks = [elements(rng, task, n, d, d_v, *options) for n in lengths]
    rate = (peaks[1] - peaks[0]) / (long - short)
    if 0.9 <= rate / (short + long) <= 1.8:
        usual = "weights of N × N are made"
    elif rate >= d * d_v:
        usual = f"a state of d × d_v = {d * d_v} is kept for every position"
    else:
        usual = f"φ(q) or φ(k) (d = {d}) or padded copies are made of the whole input: take a piece at a time"
    require(
        rate <= 2.05 * d_v,
        f"what {name} holds at its peak grows by {rate:,.0f} elements for each position (d = {d}, d_v = {d_v}); the "
        f"output and its pieces explain {2 * d_v}\nUsual cause: {usual}",
    )
    return peaks


def assert_right_within(outside, route, rng, n, d, *options, causal=True):
    """Within the bound of the test's mark, the last queries' output is right: they see most keys."""
    q, k, v = inputs(rng, n, d, d)
    got = outside(route, q, k, v, *options)
    seen = torch.ones(8, n, dtype=torch.float64).tril(n - 8 if causal else n)
    want = divided(weights_of(q[-8:].double(), k.double()), v.double(), 1e-6, seen)
    right = (
        isinstance(got, torch.Tensor) and got.shape == v.shape and torch.allclose(got[-8:].double(), want, 1e-3, 1e-3)
    )
    require(right, f"within that bound the output is not right, at N = {n}, d = {d}")


def assert_linear_work(rng, task, name, *options):
    """Twice the positions, about twice the arithmetic of matrix products."""
    work = [measured(task, rng, n, 16, 16, *options)["flops"] for n in (256, 512)]
    require(work[0] > 0, f"{name} makes no matrix product: the weights of a chunk are one, φ(q) times φ(k) transposed")
    ratio = work[1] / work[0]
    require(ratio <= 2.2, f"twice as many positions take {ratio:.3g} times the arithmetic, expected about 2\n"
            "Usual cause: each chunk, or each state, goes back to all the keys before it")  # fmt: skip


def assert_chunk_is_refused(route, rng):
    case = inputs(rng, 5, 2, 2)
    route(*case)
    for chunk in (0, -3):
        assert_raises(ValueError, lambda chunk=chunk: tuple(route(*case, chunk).shape), when=f"for chunk = {chunk}",
                      mentions=("chunk",))  # fmt: skip


class TestFeatureMap:
    def check(self, got, x, name="φ(x)"):
        assert_type(name, got, torch.Tensor, "a tensor")
        exact = x.double()
        (want,) = map(numbers, mapped(exact))
        suspects = {
            "the + 1 is missing: φ(x) = elu(x) + 1": want - 1,
            "φ is relu(x) + 1, flat below 0": numbers(exact.relu() + 1),
            "φ is exp(x), also above 0": lambda: numbers(exact.clamp(max=700).exp()),
            "φ is softplus": numbers(torch.nn.functional.softplus(exact)),
            "φ is relu(x)": numbers(exact.relu()),
            "φ is selu(x) + 1, which is steeper": numbers(torch.nn.functional.selu(exact) + 1),
            "the branches are swapped": lambda: numbers(torch.where(exact > 0, exact.clamp(max=700).exp(), exact + 1)),
        }
        plain = numbers(torch.nn.functional.elu(x.float()) + 1)
        assert_close(name, got, want, plain=plain, suspects=suspects)

    def test_worked_example(self):
        got = feature_map(torch.tensor([-1.0, 0.0, 2.0]))
        self.check(got, torch.tensor([-1.0, 0.0, 2.0]), "φ([−1, 0, 2])")

    @pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 1, 4, 3), ()])
    def test_every_shape(self, rng, shape):
        x = torch.from_numpy(np.asarray(rng.normal(0, 2, shape), dtype=np.float32))
        self.check(feature_map(x), x)

    def test_is_never_negative(self):
        x = torch.linspace(-40, 1, 83)
        got = feature_map(x)
        self.check(got, x)
        require(bool((got >= 0).all()), f"φ is {float(got.min()):.3g} somewhere: a weight below 0 has no meaning here")

    @pytest.mark.kind("robust")
    def test_large_arguments(self):
        x = torch.tensor([-3e4, -200.0, 200.0, 3e4])
        got = feature_map(x)
        require(bool(got.isfinite().all()), f"φ of ±200 and ±30,000 is {got.tolist()}: exp overflows above 88")
        self.check(got, x)

    @pytest.mark.kind("robust")
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_dtype_stays(self, dtype):
        got = feature_map(torch.tensor([-1.0, 2.0], dtype=dtype))
        require(got.dtype == dtype, f"φ of {dtype} is {got.dtype}, expected the dtype of x")

    def test_gradient(self):
        x = torch.tensor([-3000.0, -2.0, -0.5, 0.5, 3.0, 3000.0], dtype=torch.float64, requires_grad=True)
        feature_map(x).sum().backward()
        require(x.grad is not None, "no gradient reaches x: it was detached on the way")
        want = numbers(x.detach().clamp(max=0).exp())
        assert_close("the derivative of φ at −3000, −2, −0.5, 0.5, 3 and 3000", x.grad, want, plain=want + AGREEMENT,
                     nan_hint="inf · 0: `where` hands a gradient of 0 to the branch not taken, whose exp overflowed: "
                     "clamp what goes into it")  # fmt: skip

    @pytest.mark.kind("robust")
    def test_argument_stays(self, rng):
        x = torch.from_numpy(rng.standard_normal(9))
        before = numbers(x).copy()
        got = feature_map(x)
        require(got.data_ptr() != x.data_ptr(), "φ(x) is x itself, changed in place: the caller still needs x")
        assert_unchanged("x", x, before)


class TestLinearAttention:
    task = "linear_attention"

    def test_worked_example(self):
        assert_worked_example(linear_attention, causal=False)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_values(self, rng, shape):
        assert_values(linear_attention, rng, shape, causal=False)

    @pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 90), (90, 5)])
    def test_other_numbers_of_keys(self, rng, n_queries, n_keys):
        case = LinearCase(rng, n_queries, 6, 4, (2,), n_keys=n_keys, causal=False)
        case.check("out", linear_attention(*case.inputs), hint="N_q is taken for N_k somewhere")

    def test_eps(self, rng):
        assert_eps(linear_attention, rng, causal=False)

    def test_gradients(self, rng):
        assert_gradients(linear_attention, rng, causal=False)

    @pytest.mark.kind("robust")
    def test_inputs_stay(self, rng):
        assert_inputs_stay(linear_attention, rng, causal=False)

    @pytest.mark.kind("small")
    def test_memory_is_linear(self, rng):
        n, d, d_v = 600, 24, 20
        peak = elements(rng, self.task, n, d, d_v)
        hint = (
            f"Usual cause: the weights, N × N = {n * n:,} numbers, are made: multiply φ(k)ᵀ and v first"
            if peak >= n * n
            else f"Usual cause: N × d × d_v = {n * d * d_v:,} products are made before they are summed: φ(k)ᵀ v is one "
            "matrix product"
        )
        limit = 6 * n * d + 4 * d * d_v
        assert_at_most(f"the peak over the inputs for N = {n:,}, d = {d}, d_v = {d_v}", peak, limit, unit="elements",
                       hint=hint)  # fmt: skip

    @pytest.mark.kind("small")
    def test_work_is_linear(self, rng):
        work = [measured(self.task, rng, n, 16, 16)["flops"] for n in (200, 400)]
        ratio = work[1] / max(work[0], 1)
        require(ratio <= 2.1, f"twice as many tokens take {ratio:.3g} times the arithmetic, expected 2\n"
                "Usual cause: φ(q) φ(k)ᵀ is multiplied first")  # fmt: skip

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=24)
    def test_memory_seen_from_outside(self, rng, outside):
        assert_right_within(outside, linear_attention, rng, 4096, 64, causal=False)


class Causal:
    """Tests of a causal route, whichever it is."""

    route = None

    def test_worked_example(self):
        assert_worked_example(self.route)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_values(self, rng, shape):
        assert_values(self.route, rng, shape)

    def test_eps(self, rng):
        assert_eps(self.route, rng)

    def test_gradients(self, rng):
        assert_gradients(self.route, rng)

    @pytest.mark.kind("robust")
    def test_inputs_stay(self, rng):
        assert_inputs_stay(self.route, rng)


class CausalInChunks(Causal):
    """Tests of a causal route that takes a chunk."""

    task = called = where_wrong = ""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_values(self, rng, shape):
        assert_values(self.route, rng, shape, chunk=64)

    @pytest.mark.parametrize(("n", "chunk"), BLOCKS)
    def test_chunks(self, rng, n, chunk):
        case = LinearCase(rng, n, 6, 4, (2,))
        out = self.route(*case.inputs, chunk)
        case.check(f"out, {n} positions in chunks of {chunk},", out, chunk=chunk, hint=self.where_wrong)

    def test_eps(self, rng):
        assert_eps(self.route, rng, chunk=8)

    @pytest.mark.parametrize("chunk", [8, 64])
    def test_gradients(self, rng, chunk):
        assert_gradients(self.route, rng, chunk=chunk)

    @pytest.mark.kind("small")
    def test_work_is_linear(self, rng):
        for chunk in (4, 16):  # in small chunks a product over all pairs of chunks would show
            assert_linear_work(rng, self.task, self.called, chunk)

    @pytest.mark.kind("refuses")
    def test_impossible_chunk(self, rng):
        assert_chunk_is_refused(self.route, rng)


class TestCumsum(Causal):
    task = "causal_linear_attention_cumsum"
    route = staticmethod(causal_linear_attention_cumsum)

    @pytest.mark.kind("small")
    def test_no_loop(self, rng):
        counts = [len(measured(self.task, rng, n, 4, 5)["operators"]) for n in (16, 64)]
        require(counts[1] <= counts[0] + 5, f"{counts[0]} operators run for 16 positions and {counts[1]} for 64\n"
                "Usual cause: a loop over positions: cumsum takes them all at once")  # fmt: skip

    @pytest.mark.kind("small")
    @pytest.mark.parametrize(("n", "d", "d_v"), [(300, 12, 12), (200, 8, 24)])
    def test_two_arrays_of_states(self, rng, n, d, d_v):
        peak = elements(rng, self.task, n, d, d_v)
        name = f"the peak over the inputs for N = {n}, d = {d}, d_v = {d_v}"
        limit = 2 * n * d * d_v + 8 * n * max(d, d_v)
        hint = (
            "Usual cause: a third array of N·d·d_v: reading the states with φ(q) is a matrix product (`@`, einsum); "
            "`(q * states).sum(-2)` makes all products first"
        )
        if 2 * n * n <= peak < 2.6 * n * n:
            hint = "Usual cause: N × N weights: this route sums φ(k) vᵀ over the positions"
        assert_at_most(name, peak, limit, unit="elements", hint=hint)

    @pytest.mark.kind("small")
    def test_no_weights(self, rng):
        n, d = 400, 4
        peak = elements(rng, self.task, n, d, d)
        assert_at_most(f"the peak over the inputs for N = {n}, d = {d}", peak, n * n // 2, unit="elements",
                       hint="Usual cause: N × N weights: this route sums φ(k) vᵀ over the positions")  # fmt: skip

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=50)
    def test_memory_seen_from_outside(self, rng, outside):
        assert_right_within(outside, self.route, rng, 1024, 64)


class TestRecurrent(Causal):
    task = "causal_linear_attention_recurrent"
    route = staticmethod(causal_linear_attention_recurrent)

    @pytest.mark.kind("small")
    def test_one_state(self, rng):
        peaks = assert_grows_by_the_output_only(rng, self.task, "the recurrence", 16, 4, (24, 72))
        limit = 2 * 24 * 4 + 5 * 16 * 5 + 64
        assert_at_most("its peak for 24 positions, d = 16, d_v = 4", peaks[0], limit, unit="elements",
                       hint="beside the output: one state of d·d_v, while it is replaced two or three")  # fmt: skip

    @pytest.mark.kind("small")
    def test_work_of_a_step_stays(self, rng):
        counts = [measured(self.task, rng, n, 8, 8) for n in (24, 48)]
        touched = [max(run["largest_bytes"], 1) for run in counts]
        products = [run["flops"] for run in counts]
        steps = [len(run["operators"]) for run in counts]
        ratio = max(products[1] / max(products[0], 1), steps[1] / steps[0])
        require(ratio <= 2.2, f"twice as many positions take {ratio:.3g} times the work, expected 2\n"
                "Usual cause: each step goes back to the keys before it: the state holds all of them")  # fmt: skip
        require(steps[1] >= steps[0] + 24, "no loop over the positions runs: this route goes one by one")
        require(touched[1] <= 2.2 * touched[0] + 64, "a tensor grows faster than N: that is no recurrence")

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=10)
    def test_memory_seen_from_outside(self, rng, outside):
        assert_right_within(outside, self.route, rng, 128, 192)


class TestChunked(CausalInChunks):
    task = "causal_linear_attention_chunked"
    route = staticmethod(causal_linear_attention_chunked)
    called = "the chunked route"
    where_wrong = "where chunks meet: the state before a chunk holds the keys of all earlier ones"

    @pytest.mark.kind("small")
    def test_one_state_and_one_chunk(self, rng):
        d, d_v, c = 24, 8, 16
        peaks = assert_grows_by_the_output_only(rng, self.task, "the chunked route", d, d_v, (64, 512), c)
        limit = 2 * 64 * d_v + 4 * d * (d_v + 1) + 5 * c * (d + d_v) + 3 * c * c
        usual = f"a state for each position of a chunk: C·d·d_v is {c * d * d_v:,}" if peaks[0] > c * d * d_v else ""
        assert_at_most(f"its peak for 64 positions in chunks of {c}, d = {d}, d_v = {d_v}", peaks[0], limit,
                       unit="elements", hint=f"Usual cause: {usual or 'several chunks are alive at once'}")  # fmt: skip

    @pytest.mark.kind("small")
    def test_chunk_is_used(self, rng):
        counts = [len(measured(self.task, rng, 128, 4, 4, c)["operators"]) for c in (4, 16)]
        require(counts[0] >= 3 * counts[1] - 40 and counts[0] > counts[1],
                f"chunks of 4 take {counts[0]} operators and chunks of 16 take {counts[1]}: the number must fall\n"
                "Usual cause: `chunk` is not used, or the loop is over positions")  # fmt: skip
        limit = 60 * (128 // 16) + 60
        assert_at_most("the number of operators for 8 chunks", counts[1], limit, unit="operators",
                       hint="Usual cause: a loop over positions: a chunk is four matrix products")  # fmt: skip

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=10)
    def test_memory_seen_from_outside(self, rng, outside):
        assert_right_within(outside, self.route, rng, 1024, 192, 8)


class TestScan(CausalInChunks):
    task = "causal_linear_attention_scan"
    route = staticmethod(causal_linear_attention_scan)
    called = "the scan"
    where_wrong = "an odd number of chunks, or one that is no power of two, needs care in a scan"

    @pytest.mark.kind("small")
    def test_steps_grow_with_the_logarithm(self, rng):
        runs = [measured(self.task, rng, n, 4, 4, 2)["operators"] for n in (32, 1024)]
        ready = [name for name in runs[0] if "cum" in name or "conv" in name or "fft" in name or "_scan" in name]
        require(
            not ready, f"{', '.join(ready[:3])} is called: the scan over chunks is yours to write, in sums of pairs"
        )
        more = len(runs[1]) - len(runs[0])
        require(more <= 5 * 45, f"16 chunks take {len(runs[0])} operators and 512 take {more} more; five "
                "doublings explain some 5 · 20\nUsual cause: a loop over the chunks: in a parallel scan every step "
                "works on all of them")  # fmt: skip

    @pytest.mark.kind("small")
    def test_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        peak = elements(rng, self.task, n, d, d, c)
        limit = 10 * n * d + 3 * n * c + 6 * n // c * d * (d + 1)
        hint = (
            f"Usual cause: a state for each position, N·d·d_v = {n * d * d:,}" if peak >= n * d * d
            else f"Usual cause: weights of N × N = {n * n:,}: a query needs those of its own chunk"
        )  # fmt: skip
        assert_at_most(f"the peak over the inputs for N = {n} in chunks of {c}, d = {d}", peak, limit, unit="elements",
                       hint=hint)  # fmt: skip

    @pytest.mark.kind("small")
    def test_keeps_states_of_chunks_only(self, rng):
        n, d, c = 512, 24, 16
        q, k, v = (x.requires_grad_() for x in inputs(rng, n, d, d))
        kept = kept_by_forward(self.route, q, k, v, c) // 4
        limit = 10 * n * d + 3 * n * c + 6 * n // c * d * (d + 1)
        assert_at_most(f"what autograd keeps for N = {n} in chunks of {c}, d = {d}", kept, limit, unit="elements",
                       hint=f"Usual cause: a state for each position ({n * d * d:,}) or a copy of the states for each "
                       "step of the scan is saved: adding saves nothing, multiplying saves both factors")  # fmt: skip

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=32)
    def test_memory_seen_from_outside(self, rng, outside):
        assert_right_within(outside, self.route, rng, 4096, 64)


# The model


SIZES = [
    (1, 1, 512, 64), (2, 3, 128, 4), (1, 2, 8, 64), (3, 1, 64, 16), (4, 8, 8192, 64), (2, 2, 1024, 128),
    (1, 3, 40, 5), (1, 1, 4096, 2), (2, 1, 64, 256), (1, 1, 192, 96), (5, 2, 2048, 32),
]  # fmt: skip


class TestMemoryModel:
    def check(self, part, sizes):
        got = assert_keys("linear_attention_memory's result", linear_attention_memory(*sizes), PARTS)
        want = expected_bytes(sizes)
        assert_bytes(f"{part} of linear_attention_memory{sizes}", part, got[part], want[part], sizes, want["inputs"])

    @simulated
    @pytest.mark.parametrize("part", PARTS)
    def test_every_size(self, part):
        for sizes, dtype_bytes in itertools.product(SIZES, (2, 4, 8)):
            if part != "linear_chunked_peak" or sizes[2] <= 64 or sizes[2] % 64 == 0:
                self.check(part, (*sizes, dtype_bytes))

    def test_worked_example(self):
        got = linear_attention_memory(1, 1, 512, 64, 4)
        assert_keys("linear_attention_memory's result", got, PARTS)
        for part, want in zip(PARTS, (393_216, 2_228_224, 545_024, 17_436_672, 278_784), strict=True):
            assert_bytes(f"{part} of linear_attention_memory(1, 1, 512, 64, 4)", part, got[part], want,
                         (1, 1, 512, 64, 4), 393_216)  # fmt: skip

    @simulated
    @pytest.mark.parametrize("name", ["standard", "linear_bidir", "linear_causal"])
    def test_equals_measurement(self, rng, name):
        for batch, heads, n, d in [(2, 3, 96, 8), (1, 2, 300, 4), (2, 1, 10, 32), (1, 1, 257, 16)]:
            part, sizes = f"{name}_peak", (batch, heads, n, d, 4)
            got = assert_keys("linear_attention_memory's result", linear_attention_memory(*sizes), PARTS)
            measured = measure_peak(getattr(Handout, name), *inputs(rng, n, d, d, (batch, heads)))[0]
            assert_bytes(f"{part} of linear_attention_memory{sizes}, measured,", part, got[part], measured, sizes,
                         expected_bytes(sizes)["inputs"])  # fmt: skip

    def test_whole_numbers(self):
        got = assert_keys("linear_attention_memory's result", linear_attention_memory(2, 3, 128, 32, 2), PARTS)
        for part in PARTS:
            assert_type(part, got[part], int, "an int: bytes are whole")

    @pytest.mark.kind("small")
    def test_makes_no_tensor(self):
        operators = measured_call("linear_attention_memory", 1, 2, 128, 16, 4)[1]["operators"]
        require(not operators, f"{len(operators)} operators run: the model is arithmetic, not a measurement")


# The profile


ROUTES = ("standard", "linear_bidir", "linear_causal", "linear_chunked")
COLUMNS = (
    "seq_len", "input_memory_mb", *(f"{name}_memory_mb" for name in ROUTES),
    *(f"{name}_theoretical_mb" for name in ROUTES), "savings_bidir",
)  # fmt: skip


def rows_of(got, seq_lens):
    assert_type("profile_attention_memory's result", got, list, "a list of dicts, one a length")
    assert_equal("the number of rows", len(got), len(seq_lens))
    for row in got:
        assert_keys("a row", row, COLUMNS)
    assert_equal("seq_len of the rows", [row["seq_len"] for row in got], list(seq_lens))
    return got


def assert_mb(name, got, want_bytes, suspects=None, hint=""):
    """A number of MB, to 2 % or so exactly as measured."""
    assert_type(name, got, (int, float), "a number: MB")
    want = want_bytes / 1e6
    usual = {
        "the unit is MiB: MB are 10⁶ bytes": want_bytes / 2**20,
        "the unit is bytes: the column is in MB": float(want_bytes),
        "the unit is GB: the column is in MB": want_bytes / 1e9,
    }
    for text, value in {**(suspects or {}), **usual}.items():
        if math.isfinite(got) and abs(got - value) <= 1e-6 * abs(value) and abs(value - want) > 1e-3 * want:
            raise AssertionError(
                f"{name} is {got:.6g}, expected {want:.6g}\nThat is exactly what comes out when {text}"
            )
    require(math.isfinite(got) and abs(got - want) <= 1e-3 * want,
            f"{name} is {got:.6g} MB, expected {want:.6g}" + (f"\nUsual cause: {hint}" if hint else ""))  # fmt: skip


class TestProfile:
    def own_peaks(self, shape, dtype):
        """The peaks of the functions that a row is about, measured here."""
        functions = (
            Handout.standard, linear_attention, causal_linear_attention_cumsum, causal_linear_attention_chunked
        )  # fmt: skip
        q, k, v = (torch.ones(shape, dtype=dtype) for _ in range(3))
        return {name: measure_peak(fn, q, k, v)[0] for name, fn in zip(ROUTES, functions, strict=True)}

    def check(self, row, shape, dtype):
        """All columns of one row of nothing out of memory."""
        want = expected_bytes((*shape, dtype.itemsize))
        n = shape[2]
        assert_mb(f"input_memory_mb for N = {n}", row["input_memory_mb"], want["inputs"],
                  {"only one of q, k and v is counted": want["inputs"] / 3e6})  # fmt: skip
        peaks = self.own_peaks(shape, dtype)
        for name, peak in peaks.items():
            theory = want[f"{name}_peak"]
            suspects = {
                "the inputs are counted: the peak is over them": (peak + want["inputs"]) / 1e6,
                "the prediction is written down in place of a measurement": theory / 1e6,
            }
            others = peaks.items() - {(name, peak)}
            suspects |= {f"{other} is measured in its place": value / 1e6 for other, value in sorted(others)}
            column = f"{name}_memory_mb for N = {n}"
            assert_mb(column, row[f"{name}_memory_mb"], peak, suspects,
                      "the peak of one call over its inputs, as measure_peak gives it")  # fmt: skip
            inputs_added = {"the inputs are added: both sides are over the inputs": (theory + want["inputs"]) / 1e6}
            close = abs(row[f"{name}_theoretical_mb"] - theory / 1e6) <= NEAR * theory / 1e6
            if not close:
                assert_mb(f"{name}_theoretical_mb for N = {n}", row[f"{name}_theoretical_mb"], theory, inputs_added)
        quotient = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
        require(abs(row["savings_bidir"] - quotient) <= 1e-6 * quotient,
                f"savings_bidir is {row['savings_bidir']:.6g}, expected measured standard over measured bidirectional, "
                f"{quotient:.6g}")  # fmt: skip

    @simulated
    def test_simulated_rows(self):
        lengths = [128, 64]
        got, devices = profile_seen(lengths, batch=2, heads=3, d=8)
        rows = rows_of(got, lengths)
        for row, n in zip(rows, lengths, strict=True):
            self.check(row, (2, 3, n, 8), torch.float16)
        assert_equal("the devices of the tensors made with device left out", devices, ["meta"])

    @simulated
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_rows_of_the_cpu(self, rng, dtype):
        lengths, heads, d = [int(rng.integers(24, 65)), 128], int(rng.integers(2, 5)), int(rng.integers(8, 25))
        got, devices = profile_seen(lengths, batch=1, heads=heads, d=d, dtype=dtype, device="cpu")
        rows = rows_of(got, lengths)
        for row, n in zip(rows, lengths, strict=True):
            self.check(row, (1, heads, n, d), dtype)
        assert_equal("the devices of the tensors made with device='cpu'", devices, ["cpu"],
                     hint="the device asked for is not used")  # fmt: skip

    @simulated
    @pytest.mark.kind("robust")
    def test_any_iterable_of_lengths(self):
        lengths, options = [16, 8, 16], (1, 2, 4, torch.float32, "cpu")
        for kind, rows in {
            "a tuple": profile_attention_memory(tuple(lengths), *options),
            "an array": profile_attention_memory(np.array(lengths), *options),
            "a range": profile_attention_memory(range(8, 17, 8), *options),
            "a generator, which can be gone through once,": profile_of_a_generator(lengths, *options),
            "no lengths": profile_attention_memory([], *options),
        }.items():
            want = [8, 16] if kind == "a range" else [] if kind == "no lengths" else lengths
            got = [row["seq_len"] for row in rows] if isinstance(rows, list) else rows
            assert_equal(
                f"seq_len of the rows for {kind}", got, want, hint="seq_lens is an Iterable: go through it once"
            )
            for row in rows:
                assert_type(f"seq_len of a row for {kind}", row["seq_len"], (int, np.integer), "an int")
                self.check(row, (1, 2, int(row["seq_len"]), 4), torch.float32)

    @simulated
    def test_the_large_rows(self):
        want = {"standard": 545.260, "linear_bidir": 34.080, "linear_causal": 1115.947}
        (row,) = rows_of(profile_attention_memory([2048]), [2048])
        for name, value in want.items():
            got = row[f"{name}_memory_mb"]
            usual = {"standard": "scores and weights of 268 MB each, and the output", "linear_bidir": "about 4 N·d",
                     "linear_causal": "two N·d² of 537 MB each"}  # fmt: skip
            near = got <= 1.25 * value and (name != "standard" or got >= 0.99 * value)
            require(near, f"{name}_memory_mb for N = 2048 is {got:,.1f}, expected about {value:,.1f}: {usual[name]}")
        assert_at_most("linear_chunked_memory_mb for N = 2048", row["linear_chunked_memory_mb"], 18.0, unit="MB",
                       hint="the output is 8.4 MB, twice that at most while pieces are put together")  # fmt: skip

    @simulated
    def test_capacity(self):
        shape = (1, 2, 128, 16)
        free = profile_attention_memory([128], *shape[:2], 16, torch.float32)
        rows_of(free, [128])
        want, peaks = expected_bytes((*shape, 4)), self.own_peaks(shape, torch.float32)
        for name in ("standard", "linear_causal"):
            need = want["inputs"] + peaks[name]
            for spare, fits in ((0, True), (-1, False)):
                (row,) = rows_of(
                    profile_attention_memory([128], *shape[:2], 16, torch.float32, capacity_bytes=need + spare), [128]
                )
                got = row[f"{name}_memory_mb"]
                what = (
                    f"{name}_memory_mb, for which inputs and peak need {need:,} bytes, with room for {need + spare:,}"
                )
                require(math.isnan(got) != fits, f"{what}, is {got:.6g}, expected {'a number' if fits else 'nan'}\n"
                        "Usual cause: inputs and peak together must fit, and may fill the memory exactly")  # fmt: skip
                assert_mb(f"{name}_theoretical_mb, out of memory or not,", row[f"{name}_theoretical_mb"],
                          want[f"{name}_peak"])  # fmt: skip
        (row,) = rows_of(profile_attention_memory([128], *shape[:2], 16, torch.float32, capacity_bytes=1), [128])
        require(math.isnan(row["savings_bidir"]), f"savings_bidir is {row['savings_bidir']} where the standard form "
                "is out of memory, expected nan")  # fmt: skip

    @pytest.mark.kind("robust")
    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
            ("RuntimeError", "[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
            ("RuntimeError", "[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate"),
        ],
        ids=["CUDA", "CPU", "CPU_on_Windows"],
    )
    def test_out_of_memory_is_a_value(self, kind, said):
        rows_of(profile_attention_memory([8], 1, 1, 4, torch.float32, "cpu"), [8])
        try:
            rows = profile_on_a_small_device(100 * 100, kind, said, [64, 128, 32], 1, 1, 4, torch.float32, "cpu")
        except RuntimeError as uncaught:
            require("memory" not in str(uncaught), f"out of memory ends the profile: {str(uncaught)[:70]}")
            raise
        rows_of(rows, [64, 128, 32])
        found = [[math.isnan(row["standard_memory_mb"]), math.isnan(row["linear_bidir_memory_mb"])] for row in rows]
        assert_equal("whether (standard, bidirectional) are nan in three rows, where N × N of the second is too much,",
                     found, [[False, False], [True, False], [False, False]])  # fmt: skip
        require(math.isnan(rows[1]["savings_bidir"]), "savings_bidir is a number where the standard form has none")

    @pytest.mark.kind("robust")
    def test_other_errors_pass(self):
        rows_of(profile_attention_memory([8], 1, 1, 4, torch.float32, "cpu"), [8])

        def run():
            said = "mat1 and mat2 shapes cannot be multiplied"
            return profile_on_a_small_device(100 * 100, "RuntimeError", said, [128], 1, 1, 4, torch.float32, "cpu")

        assert_raises(RuntimeError, run, when="where an attention raised one that is not about memory",
                      mentions=("mat1 and mat2",))  # fmt: skip
