"""Lab 05: FlashAttention's results, and the memory and the work it takes to get them."""

import functools
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from flash_attention import FlashAttention, flash_backward, flash_forward

from labkit.meters.tensors import CudaMeter
from labkit.testing.attention.tensor_cases import Case, numbers
from labkit.testing.attention.tensor_reference import attention, gradients, gradients_with_penalty
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_raises,
    assert_unchanged,
    require,
    require_at_most,
)
from labkit.testing.contracts.attention import SHORT_SUMS, Memory, Numbers, Refusals, Shapes
from labkit.testing.unchanged import left_alone
from labkit.testing.work import (
    WHOLE_MATRIX,
    assert_largest_stays,
    assert_small,
    assert_tile_sizes,
    entries,
    entries_seen,
)

from .probes import (
    FUNCTIONS,
    call_on_nan,
    gradient_of_one_input,
    kept_by_apply,
    output_of_apply,
    saved_by_apply,
    step_of_apply,
)
from .support import (
    GRADIENTS,
    ByStep,
    apply,
    arguments,
    arrived,
    assert_large,
    assert_output,
    assert_right,
    assert_saved,
    large_backward,
    large_forward,
    large_inputs,
    long_step,
    measure,
    measure_step,
    named,
    run,
    signed_case,
    tiles,
    worked_case,
)

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
half_or_not = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])

SUM_OF_O = "dO of O.sum() is one number, expanded: a view with strides of 0"


class EveryTask(Memory, Numbers, Shapes):
    """What is asked of both passes, and of both in one training step."""

    task: ClassVar[str]

    def case(self, rng, dtype="float32", **sizes):
        return Case(rng, dtype=getattr(torch, dtype), **sizes)

    def worked_case(self):
        return worked_case

    def check(self, case, *blocks, hint="", nan_hint=""):
        blocks = blocks or (16, 24)
        assert_right(case, run(self.task, case, *blocks), *blocks, hint=hint, nan_hint=nan_hint)


class EitherPass(Refusals, EveryTask):
    """What is asked of both passes, which take block sizes."""

    def arguments(self, case):
        return arguments(self.task, case)

    def call(self, *tensors, **options):
        return FUNCTIONS[self.task](*tensors, **options)

    def check_on_nan(self, case, hint="", nan_hint=""):
        result = call_on_nan(self.task, *arguments(self.task, case).values(), case.causal, 16, 8)
        assert_right(case, named(self.task, result), 16, 8, hint=hint, nan_hint=nan_hint)

    @causal_or_not
    @pytest.mark.parametrize(
        ("block_q", "block_k"), [(64, 64), (16, 24), (64, 32), (7, 200), (200, 7), (5, 1)], ids=lambda size: str(size)
    )
    def test_blocks_that_do_not_divide(self, rng, block_q, block_k, causal):
        hint = "the last block may be smaller"
        if self.task == "flash_backward":
            hint = "each tile adds to dQ in the rows of its queries, and to dK and dV in the rows of its keys"
        self.check(Case(rng, n_queries=65, n_keys=59, d=8, causal=causal), block_q, block_k, hint=hint)

    @pytest.mark.parametrize("logit_scale", [1e3, 1e7, 1e10])
    @robust
    def test_hidden_keys_do_not_leak(self, rng, logit_scale):
        """Every score is far below 0, by nearly the same amount."""
        case = Case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = logit_scale, -1
        for name, got in run(self.task, case, 8, 8).items():
            want = case.want[name]
            off = float(np.nan_to_num(np.abs(numbers(got) - want), nan=np.inf).max())
            message = f"{name} is off by {off:.3g} where all scores are about {-logit_scale / math.sqrt(8):.0e}"
            cause = "a large negative number stands for −inf; beside scores that are lower still it is large"
            largest = 1e-3 * float(np.abs(want).max())
            require_at_most(f"{name}'s error", off, largest, message, kind="tolerance", hint=cause)

    @refuses
    def test_block_sizes_below_one(self, rng):
        given = arguments(self.task, Case(rng, n=6, d=8)).values()
        for name, size in itertools.product(("block_q", "block_k"), (0, -1)):
            refused = functools.partial(self.call, *given, **{name: size})
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


class TestFlashForward(EitherPass):
    task = "flash_forward"

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
        Q, K, V, _ = large_inputs()
        assert_large("OL", outside(flash_forward, Q, K, V, False, 512, 512), large_forward(Q, K, V))


class TestFlashBackward(EitherPass):
    task = "flash_backward"

    @robust
    def test_keys_that_no_query_sees(self, rng):
        case = Case(rng, n_queries=20, n_keys=65, d=8, causal=True)
        given = arguments(self.task, case).values()
        result = named(self.task, call_on_nan(self.task, *given, case.causal, 8, 16))
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
        cause = "the softmax is computed once more from its start, instead of P = exp(S − L)"
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
        self.check(case, 16, 16, hint=SUM_OF_O)

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
        Q, K, V, dO = large_inputs()
        O, L = large_forward(Q, K, V)
        got = outside(flash_backward, Q, K, V, O, L, dO, False, 512, 512)
        assert_large(GRADIENTS, got, large_backward(Q, K, V, O, L, dO))


class TestFlashAttention(EveryTask):
    def check(self, case, hint="", nan_hint="", **options):
        with left_alone("QKV", case.inputs):
            O, _, gradients = step_of_apply("step", *case.inputs, case.dO, case.causal, **options)
        assert_output(case, O, hint=hint, nan_hint=nan_hint)
        assert_right(case, arrived(gradients), hint=hint, nan_hint=nan_hint)

    def check_on_nan(self, case, hint="", nan_hint=""):
        self.check(case, hint=hint, nan_hint=nan_hint, on_nan=True)

    def test_is_causal_may_be_left_out(self, rng):
        case = Case(rng, n=40, d=8)
        left_out, said = output_of_apply(*case.inputs), output_of_apply(*case.inputs, False)
        case.check("O", left_out)
        require(bool(torch.equal(left_out, said)), "is_causal left out must mean False")

    @pytest.mark.seconds(60)  # gradcheck's first call imports sympy
    def test_gradcheck(self, rng):
        for causal in (False, True):
            case = Case(rng, n_queries=4, n_keys=6, d=3, d_v=2, causal=causal, dtype=torch.float64, batch=(2,))
            right = torch.autograd.gradcheck(
                lambda *x, causal=causal: ByStep.apply(
                    lambda *x: output_of_apply(*x, causal), lambda *x: step_of_apply("step", *x, causal)[2], *x
                ),
                [x.requires_grad_() for x in case.inputs],
                raise_exception=False,
                check_undefined_grad=False,
            )
            require(right, f"torch.autograd.gradcheck, {causal=}: the gradients are not those of the output")

    @robust
    def test_second_derivatives_are_right_or_refused(self, rng):
        case = Case(rng, n_queries=6, n_keys=9, d=4, d_v=3, dtype=torch.float64)
        second = step_of_apply("penalised_gradients", *case.inputs, case.dO)
        if isinstance(second, str):  # refused
            return
        want, alone = gradients_with_penalty(*case.inputs, case.dO)
        hint = "backward is differentiated too, but L is a constant there: refuse, where torch.is_grad_enabled()"
        for name, got, exact, first in zip(GRADIENTS, second, map(numbers, want), map(numbers, alone), strict=True):
            name, plain = f"{name} of a loss with a penalty on its own gradients", exact + 1e-9 * np.abs(exact).max()
            left_out = "the penalty is left out: backward's results come without a graph, and without an error"
            assert_close(name, got, exact, plain=plain, mistakes={left_out: first}, hint=hint)

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
        assert_right(case, arrived(gradients), hint=SUM_OF_O)

    @pytest.mark.parametrize("needed_inputs", ["Q", "K", "V", "KV", "QV"])
    def test_inputs_that_need_no_gradient(self, rng, needed_inputs):
        case = Case(rng, n=40, d=8, causal=True)
        needs = [name in needed_inputs for name in "QKV"]
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
            assert_output(case, output)
        assert_unchanged("O", O_now, output)

    @half_or_not
    @small
    def test_saved_are_q_k_v_o_and_one_l(self, rng, dtype):
        for batch in ((2, 3), ()):
            case = Case(rng, n_queries=70, n_keys=80, d=8, d_v=6, batch=batch, dtype=dtype)
            O, saved = saved_by_apply(*case.inputs)
            assert_output(case, O)
            assert_saved(case, saved)

    @half_or_not
    @small
    def test_forward_leaves_nothing_else_behind(self, rng, dtype):
        case = Case(rng, n_queries=256, n_keys=192, d=8, batch=(2,), dtype=dtype)
        (kept, O), _ = kept_by_apply(*case.inputs)
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
            assert_small(name, counts, largest=2**17, peak=1024 * 1024 // 2)

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
        (FlashAttention.apply(*inputs, True) * case.dO).sum().backward()  # once uncounted: workspaces of libraries
        for x in inputs:
            x.grad = None
        with CudaMeter("cuda") as meter:
            (FlashAttention.apply(*inputs, True) * case.dO).sum().backward()
        name = "the peak memory of a training step on CUDA"
        assert_at_most(name, meter.peak_bytes, 8192 * 8192 // 2, hint=WHOLE_MATRIX)
