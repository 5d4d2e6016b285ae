"""Lab 05's suite: FlashAttention's results, and the memory and the work it takes to get them."""

import functools
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from flash_attention import FlashAttention, flash_backward, flash_forward

from labkit.meters.cuda import CudaMeter
from labkit.meters.steps import kept_between, left_behind, measured_step, penalised_gradients, saved_tensors, step
from labkit.testing.attention.gradients import ByStep
from labkit.testing.attention.saved import assert_saved
from labkit.testing.attention.tensor_cases import Case, numbers, strided
from labkit.testing.attention.tensor_reference import attention, gradients, gradients_with_penalty
from labkit.testing.attention.tensor_suspects import backward_suspects, forward_suspects, lse_suspects
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_raises,
    assert_tuple,
    assert_unchanged,
    compare_each,
    require,
    require_at_most,
)
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone
from labkit.testing.wording import dtype_name
from labkit.testing.work import (
    WHOLE_MATRIX,
    assert_largest_stays,
    assert_products_seen,
    assert_small,
    assert_tile_sizes,
    entries,
    entries_seen,
)

from .probes import FUNCTIONS, call_on_nan, measured_call, tiles_of_call

GRADIENTS = ("dQ", "dK", "dV")
RESULTS = {"flash_forward": ("O", "L"), "flash_backward": GRADIENTS}
BLOCKS = [(64, 64), (16, 24), (64, 32), (7, 200), (200, 7), (5, 1)]

NAN_FROM_EMPTY = "`empty` hands out what lay in memory before: write every element of it, or start from zeros"
SHORT_SUMS = "the sums over tiles are kept in half precision: keep them in float32 and convert once, at the end"
OVERFLOW = "exp overflows: no score may enter exp without the row's maximum, or L, taken from it"

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
causal_or_not = pytest.mark.parametrize("causal", [False, True])
by_blocks = pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
worked_case = Case.of([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]], [[1.0]])


# What comes out, and what usual mistakes make of it


def arguments(task, case, *blocks):
    """What `flash_forward` or `flash_backward` is to be given."""
    given = () if task == "flash_forward" else (*case.forward_result, case.dO)
    return (*case.inputs, *given, case.causal, *blocks)


def named(task, result):
    """The results of a call by their names; fails unless they are a tuple as long as the task's."""
    return dict(zip(RESULTS[task], assert_tuple(f"{task}'s result", result, RESULTS[task]), strict=True))


def run(task, case, *blocks):
    """The student's results by their names."""
    return named(task, FUNCTIONS[task](*arguments(task, case, *blocks)))


def assert_right(case, results, *blocks, hint="", nan_hint=""):
    """Compare results, by their names, with the reference, and name a usual mistake where one fits."""
    usual = functools.partial(forward_suspects if "O" in results else backward_suspects, case, *blocks)

    def check(name):
        found = (lambda: usual() | lse_suspects(case)) if name == "L" else usual
        case.check(name, results[name], found, hint=hint, nan_hint=nan_hint)

    compare_each(results, check)


# What it takes


def measure(task, case, *blocks):
    """What a call of a task, whose results are right, allocated and computed."""
    result, counts = measured_call(task, *arguments(task, case, *blocks))
    assert_right(case, named(task, result), *blocks)
    assert_products_seen(task, counts)
    return counts


def signed_case(rng, n_queries, n_keys, causal=False):
    """A case for `ScoreTiles`: Q above 0, K below, and no block as long as d is wide."""
    case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=11, d_v=5, causal=causal)
    case.Q, case.K = case.Q.abs() + 0.1, -case.K.abs() - 0.1
    return case


def tiles(task, case, *blocks):
    """The tiles of scores, (queries, keys), that a call of a task computes, whose results are right."""
    result, found, fused = tiles_of_call(task, case.Q.shape[-1], *arguments(task, case, *blocks))
    assert_right(case, named(task, result), *blocks)
    assert_products_seen(task, {"fused": fused, "flops": len(found)})
    return found


class EveryTask:
    """What is asked of both passes, and of both in one training step."""

    task: ClassVar[str]
    half_n: ClassVar[int] = 129

    def check(self, case, *blocks, hint="", nan_hint=""):
        blocks = blocks or (16, 24)
        assert_right(case, run(self.task, case, *blocks), *blocks, hint=hint, nan_hint=nan_hint)

    def test_worked_example(self):
        self.check(worked_case, hint="compare each step with the handout's numbers")

    @causal_or_not
    @pytest.mark.parametrize("n", [2, 63, 129])
    def test_odd_lengths(self, rng, n, causal):
        self.check(Case(rng, n=n, d=17, causal=causal))

    @causal_or_not
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 129), (129, 7), (20, 65), (65, 20)])
    def test_other_lengths(self, rng, n_queries, n_keys, causal):
        hint = "query i sees the keys j ≤ i, whatever the lengths" if causal else "N_q is taken for N_k somewhere"
        self.check(Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, causal=causal), hint=hint)

    def test_values_of_another_width(self, rng):
        self.check(Case(rng, n=70, d=24, d_v=5), hint="d is taken for d_v somewhere")

    @causal_or_not
    @pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 2)])
    def test_batch(self, rng, batch, causal):
        case = Case(rng, n_queries=33, n_keys=40, d=8, batch=batch, causal=causal)
        case.Q *= 10.0 ** torch.arange(batch[-1])[:, None, None]
        self.check(case, hint="every batch entry is an attention of its own, with its own m and l")

    def test_everything_as_wide_as_long(self, rng):
        case = Case(rng, n=16, d=16, batch=(16,))
        self.check(case, hint="here every axis has 16 elements: an operation along a wrong one does not crash")

    @causal_or_not
    @pytest.mark.parametrize("logit_scale", [30, 300, 10_000])
    @robust
    def test_large_logits(self, rng, logit_scale, causal):
        self.check(Case(rng, n=70, causal=causal, logit_scale=logit_scale), hint=OVERFLOW, nan_hint=OVERFLOW)

    @causal_or_not
    @robust
    def test_bfloat16(self, rng, causal):
        self.check(Case(rng, n=self.half_n, d=32, causal=causal, dtype=torch.bfloat16), hint=SHORT_SUMS)

    @causal_or_not
    @robust
    def test_float64_is_computed_in_float64(self, rng, causal):
        case = Case(rng, n=40, d=8, causal=causal, dtype=torch.float64)
        self.check(case, hint="a step is done in float32, or a small number was added to the sums")

    @robust
    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, n=70, d=8, batch=(2, 3))
        case.Q, case.K, case.V, case.dO = strided(*case.inputs, case.dO)
        hint = "a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent"
        self.check(case, hint=hint)


class EitherPass(EveryTask):
    """What is asked of both passes, which are told their blocks."""

    @by_blocks
    def test_blocks_that_do_not_divide(self, rng, block_q, block_k):
        hint = "each tile adds to dQ in the rows of its queries, and to dK and dV in the rows of its keys"
        hint = hint if self.task == "flash_backward" else "the last block may be smaller"
        self.check(Case(rng, n_queries=65, n_keys=59, d=8), block_q, block_k, hint=hint)

    def test_lengths_drawn_at_random(self, rng):
        for _ in range(4):
            n_queries, n_keys, d, d_v, block_q, block_k = (int(x) for x in rng.integers(2, 40, 6))
            case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, causal=bool(rng.integers(2)))
            self.check(case, block_q, block_k)

    @by_blocks
    def test_causal(self, rng, block_q, block_k):
        self.check(Case(rng, n=65, d=8, causal=True), block_q, block_k)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @robust
    def test_dtypes(self, rng, dtype):
        case = Case(rng, n=20, dtype=dtype)
        for name, got in run(self.task, case, 8, 8).items():
            expected = case.precise if name == "L" else dtype
            found, wanted, given = map(dtype_name, (got.dtype, expected, dtype))
            why = "\nL is float32 for half precision: what it is off by, every weight of the backward pass is off by"
            told = f"{name} is {found}, expected {wanted} for inputs in {given}"
            require(got.dtype == expected, told + (why if name == "L" else ""))

    @pytest.mark.parametrize(("n_queries", "n_keys", "blocks"), [(8, 512, (8, 4)), (512, 8, (4, 8))])
    @robust
    def test_sums_of_half_precision_are_kept_in_float32(self, rng, n_queries, n_keys, blocks):
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, dtype=torch.bfloat16)
        case.Q, case.K, case.V, case.dO = (x.abs() + 1 for x in (*case.inputs, case.dO))
        case.Q /= 8
        case.V[: n_keys // 2] += 4  # so that dQ's sum first grows, then shrinks: what it lost on the way stays lost
        self.check(case, *blocks, hint=SHORT_SUMS)

    @pytest.mark.parametrize("logit_scale", [1e3, 1e7, 1e10])
    @robust
    def test_hidden_keys_do_not_leak(self, rng, logit_scale):
        case = Case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = logit_scale, -1  # every score is far below 0, by nearly the same amount
        for name, got in run(self.task, case, 8, 8).items():
            want = case.want[name]
            off = float(np.nan_to_num(np.abs(numbers(got) - want), nan=np.inf).max())
            told = f"{name} is off by {off:.3g} where all scores are about {-logit_scale / math.sqrt(8):.0e}"
            cause = "a large negative number stands for −inf; beside scores that are lower still it is large"
            largest = 1e-3 * float(np.abs(want).max())
            require_at_most(f"{name}'s error", off, largest, told, kind="tolerance", hint=cause)

    @robust
    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=20, causal=True)
        given = arguments(self.task, case, 8, 8)
        tensors = dict(zip(("Q", "K", "V", "O", "L", "dO"), given, strict=False))
        tensors = {name: x for name, x in tensors.items() if isinstance(x, torch.Tensor)}
        with left_alone(tensors, tensors.values()):
            FUNCTIONS[self.task](*given)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        for sizes in ({"n_queries": 37, "n_keys": 21}, {"n_queries": 21, "n_keys": 37, "causal": True}):
            case = Case(rng, d=8, d_v=5, batch=(2,), **sizes)
            result = call_on_nan(self.task, *arguments(self.task, case, 16, 8))
            assert_right(case, named(self.task, result), 16, 8, nan_hint=NAN_FROM_EMPTY)

    @refuses
    def test_shapes_that_do_not_fit(self, rng):
        case = Case(rng, n_queries=6, n_keys=5, d=8)
        call, (Q, K, V, *rest) = FUNCTIONS[self.task], arguments(self.task, case)
        wrong = [
            ((Q, K[:, :7], V), "when Q and K differ in d", ("(6, 8)", "(5, 7)")),
            ((Q, K, V[:4]), "when K and V differ in N_k", ("(5, 8)", "(4, 8)")),
        ]
        for inputs, when, shapes in wrong:
            assert_raises(ValueError, functools.partial(call, *inputs, *rest), when=when, mentions=shapes)
        for name, size in itertools.product(("block_q", "block_k"), (0, -1)):
            refused = functools.partial(call, Q, K, V, *rest, **{name: size})
            assert_raises(ValueError, refused, when=f"for {name}={size}", mentions=(name,))

    @causal_or_not
    @small
    def test_memory_grows_with_n_only(self, rng, causal):
        counts = measure(self.task, Case(rng, n=576, causal=causal), 64, 64)
        tile, peak = 4 * 64 * 64, {"flash_forward": (16, 6), "flash_backward": (24, 12)}[self.task]
        assert_small(self.task, counts, largest=tile + 576 * 17, peak=peak[0] * 64 * 64 + peak[1] * 576 * 16)

    @pytest.mark.parametrize(("block_q", "block_k"), [(16, 8), (8, 64), (64, 8)])
    @small
    def test_blocks_are_those_asked_for(self, rng, block_q, block_k):
        name = f"{self.task} with blocks of {block_q} × {block_k}"
        for n_queries, n_keys, causal in [(60, 44, False), (60, 44, True), (20, 150, False), (150, 20, True)]:
            found = tiles(self.task, signed_case(rng, n_queries, n_keys, causal), block_q, block_k)
            assert_tile_sizes(name, found, n_queries, n_keys, (block_q, block_k), causal)
        n, square = 128, block_q**2  # diag_embed(alpha), a square of block_q, may rescale the rows of a tile
        counts = measure(self.task, Case(rng, n=n, d=2), block_q, block_k)
        peak = {"flash_forward": 8, "flash_backward": 14}[self.task] * 512 + 2 * square
        assert_small(name, counts, largest=max(512, square), peak=peak, hint="the tiles are not those asked for")

    @pytest.mark.parametrize(("block_q", "block_k"), [(32, 32), (16, 32), (32, 16)])
    @small
    def test_causal_leaves_tiles_out(self, rng, block_q, block_k):
        cases = [signed_case(rng, 130, 165, causal) for causal in (False, True)]
        full, half = (entries(tiles(self.task, case, block_q, block_k)) for case in cases)
        share = entries_seen(130, 165, block_q, block_k) / (130 * 165)
        hint = f"of all scores {share:.0%} lie in tiles with a key that some query sees\nUsual cause: "
        hint += "tiles above the diagonal are computed and then masked: leave them out, the first one too"
        name = f"the scores that {self.task} computes with causal"
        assert_at_most(name, half, round(share * full), unit="entries", hint=hint)


def far_inputs():
    """Q, K, V and dO where one N × N array of float32 has 64 MiB, and a right answer needs a few."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4096, 16, generator=generator) for _ in range(4)]


def far_forward(Q, K, V):
    """O and L of far inputs, 256 rows at a time."""
    blocks = [rows @ K.T / 4 for rows in Q.split(256)]
    return torch.cat([S.softmax(-1) @ V for S in blocks]), torch.cat([S.logsumexp(-1) for S in blocks])


def far_backward(Q, K, V, O, L, dO):
    """dQ, dK and dV of far inputs, 256 rows at a time."""
    dQ, dK, dV = [], torch.zeros_like(K), torch.zeros_like(V)
    for rows in torch.arange(len(Q)).split(256):
        P = torch.exp(Q[rows] @ K.T / 4 - L[rows, None])
        dS = P * (dO[rows] @ V.T - (O * dO)[rows].sum(-1, keepdim=True)) / 4
        dQ.append(dS @ K)
        dK += dS.T @ Q[rows]
        dV += P.T @ dO[rows]
    return torch.cat(dQ), dK, dV


def assert_far(names, got, want):
    """Compare the results of a call whose memory was bounded."""
    for name, value, right in zip(names, got, want, strict=True):
        close = getattr(value, "shape", ()) == right.shape and torch.allclose(value, right, rtol=1e-4, atol=1e-4)
        require(close, f"memory stayed within the limit, but {name} is wrong at N = 4096 in tiles of 512 × 512")


class TestFlashForward(EitherPass):
    task = "flash_forward"

    def test_one_query_and_one_key(self, rng):
        self.check(Case(rng, n=1, d=17))

    @robust
    def test_very_negative_logits(self, rng):
        case = Case(rng, n=40)
        case.Q, case.K = case.Q.abs() * 300, -case.K.abs() - 1
        cause = "the maximum must be the row's own, and it may be far below 0: start m at −inf, not at 0"
        self.check(case, 16, 16, hint=cause, nan_hint=cause)

    @robust
    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        O, L = flash_forward(case.Q, case.K[:, :0], case.V[:, :0])
        require(O.shape == (2, 5, 16) and bool((O == 0).all()), "without keys (N_k = 0) O must be 0")
        require(L.shape == (2, 5) and bool(L.isneginf().all()), "without keys (N_k = 0) L must be −inf")

    @small
    def test_every_score_is_computed_once(self, rng):
        n_computed = entries(tiles(self.task, signed_case(rng, 250, 120), 64, 32))
        hint = "Q_i times K_j transposed is computed once for each tile. One pass, no second"
        assert_at_most("the scores computed for N_q = 250, N_k = 120", n_computed, 250 * 120, unit="entries", hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=22)
    def test_no_matrix_seen_from_outside(self, outside):
        Q, K, V, _ = far_inputs()
        assert_far("OL", outside(flash_forward, Q, K, V, False, 512, 512), far_forward(Q, K, V))


class TestFlashBackward(EitherPass):
    task = "flash_backward"

    @robust
    def test_keys_that_no_query_sees(self, rng):
        case = Case(rng, n_queries=20, n_keys=65, d=8, causal=True)
        result = named(self.task, call_on_nan(self.task, *arguments(self.task, case, 8, 16)))
        for name in ("dK", "dV"):
            largest = float(result[name][20:].abs().nan_to_num(math.inf).max())
            told = f"{name} is {largest:.3g} for keys that come after every query, expected 0"
            cause = "hidden keys get a weight, or the gradient started from `empty`"
            require(largest == 0, f"{told}\nUsual cause: {cause}")

    def test_weights_come_from_the_given_l(self, rng):
        case = Case(rng, n=40, d=8)
        O, L = case.forward_result
        dV = flash_backward(*case.inputs, O, L + math.log(2), case.dO, False, 16, 16)[2]
        half = gradients(*case.inputs, case.dO).dV / 2
        off = float((dV - half).abs().max())
        told = (
            f"with log 2 added to L every weight exp(S − L), and so dV, must be half as large; dV is off by {off:.3g}"
        )
        cause = "the softmax is computed once more from its start, in place of P = exp(S − L)"
        require_at_most("dV's error", off, 1e-4, f"{told}\nUsual cause: {cause}", kind="tolerance")

    def test_d_comes_from_the_given_o(self, rng):
        case = Case(rng, n=40, d=8)
        O, L = case.forward_result
        dQ = [flash_backward(*case.inputs, given, L, case.dO, False, 16, 16)[0] for given in (O, torch.zeros_like(O))]
        P = attention(*case.inputs).weights
        D = (case.dO.double() * O.double()).sum(-1, keepdim=True)
        change = P * D @ case.K.double() * 8**-0.5
        off = float((dQ[1] - dQ[0] - change).abs().max())
        told = f"with 0 given for O, D is 0 and dQ changes by P ∘ D K/√d; that change is off by {off:.3g}"
        cause = "D is not taken from dO and O (one number a row), or O is computed once more"
        require_at_most("the error of dQ's change", off, 1e-4, f"{told}\nUsual cause: {cause}", kind="tolerance")

    @robust
    def test_gradient_of_a_sum(self, rng):
        case = Case(rng, n=30, d=8, batch=(2,))
        case.dO = torch.ones(()).expand(2, 30, 8)
        self.check(case, 16, 16, hint="dO of O.sum() is one number, expanded: a view with strides of 0")

    @robust
    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        empty = [x[:, :0] for x in (case.K, case.V)]
        L = torch.full((2, 5), -math.inf)
        dQ, dK, dV = flash_backward(case.Q, *empty, torch.zeros(2, 5, 16), L, case.dO)
        require(dQ.shape == (2, 5, 16) and bool((dQ == 0).all()), "without keys (N_k = 0) dQ must be 0")
        require(dK.shape == dV.shape == (2, 0, 16), f"dK is {tuple(dK.shape)}, dV {tuple(dV.shape)}, K (2, 0, 16)")

    @small
    def test_work_of_a_tile(self, rng):
        n_computed = entries(tiles(self.task, signed_case(rng, 250, 120), 64, 32))
        hint = "once for each tile, twice where dQ has a loop of its own. P is exp(S − L): nothing else is made anew"
        name = "the scores computed for N_q = 250, N_k = 120"
        assert_at_most(name, n_computed, 2 * 250 * 120, unit="entries", hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=30)
    def test_no_matrix_seen_from_outside(self, outside):
        Q, K, V, dO = far_inputs()
        O, L = far_forward(Q, K, V)
        got = outside(flash_backward, Q, K, V, O, L, dO, False, 512, 512)
        assert_far(GRADIENTS, got, far_backward(Q, K, V, O, L, dO))


# A training step through autograd

LARGEST_TILE = 2**17


@probe
def step_of_apply(kind, Q, K, V, dO, causal=False, **options):
    """One of the steps of `labkit.meters.steps`, by its name, through `apply`."""
    kinds = {"step": step, "measured_step": measured_step, "penalised_gradients": penalised_gradients}
    function = (lambda *inputs: FlashAttention.apply(*inputs, True)) if causal else FlashAttention.apply
    return kinds[kind](function, (Q, K, V), dO, **options)


@probe
def saved_by_apply(Q, K, V):
    return saved_tensors(FlashAttention.apply, (Q, K, V), "QKVO")


@probe
def kept_by_apply(Q, K, V):
    return kept_between(FlashAttention.apply, (Q, K, V)), left_behind(FlashAttention.apply, (Q, K, V))


@probe
def gradient_of_one_input(X, dO):
    """The gradient of X, which is query, key and value at once."""
    X = X.detach().requires_grad_()
    (FlashAttention.apply(X, X, X, False) * dO).sum().backward()
    return X.grad


def apply(case, needs):
    """The student's output, for inputs that need a gradient or do not."""
    inputs = [x.detach().requires_grad_(needs) for x in case.inputs]
    O = FlashAttention.apply(*inputs, True) if case.causal else FlashAttention.apply(*inputs)
    assert_output_alone(O)
    return O


def assert_output_alone(O):
    """Fail unless `apply` returned one tensor."""
    told = f"apply returned a {type(O).__name__}, expected O alone: what only backward needs goes into ctx"
    require(isinstance(O, torch.Tensor), told)


def assert_output(case, O, hint="", nan_hint=""):
    """What `apply` returned, compared with the reference."""
    assert_dtype("O", O, case.Q.dtype)
    usual = functools.partial(forward_suspects, case, case.Q.shape[-2], case.K.shape[-2])
    case.check("O", O, usual, hint=hint, nan_hint=nan_hint)


def arrived(gradients):
    """The gradients by their names; fails unless all are there."""
    found = dict(zip(GRADIENTS, gradients, strict=True))
    for name, gradient in found.items():
        require(gradient is not None, f"{name} never arrived: backward returned None in its place")
    return found


def loss(O, case):
    """A number whose gradient by O is dO. (`O.backward(dO)` imports half of torch first.)"""
    return (O * case.dO).sum()


def measure_step(case):
    """What the passes of a training step, whose results are right, allocated and computed, by their names."""
    O, gradients, passes = step_of_apply("measured_step", *case.inputs, case.dO, case.causal)
    assert_output_alone(O)
    assert_output(case, O)
    assert_right(case, arrived(gradients))
    for name, counts in passes.items():
        assert_products_seen(name, counts)
    return passes


@functools.cache
def long_step(n, causal):
    """A step with n tokens, measured once for several tests."""
    return measure_step(Case(np.random.default_rng(5), n=n, causal=causal))


class TestFlashAttention(EveryTask):
    task = "FlashAttention"
    half_n = 600  # its tiles are its own: what each loses must add up

    def check(self, case, hint="", nan_hint=""):
        O, _, gradients = step_of_apply("step", *case.inputs, case.dO, case.causal)
        assert_output_alone(O)
        assert_output(case, O, hint=hint, nan_hint=nan_hint)
        assert_right(case, arrived(gradients), hint=hint, nan_hint=nan_hint)

    def test_is_causal_may_be_left_out(self, rng):
        case = Case(rng, n=40, d=8)
        left_out, said = FlashAttention.apply(*case.inputs), FlashAttention.apply(*case.inputs, False)
        case.check("O", left_out)
        require(bool(torch.equal(left_out, said)), "is_causal left out must mean False")

    @pytest.mark.seconds(60)  # gradcheck's first call imports sympy
    def test_gradcheck(self, rng):
        for causal in (False, True):
            case = Case(rng, n_queries=4, n_keys=6, d=3, d_v=2, causal=causal, dtype=torch.float64, batch=(2,))
            right = torch.autograd.gradcheck(
                lambda *x, causal=causal: ByStep.apply(
                    lambda *x: FlashAttention.apply(*x, causal), lambda *x: step_of_apply("step", *x, causal)[2], *x
                ),
                [x.requires_grad_() for x in case.inputs],
                raise_exception=False,
                check_undefined_grad=False,
            )
            require(right, f"torch.autograd.gradcheck, {causal=}: the gradients are not those of the output")

    @robust
    def test_second_derivatives_are_right_or_refused(self, rng):
        case = Case(rng, n_queries=6, n_keys=9, d=4, d_v=3, dtype=torch.float64)
        told = step_of_apply("penalised_gradients", *case.inputs, case.dO)
        if isinstance(told, str):
            return
        want, alone = gradients_with_penalty(*case.inputs, case.dO)
        hint = "backward is differentiated too, but L is a constant there: refuse, where torch.is_grad_enabled()"
        for name, got, exact, first in zip(GRADIENTS, told, map(numbers, want), map(numbers, alone), strict=True):
            name, plain = f"{name} of a loss with a penalty on its own gradients", exact + 1e-9 * np.abs(exact).max()
            left_out = "the penalty is left out: backward's results come without a graph, and without an error"
            assert_close(name, got, exact, plain=plain, suspects={left_out: first}, hint=hint)

    @robust
    def test_one_input_in_three_places(self, rng):
        case = Case(rng, n=40, d=8)
        case.K = case.V = case.Q
        gradient = gradient_of_one_input(case.Q, case.dO)
        case.want["dX"] = sum(case.want[name] for name in GRADIENTS)
        case.plain["dX"] = sum(case.plain[name] for name in GRADIENTS)
        alone = {f"only {name} arrives": case.want[name] for name in GRADIENTS}
        case.check("dX", gradient, alone, hint="X is query, key and value: its gradient is dQ + dK + dV")

    @robust
    def test_gradient_of_a_sum(self, rng):
        case = Case(rng, n=70, d=8, batch=(2,))
        case.dO = torch.ones_like(case.dO)
        _, _, gradients = step_of_apply("step", *case.inputs, None)
        hint = "dO of O.sum() is one number, expanded: a view with strides of 0"
        assert_right(case, arrived(gradients), hint=hint)

    @pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True),
                                       (False, True, True), (True, False, True)])  # fmt: skip
    def test_inputs_that_need_no_gradient(self, rng, needs):
        case = Case(rng, n=40, d=8, causal=True)
        _, _, gradients = step_of_apply("step", *case.inputs, case.dO, case.causal, needs=needs)
        why = "backward returns one value for each argument of forward, with None in the place of those not needed"
        for name, gradient, needed in zip(GRADIENTS, gradients, needs, strict=True):
            if needed:
                require(gradient is not None, f"{name} never arrived, though its input needs a gradient\n{why}")
                assert_right(case, {name: gradient}, hint="each gradient must stand in its own argument's place")
            else:
                require(gradient is None, f"{name} arrived, though its input needs no gradient")

    @robust
    def test_without_any_gradient(self, rng):
        case = Case(rng, n=40, d=8)
        O = apply(case, False)
        require(not O.requires_grad, "no input needs a gradient, and yet O does")
        with torch.no_grad():
            O = apply(case, True)
        require(not O.requires_grad, "under torch.no_grad() O must not need a gradient")
        case.check("O", O)

    @robust
    def test_backward_twice(self, rng):
        case = Case(rng, n=40, d=8, causal=True)
        _, _, once = step_of_apply("step", *case.inputs, case.dO, case.causal)
        _, _, both = step_of_apply("step", *case.inputs, case.dO, case.causal, n_backward=2)
        first = arrived(once)
        for name, twice in arrived(both).items():
            off = float((twice - 2 * first[name]).abs().max())
            told = f"{name} of a second backward pass differs from the first's by {off:.3g}"
            cause = "backward changes a saved tensor in place"
            largest = 1e-6 * float(twice.abs().max())
            require_at_most(f"{name}'s change", off, largest, f"{told}\nUsual cause: {cause}", kind="tolerance")

    @robust
    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=40, d=8)
        with left_alone(("Q", "K", "V", "dO"), (*case.inputs, case.dO)):
            output, O_now, _ = step_of_apply("step", *case.inputs, case.dO, case.causal)
            assert_output_alone(output)
        assert_unchanged("O", O_now, output)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = Case(rng, n_queries=21, n_keys=37, d=8, d_v=5, batch=(2,), causal=True)
        O, _, gradients = step_of_apply("step", *case.inputs, case.dO, case.causal, on_nan=True)
        assert_output_alone(O)
        assert_output(case, O, nan_hint=NAN_FROM_EMPTY)
        assert_right(case, arrived(gradients), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @small
    def test_saved_are_q_k_v_o_and_one_l(self, rng, dtype):
        for batch in ((2, 3), ()):
            case = Case(rng, n_queries=70, n_keys=80, d=8, d_v=6, batch=batch, dtype=dtype)
            O, saved = saved_by_apply(*case.inputs)
            assert_output_alone(O)
            assert_output(case, O)
            assert_saved(case, saved)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @small
    def test_forward_leaves_nothing_else_behind(self, rng, dtype):
        case = Case(rng, n_queries=256, n_keys=192, d=8, batch=(2,), dtype=dtype)
        (kept, O), _ = kept_by_apply(*case.inputs)
        assert_output_alone(O)
        assert_output(case, O)
        hint = "between the passes only L may take memory: is a tensor kept as an attribute of ctx, or a copy saved?"
        assert_at_most("what the forward pass keeps, besides Q, K, V and O,", kept, 2 * 256 * 4, hint=hint)

    @small
    def test_memory_goes_when_the_output_goes(self, rng):
        case = Case(rng, n=64)
        _, (left, O) = kept_by_apply(*case.inputs)
        assert_output(case, torch.tensor(O))
        hint = "an output kept as an attribute of ctx keeps itself alive until Python's cycle collector comes by"
        assert_at_most("what is still alive when the output is gone", left, 0, hint=hint)

    @causal_or_not
    @small
    def test_no_pass_makes_an_n_by_n_tensor(self, causal):
        # Where 512 tokens show already that tiles are small, 1024 of them would take many tiles and tell no more.
        small_enough = {"largest_bytes": 4 * 2**14, "peak_bytes": 4 * 512 * 512 // 2}
        short = long_step(512, causal).values()
        if all(counts[name] <= limit for counts in short for name, limit in small_enough.items()):
            return
        for name, counts in long_step(1024, causal).items():
            assert_small(name, counts, largest=LARGEST_TILE, peak=1024 * 1024 // 2)

    @pytest.mark.parametrize(
        ("sizes", "causal", "side"),
        [
            ([(64, 512), (64, 2048)], False, "keys"),
            ([(512, 64), (2048, 64)], False, "queries"),
            ([(512, 512), (1024, 1024)], True, "tokens"),
        ],
        ids=["keys", "queries", "causal"],
    )
    @small
    def test_tiles_do_not_grow_with_n(self, rng, sizes, causal, side):
        cases = [Case(rng, d=2, n_queries=n_queries, n_keys=n_keys, causal=causal) for n_queries, n_keys in sizes]
        assert_largest_stays(side, sizes, *map(measure_step, cases))

    @small
    def test_causal_leaves_tiles_out_in_both_passes(self):
        for n in (512, 1024, 2048):  # of few large tiles a larger share holds a key that some query sees
            full, half = long_step(n, False), long_step(n, True)
            shares = {name: half[name]["flops"] / full[name]["flops"] for name in full}
            if max(shares.values()) <= 0.68 or (n == 1024 and max(shares.values()) > 0.8):
                break
        cause = "tiles that lie above the diagonal are computed and then masked: leave them out"
        for name, share in shares.items():
            told = f"with is_causal {name} does {share:.0%} of the full work, though half of the scores are hidden"
            hidden = f"of the scores that no query sees, what {name} computes"
            require_at_most(hidden, 2 * share - 1, 0.5, f"{told}\nUsual cause: {cause}")

    @pytest.mark.gpu
    @causal_or_not
    def test_bfloat16_on_cuda(self, rng, causal):
        case = Case(rng, n=500, d=64, causal=causal, dtype=torch.bfloat16, batch=(2, 2), device="cuda")
        self.check(case, hint=SHORT_SUMS)

    @pytest.mark.gpu
    def test_memory_on_cuda(self, rng):
        case = Case(rng, n=8192, d=64, dtype=torch.bfloat16, device="cuda")
        inputs = [x.requires_grad_() for x in case.inputs]
        loss(FlashAttention.apply(*inputs, True), case).backward()  # once outside the count: workspaces of libraries
        for x in inputs:
            x.grad = None
        with CudaMeter("cuda") as meter:
            loss(FlashAttention.apply(*inputs, True), case).backward()
        name = "the peak memory of a training step on CUDA"
        assert_at_most(name, meter.peak_bytes, 8192 * 8192 // 2, hint=WHOLE_MATRIX)
