"""Lab 05's suite: FlashAttention's results, and the memory and the work it takes to get them."""

import gc
import math
from functools import cache
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from flash_attention import FlashAttention, flash_backward, flash_forward
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.cuda import CudaMeter
from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter
from labkit.testing.compare import (
    assert_at_most,
    assert_dtype,
    assert_raises,
    assert_tuple,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.programs import program
from labkit.testing.tensor_cases import Case, numbers
from labkit.testing.tensor_reference import attention, gradients
from labkit.testing.tensor_suspects import backward_suspects, forward_suspects, lse_suspects


@program
class UninitialisedIsNaN(TorchDispatchMode):
    """Fills what `torch.empty` and its like hand out with NaN, which on another day may be there by itself."""

    EMPTY: ClassVar = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in self.EMPTY and out.is_floating_point():
            out.fill_(math.nan)
        return out


@program
def measured_call(task, *args):
    """What `flash_forward` or `flash_backward` returns, and what it allocated and computed."""
    return _measured(_function(task), *args)


@program
def call_on_nan(task, *args):
    """What `flash_forward` or `flash_backward` returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return _function(task)(*args)


@program
def measured_step(Q, K, V, dO, causal):
    """The output and the gradients of a training step, and what each of its passes allocated and computed."""
    inputs = _leaves(Q, K, V)
    O, forward = _measured(_apply, inputs, causal)
    if not isinstance(O, torch.Tensor):
        return O, [], {"the forward pass": forward}
    _, backward = _measured((O * dO).sum().backward)
    passes = {"the forward pass": forward, "the backward pass": backward}
    return O.detach(), [x.grad for x in inputs], passes


@program
def step_on_nan(Q, K, V, dO, causal):
    """The output and the gradients of a training step where uninitialised memory holds NaN."""
    inputs = _leaves(Q, K, V)
    with UninitialisedIsNaN():
        O = _apply(inputs, causal)
        if not isinstance(O, torch.Tensor):
            return O, []
        (O * dO).sum().backward()
    return O.detach(), [x.grad for x in inputs]


@program
def output_around_backward(Q, K, V, dO, causal):
    """The output of a training step before its backward pass, and after it; Q, K and V are handed on as they are."""
    O = _apply(_leaves(Q, K, V), causal)
    if not isinstance(O, torch.Tensor):
        return O, None
    before = O.detach().clone()
    (O * dO).sum().backward()
    return before, O.detach()


@program
def saved_by_apply(Q, K, V):
    """The output, and what autograd saves: for what lies in the memory of Q, K, V or O its name, otherwise itself."""
    inputs, saved = _leaves(Q, K, V), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.detach()) or x, lambda x: x):
        O = FlashAttention.apply(*inputs)
    if not isinstance(O, torch.Tensor):
        return O, []
    own = {_memory(x): name for name, x in zip("QKVO", (*inputs, O), strict=True)}
    return O.detach(), [own.get(_memory(x), x) for x in saved]


@program
def kept_by_apply(Q, K, V):
    """The bytes besides the output that a forward pass, the second one, leaves behind."""
    inputs = _leaves(Q, K, V)
    FlashAttention.apply(*inputs)  # once outside the count: what is made once and for all is no matter
    return kept_by_forward(FlashAttention.apply, *inputs)


@program
def left_by_apply(Q, K, V):
    """The bytes that are still alive when the output of a forward pass, the second one, is gone."""
    FlashAttention.apply(Q, K, V)
    gc.collect()
    gc.disable()
    try:
        with AllocationMeter() as meter:
            O = FlashAttention.apply(*_leaves(Q, K, V))
            del O
        return meter.live_bytes
    finally:
        gc.enable()


@program
def _function(task):
    return {"flash_forward": flash_forward, "flash_backward": flash_backward}[task]


@program
def _measured(fn, *args):
    with ProductMeter() as products, AllocationMeter() as memory:
        result = fn(*args)
    counts = {"flops": products.flops, "fused": products.fused}
    return result, counts | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


@program
def _leaves(*inputs):
    return [x.detach().requires_grad_() for x in inputs]


@program
def _apply(inputs, causal):
    return FlashAttention.apply(*inputs, True) if causal else FlashAttention.apply(*inputs)


@program
def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


WHOLE_MATRIX = "no pass may hold the whole matrix, or a whole row or column of tiles: use up each tile before the next"
MANY_TILES = "many small tensors kept at once weigh as much as one N×N: nothing of a tile may be kept"
LARGEST_TILE = 2**17
GRADIENTS = ("dQ", "dK", "dV")
RESULTS = {"flash_forward": ("O", "L"), "flash_backward": GRADIENTS}


def arguments(task, case, *blocks):
    """What `flash_forward` or `flash_backward` is to be given."""
    given = () if task == "flash_forward" else (*case.forward_result, case.dO)
    return (*case.inputs, *given, case.causal, *blocks)


def forward(case, *blocks):
    """The student's O and L."""
    return assert_results("flash_forward", flash_forward(*arguments("flash_forward", case, *blocks)))


def backward(case, *blocks):
    """The student's dQ, dK and dV."""
    return assert_results("flash_backward", flash_backward(*arguments("flash_backward", case, *blocks)))


def assert_results(task, result):
    """Fail unless `result` is a tuple as long as the task's; returns it."""
    return assert_tuple(f"{task}'s result", result, RESULTS[task])


def assert_forward(case, *blocks, hint="", nan_hint=""):
    """Compare O and L with the reference."""
    O, L = forward(case, *blocks)
    block_q, block_k = blocks or (64, 64)
    if tuple(L.shape) != tuple(case.want["L"].shape) and tuple(L.shape) == (*case.want["L"].shape, 1):
        raise AssertionError(f"L has shape {tuple(L.shape)}, expected {case.want['L'].shape}: one number a query")
    usual = forward_suspects(case, block_q, block_k)
    case.check("O", O, usual, hint=hint, nan_hint=nan_hint)
    case.check("L", L, {**usual, **lse_suspects(case)}, hint=hint, nan_hint=nan_hint)


def assert_backward(case, *blocks, hint="", nan_hint=""):
    """Compare dQ, dK and dV with the reference."""
    got = backward(case, *blocks)
    assert_gradients(case, dict(zip(GRADIENTS, got, strict=True)), *blocks, hint=hint, nan_hint=nan_hint)


def assert_gradients(case, got, *blocks, hint="", nan_hint=""):
    usual = backward_suspects(case, *blocks)
    for name, value in got.items():
        case.check(name, value, usual, hint=hint, nan_hint=nan_hint)


class Measured:
    """What one call of a task returned, allocated and computed."""

    def __init__(self, task, case, *blocks):
        self.task, self.case = task, case
        result, counts = measured_call(task, *arguments(task, case, *blocks))
        self.result = assert_results(task, result)
        self.flops, self.fused = counts["flops"], counts["fused"]
        self.peak_bytes, self.largest_bytes = counts["peak_bytes"], counts["largest_bytes"]

    def check(self):
        """Compare what was returned with the reference: what is right elsewhere must be right when it is measured."""
        for name, value in zip(RESULTS[self.task], self.result, strict=True):
            self.case.check(name, value)


def assert_products_seen(name, measured):
    require(
        not measured.fused,
        f"{name} calls torch's own attention ({', '.join(sorted(set(measured.fused)))})\nThe tiles are yours to write",
    )
    require(measured.flops > 0, f"{name} makes no matrix product: a tile of scores is one, Q_i times K_j transposed")


def assert_small(name, measured, largest, peak, hint=""):
    """Both limits in elements of float32."""
    assert_products_seen(name, measured)
    elements = measured.largest_bytes // 4
    assert_at_most(f"the largest tensor made by {name}", elements, largest, unit="elements", hint=hint or WHOLE_MATRIX)
    assert_at_most(f"{name}'s peak memory", measured.peak_bytes, peak * 4, hint=hint or MANY_TILES)


def assert_tiles_skipped(task, rng, block_q, block_k):
    """The share of the products done when causal is at most the share of tiles that some query sees into."""
    n_queries, n_keys, measured = 128, 160, []
    for causal in (False, True):
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, causal=causal)
        measured.append(Measured(task, case, block_q, block_k))
        assert_products_seen(task, measured[-1])
    tiles = [(i, j) for i in range(0, n_queries, block_q) for j in range(0, n_keys, block_k)]
    seen = sum(j < i + block_q for i, j in tiles)
    share = measured[1].flops / measured[0].flops
    require(
        share <= 1.02 * seen / len(tiles),
        f"with causal, {task} does {share:.0%} of the full work; {seen} of {len(tiles)} tiles hold a key that some "
        f"query sees, {seen / len(tiles):.0%}\nUsual cause: tiles that lie above the diagonal are computed and then "
        "masked: leave them out",
    )
    for one in measured:
        one.check()


NAN_FROM_EMPTY = "`empty` hands out what lay in memory before: write every element of it, or start from zeros"
SHORT_SUMS = "the sums over tiles are kept in half precision: keep them in float32 and convert once, at the end"
BLOCKS = [(64, 64), (16, 24), (64, 32), (7, 200), (200, 7), (5, 1)]


class TestFlashForward:
    def test_worked_example(self):
        Q, K, V = (torch.tensor(x) for x in ([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]]))
        O, L = assert_tuple("flash_forward's result", flash_forward(Q, K, V), ("O", "L"))
        for name, got, want in (("O", O, 0.669762), ("L", L, 1.107940)):
            require(abs(float(got.flatten()[0]) - want) < 1e-4, f"{name} is {got.tolist()}, expected about {want:.4f}")

    @pytest.mark.parametrize("n", [1, 63, 129])
    def test_odd_lengths(self, rng, n):
        assert_forward(Case(rng, n=n, d=17))

    def test_more_keys_than_queries(self, rng):
        assert_forward(Case(rng, n_queries=5, n_keys=129), hint="N_q is taken for N_k somewhere")

    def test_more_queries_than_keys(self, rng):
        assert_forward(Case(rng, n_queries=129, n_keys=7), hint="N_q is taken for N_k somewhere")

    def test_values_of_another_width(self, rng):
        assert_forward(Case(rng, n=70, d=24, d_v=5), hint="d is taken for d_v somewhere")

    @pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
    def test_blocks_that_do_not_divide(self, rng, block_q, block_k):
        assert_forward(Case(rng, n_queries=65, n_keys=59, d=8), block_q, block_k, hint="the last block may be smaller")

    def test_lengths_drawn_at_random(self, rng):
        for _ in range(4):
            n_queries, n_keys, d, d_v, block_q, block_k = (int(x) for x in rng.integers(2, 40, 6))
            case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, causal=bool(rng.integers(2)))
            assert_forward(case, block_q, block_k)

    def test_batch(self, rng):
        case = Case(rng, n_queries=33, n_keys=40, batch=(3,))
        case.Q *= torch.tensor([1.0, 10.0, 100.0])[:, None, None]
        assert_forward(case, 16, 16, hint="every batch entry is an attention of its own, with its own m and l")

    def test_batch_and_heads(self, rng):
        assert_forward(Case(rng, n_queries=20, n_keys=13, d=8, batch=(2, 3)), 8, 4)

    @pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
    def test_causal(self, rng, block_q, block_k):
        assert_forward(Case(rng, n=65, d=8, causal=True), block_q, block_k)

    @pytest.mark.parametrize(("n_queries", "n_keys"), [(20, 65), (65, 20)])
    def test_causal_counts_from_the_first_key(self, rng, n_queries, n_keys):
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, causal=True, batch=(2,))
        assert_forward(case, 8, 16, hint="query i sees the keys j ≤ i, whatever the lengths")

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("logit_scale", [100, 10_000])
    def test_large_logits(self, rng, logit_scale, causal):
        cause = "exp overflows: take the largest score so far from every score of the tile before exp"
        case = Case(rng, n=66, causal=causal, logit_scale=logit_scale)
        assert_forward(case, 16, 16, hint=cause, nan_hint=cause)

    def test_very_negative_logits(self, rng):
        case = Case(rng, n=40)
        case.Q, case.K = case.Q.abs() * 300, -case.K.abs() - 1
        cause = "the maximum must be the row's own, and it may be far below 0: start m at −inf, not at 0"
        assert_forward(case, 16, 16, hint=cause, nan_hint=cause)

    @pytest.mark.parametrize("logit_scale", [1e3, 1e9])
    def test_hidden_keys_do_not_leak(self, rng, logit_scale):
        case = Case(rng, n=24, d=8, causal=True)
        case.Q, case.K = case.Q.abs() * logit_scale + logit_scale, -case.K.abs() - 1
        case.K *= torch.linspace(30, 1, 24)[:, None]  # a later key, if it is seen, outweighs all before it
        case.V += 100 * torch.arange(24.0)[:, None]
        O, _ = forward(case, 8, 8)
        off = float((O[0] - case.V[0]).abs().max())
        require(
            off <= 1e-3 * float(case.V[0].abs().max()),
            f"query 0 sees key 0 only, so O[0] must be V[0]; it is off by {off:.3g}\n"
            "Usual cause: a large negative number stands for −inf; beside scores that are lower still it is large",
        )
        assert_forward(case, 8, 8)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtypes(self, rng, dtype):
        case = Case(rng, n=20, dtype=dtype)
        O, L = forward(case, 8, 8)
        assert_dtype("O", O, dtype)
        require(
            L.dtype == case.precise,
            f"L is {L.dtype}, expected {case.precise} for inputs in {dtype}\n"
            "float32 for half precision: an error of 1 % in L is one of 1 % in every weight of the backward pass",
        )

    @pytest.mark.parametrize("causal", [False, True])
    def test_bfloat16(self, rng, causal):
        assert_forward(Case(rng, n=129, d=32, causal=causal, dtype=torch.bfloat16), hint=SHORT_SUMS)

    def test_sums_of_half_precision_are_kept_in_float32(self, rng):
        case = Case(rng, n_queries=8, n_keys=512, d=8, dtype=torch.bfloat16)
        case.V = case.V.abs() + 1
        for name, got in zip("OL", forward(case, 8, 4), strict=True):
            case.check(name, got, hint=SHORT_SUMS)

    @pytest.mark.parametrize("causal", [False, True])
    def test_float64_is_computed_in_float64(self, rng, causal):
        case = Case(rng, n=40, d=8, causal=causal, dtype=torch.float64)
        assert_forward(case, 16, 16, hint="a step is done in float32, or a small number was added to the sums")

    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, n=30, d=8, batch=(2, 3))
        want = case.want
        case.Q, case.K, case.V = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in case.inputs)
        case.want = want
        assert_forward(case, 16, 16)

    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=20, causal=True)
        before = [x.clone() for x in case.inputs]
        forward(case, 8, 8)
        for name, now, old in zip("QKV", case.inputs, before, strict=True):
            assert_unchanged(name, now, old)

    def test_uninitialised_memory_is_written_over(self, rng):
        for sizes in ({"n_queries": 37, "n_keys": 21}, {"n_queries": 21, "n_keys": 37, "causal": True}):
            case = Case(rng, d=8, d_v=5, batch=(2,), **sizes)
            results = call_on_nan("flash_forward", *arguments("flash_forward", case, 16, 8))
            for name, result in zip("OL", assert_results("flash_forward", results), strict=True):
                case.check(name, result, nan_hint=NAN_FROM_EMPTY)

    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        O, L = flash_forward(case.Q, case.K[:, :0], case.V[:, :0])
        require(O.shape == (2, 5, 16) and bool((O == 0).all()), "without keys (N_k = 0) O must be 0")
        require(L.shape == (2, 5) and bool(L.isneginf().all()), "without keys (N_k = 0) L must be −inf")

    def test_shapes_that_do_not_fit(self, rng):
        case = Case(rng, n_queries=6, n_keys=5, d=8)
        narrow, few = case.K[:, :7], case.V[:4]
        wrong = [
            ((case.Q, narrow, case.V), "when Q and K differ in d", ("(6, 8)", "(5, 7)")),
            ((case.Q, case.K, few), "when K and V differ in N_k", ("(5, 8)", "(4, 8)")),
        ]
        for inputs, when, shapes in wrong:
            assert_raises(ValueError, lambda inputs=inputs: flash_forward(*inputs), when=when, mentions=shapes)
        for name in ("block_q", "block_k"):
            call = lambda name=name: flash_forward(*case.inputs, **{name: 0})  # noqa: E731
            assert_raises(ValueError, call, when=f"for {name}=0", mentions=(name,))

    @pytest.mark.parametrize("causal", [False, True])
    def test_memory_grows_with_n_only(self, rng, causal):
        case = Case(rng, n=768, causal=causal)
        measured = Measured("flash_forward", case, 64, 64)
        assert_small("flash_forward", measured, largest=4 * 64 * 64 + 768 * 16, peak=16 * 64 * 64 + 6 * 768 * 16)
        measured.check()

    @pytest.mark.parametrize(("block_q", "block_k"), [(16, 8), (8, 64), (64, 8)])
    def test_blocks_are_those_asked_for(self, rng, block_q, block_k):
        case = Case(rng, n=64, d=2)
        measured = Measured("flash_forward", case, block_q, block_k)
        name = f"flash_forward with blocks of {block_q} × {block_k}"
        assert_small(name, measured, largest=512, peak=6 * 512, hint="the tiles are not those asked for")
        measured.check()

    def test_every_score_is_computed_once(self, rng):
        case = Case(rng, n=256, d=16, d_v=8)
        measured = Measured("flash_forward", case, 64, 64)
        assert_products_seen("flash_forward", measured)
        once = 2 * 256 * 256 * (16 + 8)
        hint = "two products a tile, each done once: Q_i times K_j transposed, and P times V_j. One pass, no second"
        assert_at_most("the work of the matrix products", measured.flops, int(1.2 * once), unit="FLOPs", hint=hint)
        measured.check()

    @pytest.mark.parametrize(("block_q", "block_k"), [(32, 32), (16, 32), (32, 16)])
    def test_causal_leaves_tiles_out(self, rng, block_q, block_k):
        assert_tiles_skipped("flash_forward", rng, block_q, block_k)


class TestFlashBackward:
    def test_worked_example(self):
        Q, K, V = (torch.tensor(x) for x in ([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]]))
        O, L, dO = torch.tensor([[0.669762]]), torch.tensor([1.107940]), torch.tensor([[1.0]])
        got = assert_tuple("flash_backward's result", flash_backward(Q, K, V, O, L, dO), GRADIENTS)
        wanted = ([[0.1564, -0.1564]], [[0.1564, 0], [-0.1564, 0]], [[0.6698], [0.3302]])
        for name, value, want in zip(GRADIENTS, got, wanted, strict=True):
            off = (value - torch.tensor(want)).abs().max()
            require(off < 1e-4, f"{name} is {[[round(x, 4) for x in row] for row in value.tolist()]}, expected {want}")

    @pytest.mark.parametrize("n", [2, 63, 129])
    def test_odd_lengths(self, rng, n):
        assert_backward(Case(rng, n=n, d=17))

    def test_more_keys_than_queries(self, rng):
        assert_backward(Case(rng, n_queries=5, n_keys=129), hint="N_q is taken for N_k somewhere")

    def test_more_queries_than_keys(self, rng):
        assert_backward(Case(rng, n_queries=129, n_keys=7), hint="N_q is taken for N_k somewhere")

    def test_values_of_another_width(self, rng):
        assert_backward(Case(rng, n=70, d=24, d_v=5), hint="d is taken for d_v somewhere")

    def test_everything_as_wide_as_long(self, rng):
        case = Case(rng, n=16, d=16, batch=(16,))
        assert_backward(case, hint="here every axis has 16 elements: an operation along a wrong one does not crash")

    @pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
    def test_blocks_that_do_not_divide(self, rng, block_q, block_k):
        assert_backward(
            Case(rng, n_queries=65, n_keys=59, d=8),
            block_q,
            block_k,
            hint="each tile adds to dQ in the rows of its queries, and to dK and dV in the rows of its keys",
        )

    def test_lengths_drawn_at_random(self, rng):
        for _ in range(4):
            n_queries, n_keys, d, d_v, block_q, block_k = (int(x) for x in rng.integers(2, 40, 6))
            case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, causal=bool(rng.integers(2)))
            assert_backward(case, block_q, block_k)

    def test_batch(self, rng):
        assert_backward(Case(rng, n_queries=33, n_keys=40, batch=(3,)), 16, 16)

    def test_batch_and_heads(self, rng):
        assert_backward(Case(rng, n_queries=20, n_keys=13, d=8, batch=(2, 3)), 8, 4)

    @pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
    def test_causal(self, rng, block_q, block_k):
        assert_backward(Case(rng, n=65, d=8, causal=True), block_q, block_k)

    @pytest.mark.parametrize(("n_queries", "n_keys"), [(20, 65), (65, 20)])
    def test_causal_counts_from_the_first_key(self, rng, n_queries, n_keys):
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, causal=True, batch=(2,))
        assert_backward(case, 8, 16, hint="query i sees the keys j ≤ i, whatever the lengths")

    def test_keys_that_no_query_sees(self, rng):
        case = Case(rng, n_queries=20, n_keys=65, d=8, causal=True)
        result = call_on_nan("flash_backward", *arguments("flash_backward", case, 8, 16))
        _, dK, dV = assert_results("flash_backward", result)
        for name, gradient in (("dK", dK), ("dV", dV)):
            unseen = gradient[20:]
            require(
                bool((unseen == 0).all()),
                f"{name} is {float(unseen.abs().nan_to_num(math.inf).max()):.3g} for keys that come after every query, "
                "expected 0\nUsual cause: hidden keys get a weight, or the gradient started from `empty`",
            )

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("logit_scale", [30, 1000])
    def test_large_logits(self, rng, logit_scale, causal):
        case = Case(rng, n=66, causal=causal, logit_scale=logit_scale)
        cause = "exp overflows: L is the log-sum-exp, and exp(S − L) is never above 1; not exp(S) / exp(L)"
        assert_backward(case, 16, 16, hint=cause, nan_hint=cause)

    @pytest.mark.parametrize("logit_scale", [1e7, 1e10])
    def test_hidden_keys_do_not_leak(self, rng, logit_scale):
        case = Case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = logit_scale, -1  # every score is far below 0, by nearly the same amount
        for name, got in zip(GRADIENTS, backward(case, 8, 8), strict=True):
            want = case.want[name]
            off = float(np.nan_to_num(np.abs(numbers(got) - want), nan=np.inf).max())
            require(
                off <= 1e-3 * np.abs(want).max(),
                f"{name} is off by {off:.3g} where all scores are about {-logit_scale / math.sqrt(8):.0e}\n"
                "Usual cause: a large negative number stands for −inf; beside scores that are lower still it is large",
            )

    def test_weights_come_from_the_given_l(self, rng):
        case = Case(rng, n=40, d=8)
        O, L = case.forward_result
        dV = flash_backward(*case.inputs, O, L + math.log(2), case.dO, False, 16, 16)[2]
        half = gradients(*case.inputs, case.dO).dV / 2
        off = float((dV - half).abs().max())
        require(
            off < 1e-4,
            f"with log 2 added to L every weight exp(S − L), and so dV, must be half as large; dV is off by {off:.3g}\n"
            "Usual cause: the softmax is computed once more from its start, in place of P = exp(S − L)",
        )

    def test_d_comes_from_the_given_o(self, rng):
        case = Case(rng, n=40, d=8)
        O, L = case.forward_result
        dQ = [flash_backward(*case.inputs, given, L, case.dO, False, 16, 16)[0] for given in (O, torch.zeros_like(O))]
        P = attention(*case.inputs).weights
        D = (case.dO.double() * O.double()).sum(-1, keepdim=True)
        change = P * D @ case.K.double() * 8**-0.5
        off = float((dQ[1] - dQ[0] - change).abs().max())
        require(
            off < 1e-4,
            f"with 0 given for O, D is 0 and dQ changes by P ∘ D K/√d; that change is off by {off:.3g}\n"
            "Usual cause: D is not taken from dO and O (one number a row), or O is computed once more",
        )

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtypes(self, rng, dtype):
        case = Case(rng, n=20, dtype=dtype)
        for name, gradient in zip(GRADIENTS, backward(case, 8, 8), strict=True):
            assert_dtype(name, gradient, dtype)

    @pytest.mark.parametrize("causal", [False, True])
    def test_bfloat16(self, rng, causal):
        assert_backward(Case(rng, n=129, d=32, causal=causal, dtype=torch.bfloat16), hint=SHORT_SUMS)

    @pytest.mark.parametrize(("n_queries", "n_keys", "blocks"), [(8, 512, (8, 4)), (512, 8, (4, 8))])
    def test_sums_of_half_precision_are_kept_in_float32(self, rng, n_queries, n_keys, blocks):
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=8, dtype=torch.bfloat16)
        case.Q, case.K, case.dO = (x.abs() + 1 for x in (case.Q, case.K, case.dO))
        case.Q /= 8
        case.V[: n_keys // 2] += 4  # so that dQ's sum first grows, then shrinks: what it lost on the way stays lost
        for name, got in zip(GRADIENTS, backward(case, *blocks), strict=True):
            case.check(name, got, hint=SHORT_SUMS)

    @pytest.mark.parametrize("causal", [False, True])
    def test_float64_is_computed_in_float64(self, rng, causal):
        case = Case(rng, n=40, d=8, causal=causal, dtype=torch.float64)
        assert_backward(case, 16, 16, hint="a step is done in float32")

    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, n=30, d=8, batch=(2, 3))
        want = case.want
        for name in ("Q", "K", "V", "dO"):
            setattr(case, name, getattr(case, name).transpose(1, 2).contiguous().transpose(1, 2))
        case.want = want
        assert_backward(case, 16, 16)

    def test_gradient_of_a_sum(self, rng):
        case = Case(rng, n=30, d=8, batch=(2,))
        case.dO = torch.ones(()).expand(2, 30, 8)
        assert_backward(case, 16, 16, hint="dO of O.sum() is one number, expanded: a view with strides of 0")

    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=20, causal=True)
        given = dict(zip(("Q", "K", "V", "O", "L", "dO"), (*case.inputs, *case.forward_result, case.dO), strict=True))
        before = {name: x.clone() for name, x in given.items()}
        flash_backward(*given.values(), True, 8, 8)
        for name, now in given.items():
            assert_unchanged(name, now, before[name])

    def test_uninitialised_memory_is_written_over(self, rng):
        case = Case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,))
        results = call_on_nan("flash_backward", *arguments("flash_backward", case, 16, 8))
        for name, result in zip(GRADIENTS, assert_results("flash_backward", results), strict=True):
            case.check(name, result, nan_hint=NAN_FROM_EMPTY)

    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        empty = [x[:, :0] for x in (case.K, case.V)]
        L = torch.full((2, 5), -math.inf)
        dQ, dK, dV = flash_backward(case.Q, *empty, torch.zeros(2, 5, 16), L, case.dO)
        require(dQ.shape == (2, 5, 16) and bool((dQ == 0).all()), "without keys (N_k = 0) dQ must be 0")
        require(dK.shape == dV.shape == (2, 0, 16), f"dK is {tuple(dK.shape)}, dV {tuple(dV.shape)}, K (2, 0, 16)")

    def test_shapes_that_do_not_fit(self, rng):
        case = Case(rng, n_queries=6, n_keys=5, d=8)
        rest = (*case.forward_result, case.dO)
        narrow, few = case.K[:, :7], case.V[:4]
        wrong = [
            ((case.Q, narrow, case.V), "when Q and K differ in d", ("(6, 8)", "(5, 7)")),
            ((case.Q, case.K, few), "when K and V differ in N_k", ("(5, 8)", "(4, 8)")),
        ]
        for inputs, when, shapes in wrong:
            call = lambda inputs=inputs: flash_backward(*inputs, *rest)  # noqa: E731
            assert_raises(ValueError, call, when=when, mentions=shapes)
        for name in ("block_q", "block_k"):
            call = lambda name=name: flash_backward(*case.inputs, *rest, **{name: 0})  # noqa: E731
            assert_raises(ValueError, call, when=f"for {name}=0", mentions=(name,))

    @pytest.mark.parametrize("causal", [False, True])
    def test_memory_grows_with_n_only(self, rng, causal):
        case = Case(rng, n=768, causal=causal)
        measured = Measured("flash_backward", case, 64, 64)
        assert_small("flash_backward", measured, largest=4 * 64 * 64 + 768 * 17, peak=24 * 64 * 64 + 12 * 768 * 16)
        measured.check()

    @pytest.mark.parametrize(("block_q", "block_k"), [(16, 8), (8, 64), (64, 8)])
    def test_blocks_are_those_asked_for(self, rng, block_q, block_k):
        case = Case(rng, n=64, d=2)
        measured = Measured("flash_backward", case, block_q, block_k)
        name = f"flash_backward with blocks of {block_q} × {block_k}"
        assert_small(name, measured, largest=512, peak=8 * 512, hint="the tiles are not those asked for")
        measured.check()

    def test_work_of_a_tile(self, rng):
        case = Case(rng, n=256, d=16, d_v=8)
        measured = Measured("flash_backward", case, 64, 64)
        assert_products_seen("flash_backward", measured)
        two_loops = 2 * 256 * 256 * (4 * 16 + 3 * 8)
        hint = "five products a tile; seven where dQ has a loop of its own. P is exp(S − L): nothing else is recomputed"
        assert_at_most("the work of the matrix products", measured.flops, int(1.1 * two_loops), unit="FLOPs", hint=hint)
        measured.check()

    @pytest.mark.parametrize(("block_q", "block_k"), [(32, 32), (16, 32), (32, 16)])
    def test_causal_leaves_tiles_out(self, rng, block_q, block_k):
        assert_tiles_skipped("flash_backward", rng, block_q, block_k)


def apply(case, *needs_gradient):
    """The student's output, and the inputs given, which need gradients as told (all, if nothing is told)."""
    needs = needs_gradient or (True, True, True)
    inputs = [x.detach().requires_grad_(needed) for x, needed in zip(case.inputs, needs, strict=True)]
    O = FlashAttention.apply(*inputs, True) if case.causal else FlashAttention.apply(*inputs)
    assert_output_alone(O)
    return O, inputs


def assert_output_alone(O):
    """Fail unless `apply` returned one tensor."""
    require(
        isinstance(O, torch.Tensor),
        f"apply returned a {type(O).__name__}, expected O alone: what only backward needs goes into ctx",
    )


def assert_step(case, hint="", nan_hint=""):
    """One training step through autograd, compared with the reference."""
    O, inputs = apply(case)
    assert_output(case, O, hint=hint, nan_hint=nan_hint)
    loss(O, case).backward()
    assert_gradients(case, grads(inputs), hint=hint, nan_hint=nan_hint)


def assert_output(case, O, hint="", nan_hint=""):
    """What `apply` returned, compared with the reference."""
    assert_dtype("O", O, case.Q.dtype)
    case.check(
        "O", O, forward_suspects(case, case.Q.shape[-2] or 1, case.K.shape[-2] or 1), hint=hint, nan_hint=nan_hint
    )


def grads(inputs):
    """The gradients that autograd left at Q, K and V."""
    return assert_arrived([x.grad for x in inputs])


def assert_arrived(gradients):
    """Fail unless there are dQ, dK and dV; returns them with their names."""
    found = dict(zip(GRADIENTS, gradients, strict=True))
    for name, gradient in found.items():
        require(gradient is not None, f"{name} never arrived: backward returned None in its place")
    return found


def loss(O, case):
    """A number whose gradient with respect to O is dO. (`O.backward(dO)` imports half of torch first.)"""
    return (O * case.dO).sum()


class MeasuredStep:
    """What a training step made, and what each of its passes allocated and computed."""

    def __init__(self, case):
        self.case = case
        self.O, gradients, passes = measured_step(*case.inputs, case.dO, case.causal)
        assert_output_alone(self.O)
        self.gradients = assert_arrived(gradients)
        self.passes = {name: SimpleNamespace(**counts) for name, counts in passes.items()}

    def check(self):
        """Compare what was made with the reference: what is right elsewhere must be right when it is measured."""
        for name, value in {"O": self.O, **self.gradients}.items():
            self.case.check(name, value)


@cache
def long_step(causal):
    """A step with 1024 tokens, measured once for several tests."""
    return MeasuredStep(Case(np.random.default_rng(5), n=1024, causal=causal))


class TestFlashAttention:
    def test_worked_example(self):
        Q, K, V = (torch.tensor(x) for x in ([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]]))
        O = FlashAttention.apply(Q, K, V)
        assert_type("apply's result", O, torch.Tensor, "the tensor O alone")
        require(abs(float(O) - 0.669762) < 1e-5, f"O is {O.tolist()}, expected [[0.6698]]")

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("n", [63, 129])
    def test_odd_lengths(self, rng, n, causal):
        assert_step(Case(rng, n=n, d=17, causal=causal))

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 200), (200, 70)])
    def test_other_lengths_and_widths(self, rng, n_queries, n_keys, causal):
        assert_step(Case(rng, n_queries=n_queries, n_keys=n_keys, d=12, d_v=7, causal=causal))

    @pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 2)])
    def test_leading_dimensions(self, rng, batch):
        assert_step(Case(rng, n_queries=30, n_keys=21, d=8, batch=batch, causal=True))

    def test_is_causal_may_be_left_out(self, rng):
        case = Case(rng, n=40, d=8)
        left_out, said = FlashAttention.apply(*case.inputs), FlashAttention.apply(*case.inputs, False)
        case.check("O", left_out)
        require(bool(torch.equal(left_out, said)), "is_causal left out must mean False")

    @pytest.mark.parametrize("causal", [False, True])
    def test_large_logits(self, rng, causal):
        cause = "exp overflows: no score may enter exp without the row's maximum, or L, taken from it"
        assert_step(Case(rng, n=70, logit_scale=300, causal=causal), hint=cause, nan_hint=cause)

    @pytest.mark.parametrize("causal", [False, True])
    def test_bfloat16(self, rng, causal):
        assert_step(Case(rng, n=200, d=32, causal=causal, dtype=torch.bfloat16, batch=(2,)), hint=SHORT_SUMS)

    @pytest.mark.seconds(60)  # gradcheck's first call imports sympy
    def test_gradcheck(self, rng):
        for causal in (False, True):
            case = Case(rng, n_queries=4, n_keys=6, d=3, d_v=2, causal=causal, dtype=torch.float64, batch=(2,))
            assert_step(case, hint="a step is done in float32")
            right = torch.autograd.gradcheck(
                lambda *x, causal=causal: FlashAttention.apply(*x, causal),
                [x.requires_grad_() for x in case.inputs],
                raise_exception=False,
                check_undefined_grad=False,
            )
            require(right, f"torch.autograd.gradcheck, {causal=}: the gradients are not those of the output")

    def test_one_input_in_three_places(self, rng):
        case = Case(rng, n=40, d=8)
        case.K = case.V = case.Q
        X = case.Q.clone().requires_grad_()
        loss(FlashAttention.apply(X, X, X, False), case).backward()
        case.want["dX"], case.plain["dX"] = (
            sum(case.want[name] for name in GRADIENTS),
            [sum(parts) for parts in zip(*(case.plain[name] for name in GRADIENTS), strict=True)],
        )
        alone = {f"only {name} arrives": lambda name=name: case.want[name] for name in GRADIENTS}
        case.check("dX", X.grad, alone, hint="X is query, key and value: its gradient is dQ + dK + dV")

    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, n=70, d=8, batch=(2, 3))
        want = case.want
        for name in ("Q", "K", "V", "dO"):
            setattr(case, name, getattr(case, name).transpose(1, 2).contiguous().transpose(1, 2))
        case.want = want
        assert_step(case, hint="a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent")

    def test_gradient_of_a_sum(self, rng):
        case = Case(rng, n=70, d=8, batch=(2,))
        case.dO = torch.ones_like(case.dO)
        O, inputs = apply(case)
        O.sum().backward()
        assert_gradients(case, grads(inputs), hint="dO of O.sum() is one number, expanded: a view with strides of 0")

    @pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True),
                                       (False, True, True), (True, False, True)])  # fmt: skip
    def test_inputs_that_need_no_gradient(self, rng, needs):
        case = Case(rng, n=40, d=8, causal=True)
        O, inputs = apply(case, *needs)
        loss(O, case).backward()
        for name, x, needed in zip(GRADIENTS, inputs, needs, strict=True):
            if needed:
                require(
                    x.grad is not None,
                    f"{name} never arrived, though its input needs a gradient\nbackward returns one value for each "
                    "argument of forward, with None in the place of those not needed",
                )
                assert_gradients(case, {name: x.grad}, hint="each gradient must stand in its own argument's place")
            else:
                require(x.grad is None, f"{name} arrived, though its input needs no gradient")

    def test_without_any_gradient(self, rng):
        case = Case(rng, n=40, d=8)
        O, _ = apply(case, False, False, False)
        require(not O.requires_grad, "no input needs a gradient, and yet O does")
        with torch.no_grad():
            O, _ = apply(case)
        require(not O.requires_grad, "under torch.no_grad() O must not need a gradient")
        case.check("O", O)

    def test_backward_twice(self, rng):
        case = Case(rng, n=40, d=8, causal=True)
        O, inputs = apply(case)
        loss(O, case).backward(retain_graph=True)
        first = {name: gradient.clone() for name, gradient in grads(inputs).items()}
        loss(O, case).backward()
        for name, twice in grads(inputs).items():
            off = float((twice - 2 * first[name]).abs().max())
            require(
                off <= 1e-6 * float(twice.abs().max()),
                f"{name} of a second backward pass differs from the first's by {off:.3g}\n"
                "Usual cause: backward changes a saved tensor in place",
            )

    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=40, d=8)
        before = [x.clone() for x in (*case.inputs, case.dO)]
        output, O_now = output_around_backward(*case.inputs, case.dO, case.causal)
        assert_output_alone(output)
        for name, now, old in zip(("Q", "K", "V", "dO"), (*case.inputs, case.dO), before, strict=True):
            assert_unchanged(name, now, old)
        assert_unchanged("O", O_now, output)

    def test_uninitialised_memory_is_written_over(self, rng):
        case = Case(rng, n_queries=21, n_keys=37, d=8, d_v=5, batch=(2,), causal=True)
        O, gradients = step_on_nan(*case.inputs, case.dO, case.causal)
        assert_output_alone(O)
        assert_output(case, O, nan_hint=NAN_FROM_EMPTY)
        assert_gradients(case, assert_arrived(gradients), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_saved_are_q_k_v_o_and_one_l(self, rng, dtype):
        case = Case(rng, n_queries=70, n_keys=80, d=8, d_v=6, batch=(2, 3), dtype=dtype)
        O, saved = saved_by_apply(*case.inputs)
        assert_output_alone(O)
        names = {x for x in saved if isinstance(x, str)}
        for name in "QKVO":
            require(
                name in names,
                f"{name} is not saved for backward, which cannot do without it\n"
                "Usual cause: it is kept elsewhere or computed anew; ctx.save_for_backward takes Q, K, V, O and L",
            )
        others = [x for x in saved if not isinstance(x, str)]
        shape = (2, 3, 70)
        found = ", ".join(f"{_short(x.dtype)} {tuple(x.shape)}" for x in others) or "nothing"
        require(
            len(others) == 1 and others[0].shape[-1] == shape[-1] and others[0].numel() == math.prod(shape),
            f"saved besides Q, K, V and O: {found}; expected L alone, {_short(case.precise)} {shape}\n"
            + _why_too_much(case, others, shape),
        )
        (L,) = others
        require(
            L.dtype == case.precise, f"the saved L is {_short(L.dtype)}, expected {_short(case.precise)}: one number "
            "stands for a whole row of weights"
        )  # fmt: skip
        case.check("L", L.reshape(shape), lse_suspects(case))
        case.check("O", O)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_forward_leaves_nothing_else_behind(self, rng, dtype):
        case = Case(rng, n_queries=256, n_keys=192, d=8, batch=(2,), dtype=dtype)
        kept = kept_by_apply(*case.inputs)
        hint = "between the passes only L may take memory: is a tensor kept as an attribute of ctx, or a copy saved?"
        assert_at_most("what the forward pass keeps, besides Q, K, V and O,", kept, 2 * 256 * 4, hint=hint)

    def test_memory_goes_when_the_output_goes(self, rng):
        case = Case(rng, n=64)
        left = left_by_apply(*case.inputs)
        hint = "an output kept as an attribute of ctx keeps itself alive until Python's cycle collector comes by"
        assert_at_most("what is still alive when the output is gone", left, 0, hint=hint)

    @pytest.mark.parametrize("causal", [False, True])
    def test_no_pass_makes_an_n_by_n_tensor(self, causal):
        step = long_step(causal)
        for name, measured in step.passes.items():
            assert_small(name, measured, largest=LARGEST_TILE, peak=1024 * 1024 // 2)
        step.check()

    @pytest.mark.parametrize(("n_queries", "n_keys"), [(128, 2048), (2048, 128)])
    def test_tiles_do_not_grow_with_n(self, rng, n_queries, n_keys):
        largest, steps = {}, []
        for shrink in (4, 1):
            case = Case(rng, d=2, n_queries=max(128, n_queries // shrink), n_keys=max(128, n_keys // shrink))
            steps.append(MeasuredStep(case))
            for name, one in steps[-1].passes.items():
                assert_products_seen(name, one)
                largest.setdefault(name, []).append(one.largest_bytes)
        for name, (short, long) in largest.items():
            side = "keys" if n_keys > n_queries else "queries"
            hint = f"a tile spans all {side} at once: cut {side} into blocks too, in both passes"
            assert_at_most(f"with 4 times the {side}, the largest tensor of {name}", long,
                           max(int(1.1 * short), 4 * 2048 * 4), hint=hint)  # fmt: skip
        for step in steps:
            step.check()

    def test_causal_leaves_tiles_out_in_both_passes(self):
        full, half = long_step(False).passes, long_step(True).passes
        for name in full:
            assert_products_seen(name, full[name])
            share = half[name].flops / full[name].flops
            require(
                share <= 0.78,
                f"with is_causal {name} does {share:.0%} of the full work, though half of the scores are hidden\n"
                "Usual cause: tiles that lie above the diagonal are computed and then masked: leave them out",
            )
        for causal in (False, True):
            long_step(causal).check()

    @pytest.mark.gpu
    @pytest.mark.parametrize("causal", [False, True])
    def test_bfloat16_on_cuda(self, rng, causal):
        case = Case(rng, n=500, d=64, causal=causal, dtype=torch.bfloat16, batch=(2, 2), device="cuda")
        O, inputs = apply(case)
        case.check("O", O, hint=SHORT_SUMS)
        loss(O, case).backward()
        for name, gradient in grads(inputs).items():
            case.check(name, gradient, hint=SHORT_SUMS)

    @pytest.mark.gpu
    def test_memory_on_cuda(self, rng):
        case = Case(rng, n=8192, d=64, dtype=torch.bfloat16, device="cuda")
        inputs = [x.requires_grad_() for x in case.inputs]
        loss(FlashAttention.apply(*inputs, True), case).backward()  # once outside the count: workspaces of libraries
        for x in inputs:
            x.grad = None
        with CudaMeter("cuda") as meter:
            loss(FlashAttention.apply(*inputs, True), case).backward()
        assert_at_most(
            "the peak memory of a training step on CUDA", meter.peak_bytes, 8192 * 8192 // 2, hint=WHOLE_MATRIX
        )


def _short(dtype):
    return str(dtype).removeprefix("torch.")


def _why_too_much(case, others, shape):
    """The usual reason for saving something else than L alone."""
    matrix = (case.Q.shape[-2], case.K.shape[-2])
    if not others:
        return "backward gets P back from S in one step, P = exp(S − L): it needs L, one number a query"
    if any(tuple(x.shape[-2:]) == matrix for x in others):
        return "that is the N_q × N_k matrix, or its mask: backward computes P once more, tile by tile, from Q, K and L"
    if any(tuple(x.shape) == (*shape, 1) for x in others):
        return "L has the shape (..., N_q), without a last axis of 1"
    if sum(tuple(x.shape) == shape for x in others) > 1:
        return "m and l need not both be kept: L = m + log l says all that backward needs"
    if sum(x.numel() for x in others) >= math.prod(shape[:-1]) * math.prod(matrix):
        return "together they hold the whole N_q × N_k matrix: nothing of a tile may be kept"
    return "copies cost bytes until backward has run: save what was given and what is returned"
