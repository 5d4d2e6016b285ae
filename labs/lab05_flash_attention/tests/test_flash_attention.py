"""Lab 05: FlashAttention's results, and the memory and the work it takes to get them."""

import math

import numpy as np
import pytest
import torch
from flash_attention import FlashAttention, flash_backward, flash_forward

from labkit.meters.tensors import CudaMeter
from labkit.testing.attention.cases import numbers, tensor_case
from labkit.testing.attention.reference import gradients_with_penalty
from labkit.testing.attention.table import SHORT_SUMS, attention_cases, mismatched_shapes
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    Tolerance,
    assert_at_most,
    assert_close,
    assert_raises,
    assert_refused,
    assert_unchanged,
    require,
    require_at_most,
)
from labkit.testing.unchanged import report_mutation_first, unchanged
from labkit.testing.work import WHOLE_MATRIX, assert_largest_stays, assert_small, entries

from .probes import (
    call_on_nan,
    gradient_of_one_input,
    kept_by_apply,
    output_of_apply,
    saved_by_apply,
    step_of_apply,
    step_through,
)
from .support import (
    GRADIENTS,
    ByStep,
    apply,
    arrived,
    assert_backward,
    assert_causal_tiles_left_out,
    assert_forward,
    assert_gradients,
    assert_hidden_keys_do_not_leak,
    assert_large,
    assert_output,
    assert_saved,
    assert_tiles,
    large_backward,
    large_forward,
    large_inputs,
    long_step,
    measure,
    measure_step,
    signed_case,
    tiles,
    worked_case,
)

every_case = pytest.mark.parametrize("row", attention_cases("full", "causal"))
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
half_or_not = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
odd_blocks = pytest.mark.parametrize("blocks", [(64, 64), (16, 24), (64, 32), (7, 200), (200, 7), (5, 1)], ids=str)
few_blocks = pytest.mark.parametrize("blocks", [(32, 32), (16, 32), (32, 16)], ids=str)
narrow_blocks = pytest.mark.parametrize("blocks", [(16, 8), (8, 64), (64, 8)], ids=str)
bad_blocks = pytest.mark.parametrize("bad", [{"block_q": 0}, {"block_q": -1}, {"block_k": 0}, {"block_k": -1}], ids=str)

SUM_OF_O = "dO of O.sum() is one number, expanded: a view with strides of 0"


class TestFlashForward:
    @pytest.mark.basic
    def test_worked_example(self):
        measure("flash_forward", worked_case, 1, 1)

    @pytest.mark.basic
    @every_case
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)
        given = case.arguments
        with report_mutation_first(given):
            result = flash_forward(*given.values(), case.causal, 16, 24)
            assert_forward(case, result, 16, 24, hint=row.hint, nan_hint=row.nan_hint)

    @causal_or_not
    @odd_blocks
    def test_blocks_that_do_not_divide(self, rng, blocks, causal):
        case = tensor_case(rng, n_queries=65, n_keys=59, d=8, causal=causal)
        given = case.arguments
        with report_mutation_first(given):
            result = flash_forward(*given.values(), causal, *blocks)
            assert_forward(case, result, *blocks, hint="the last block may be smaller")

    @causal_or_not
    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng, causal):
        case = tensor_case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), causal=causal)
        result = call_on_nan("flash_forward", *case.inputs, causal, 16, 8)
        assert_forward(case, result, 16, 8, nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.parametrize("far", [1e3, 1e7, 1e10])
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        case = tensor_case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = far, -1  # every score is far below 0, by nearly the same amount
        assert_hidden_keys_do_not_leak(case, "OL", flash_forward(*case.inputs, True, 8, 8), far)

    @pytest.mark.robust
    def test_without_keys(self, rng):
        case = tensor_case(rng, n_queries=5, n_keys=1, batch=(2,))
        O, L = flash_forward(case.Q, case.K[:, :0], case.V[:, :0])
        require(O.shape == (2, 5, 16) and bool((O == 0).all()), "without keys (N_k = 0) O must be 0")
        require(L.shape == (2, 5) and bool(L.isneginf().all()), "without keys (N_k = 0) L must be −inf")

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = tensor_case(rng, n=20, d=8).arguments
        with unchanged(given):
            flash_forward(*given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        assert_refused(flash_forward, mismatched_shapes(*tensor_case(rng, n_queries=6, n_keys=5, d=8).inputs))

    @bad_blocks
    @pytest.mark.refuses
    def test_block_sizes_below_one(self, rng, bad):
        given = tensor_case(rng, n=6, d=8).inputs
        assert_raises(ValueError, lambda: flash_forward(*given, **bad), when=f"for {bad}", mentions=bad)

    @half_or_not
    @causal_or_not
    @pytest.mark.cost
    def test_memory_grows_with_n_only(self, rng, causal, dtype):
        case = tensor_case(rng, n=576, causal=causal, dtype=dtype)
        counts = measure("flash_forward", case, 64, 64)
        assert_small("flash_forward", counts, largest=4 * 64 * 64 + 576 * 17, peak=16 * 64 * 64 + 6 * 576 * 16)

    @narrow_blocks
    @pytest.mark.cost
    def test_blocks_are_those_asked_for(self, rng, blocks):
        assert_tiles("flash_forward", rng, blocks)

    @half_or_not
    @narrow_blocks
    @pytest.mark.cost
    def test_memory_of_blocks(self, rng, blocks, dtype):
        counts = measure("flash_forward", tensor_case(rng, n=128, d=2, dtype=dtype), *blocks)
        square = blocks[0] ** 2  # diag_embed(alpha), a square of block_q, may rescale the rows of a tile
        limits = {"largest": max(512, square), "peak": 8 * 512 + 2 * square}
        assert_small("flash_forward", counts, **limits, hint="the tiles are not those asked for")

    @few_blocks
    @pytest.mark.cost
    def test_causal_leaves_tiles_out(self, rng, blocks):
        assert_causal_tiles_left_out("flash_forward", rng, blocks)

    @pytest.mark.cost
    def test_every_score_is_computed_once(self, rng):
        n_computed = entries(tiles("flash_forward", signed_case(rng, 250, 120), 64, 32))
        hint = "Q_i times K_j transposed is computed once for each tile. One pass, no second"
        assert_at_most("the scores computed for N_q = 250, N_k = 120", n_computed, 250 * 120, unit="entries", hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=18)
    def test_no_matrix_seen_from_outside(self, memory_limit):
        Q, K, V, _ = large_inputs()
        assert_large("OL", memory_limit(flash_forward, Q, K, V, False, 512, 512), large_forward(*large_inputs()[:3]))


class TestFlashBackward:
    @pytest.mark.basic
    def test_worked_example(self):
        measure("flash_backward", worked_case, 1, 1)

    @pytest.mark.basic
    @every_case
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)
        given = case.backward_arguments
        with report_mutation_first(given):
            result = flash_backward(*given.values(), case.causal, 16, 24)
            assert_backward(case, result, 16, 24, hint=row.hint, nan_hint=row.nan_hint)

    @causal_or_not
    @odd_blocks
    def test_blocks_that_do_not_divide(self, rng, blocks, causal):
        case = tensor_case(rng, n_queries=65, n_keys=59, d=8, causal=causal)
        given = case.backward_arguments
        hint = "each tile adds to dQ in the rows of its queries, and to dK and dV in the rows of its keys"
        with report_mutation_first(given):
            result = flash_backward(*given.values(), causal, *blocks)
            assert_backward(case, result, *blocks, hint=hint)

    @causal_or_not
    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng, causal):
        case = tensor_case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), causal=causal)
        result = call_on_nan("flash_backward", *case.backward_arguments.values(), causal, 16, 8)
        assert_backward(case, result, 16, 8, nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.parametrize("far", [1e3, 1e7, 1e10])
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        case = tensor_case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = far, -1  # every score is far below 0, by nearly the same amount
        result = flash_backward(*case.backward_arguments.values(), True, 8, 8)
        assert_hidden_keys_do_not_leak(case, GRADIENTS, result, far)

    @pytest.mark.robust
    def test_keys_that_no_query_sees(self, rng):
        case = tensor_case(rng, n_queries=20, n_keys=65, d=8, causal=True)
        _, dK, dV = call_on_nan("flash_backward", *case.backward_arguments.values(), True, 8, 16)
        for name, gradient in (("dK", dK), ("dV", dV)):
            largest = float(gradient[20:].abs().nan_to_num(math.inf).max())
            message = f"{name} is {largest:.3g} for keys that come after every query, expected 0"
            cause = "hidden keys get a weight, or the gradient started from `empty`"
            require(largest == 0, f"{message}\nUsual cause: {cause}")

    def test_weights_come_from_the_given_l(self, rng):
        case = tensor_case(rng, n=40, d=8)
        O, L = case.forward_result
        dV = flash_backward(*case.inputs, O, L + math.log(2), case.dO.clone(), False, 16, 16)[2]
        off = float(np.abs(numbers(dV) - case.want["dV"] / 2).max())
        message = (
            f"with log 2 added to L every weight exp(S − L), and so dV, must be half as large; dV is off by {off:.3g}"
        )
        cause = "the softmax is computed once more from its start, instead of P = exp(S − L)"
        require_at_most("dV's error", off, 1e-4, f"{message}\nUsual cause: {cause}", unit="tolerance")

    def test_d_comes_from_the_given_o(self, rng):
        case = tensor_case(rng, n=40, d=8)
        O, L = case.forward_result
        dQ, without_D = (
            numbers(flash_backward(*case.inputs, given, L.clone(), case.dO.clone(), False, 16, 16)[0])
            for given in (O.clone(), torch.zeros_like(O))
        )
        D = (numbers(case.dO) * case.want["O"]).sum(-1, keepdims=True)
        change = case.want["P"] * D @ numbers(case.K) * 8**-0.5
        off = float(np.abs(without_D - dQ - change).max())
        message = f"with 0 given for O, D is 0 and dQ changes by P ∘ D K/√d; that change is off by {off:.3g}"
        cause = "D is not taken from dO and O (one number a row), or O is computed once more"
        require_at_most("the error of dQ's change", off, 1e-4, f"{message}\nUsual cause: {cause}", unit="tolerance")

    @pytest.mark.robust
    def test_gradient_of_a_sum(self, rng):
        case = tensor_case(rng, n=30, d=8, batch=(2,))
        case.dO = torch.ones(()).expand(2, 30, 8)
        given = case.backward_arguments | {"dO": case.dO}
        assert_backward(case, flash_backward(*given.values(), False, 16, 16), 16, 16, hint=SUM_OF_O)

    @pytest.mark.robust
    def test_without_keys(self, rng):
        case = tensor_case(rng, n_queries=5, n_keys=1, batch=(2,))
        empty = [x[:, :0] for x in (case.K, case.V)]
        L = torch.full((2, 5), -math.inf)
        dQ, dK, dV = flash_backward(case.Q, *empty, torch.zeros(2, 5, 16), L, case.dO)
        require(dQ.shape == (2, 5, 16) and bool((dQ == 0).all()), "without keys (N_k = 0) dQ must be 0")
        require(dK.shape == dV.shape == (2, 0, 16), f"dK is {tuple(dK.shape)}, dV {tuple(dV.shape)}, K (2, 0, 16)")

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = tensor_case(rng, n=20, d=8).backward_arguments
        with unchanged(given):
            flash_backward(*given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        given = tensor_case(rng, n_queries=6, n_keys=5, d=8).backward_arguments
        assert_refused(flash_backward, mismatched_shapes(*given.values()))

    @bad_blocks
    @pytest.mark.refuses
    def test_block_sizes_below_one(self, rng, bad):
        given = tensor_case(rng, n=6, d=8).backward_arguments.values()
        assert_raises(ValueError, lambda: flash_backward(*given, **bad), when=f"for {bad}", mentions=bad)

    @half_or_not
    @causal_or_not
    @pytest.mark.cost
    def test_memory_grows_with_n_only(self, rng, causal, dtype):
        case = tensor_case(rng, n=576, causal=causal, dtype=dtype)
        counts = measure("flash_backward", case, 64, 64)
        assert_small("flash_backward", counts, largest=4 * 64 * 64 + 576 * 17, peak=24 * 64 * 64 + 12 * 576 * 16)

    @narrow_blocks
    @pytest.mark.cost
    def test_blocks_are_those_asked_for(self, rng, blocks):
        assert_tiles("flash_backward", rng, blocks)

    @half_or_not
    @narrow_blocks
    @pytest.mark.cost
    def test_memory_of_blocks(self, rng, blocks, dtype):
        counts = measure("flash_backward", tensor_case(rng, n=128, d=2, dtype=dtype), *blocks)
        square = blocks[0] ** 2
        limits = {"largest": max(512, square), "peak": 14 * 512 + 2 * square}
        assert_small("flash_backward", counts, **limits, hint="the tiles are not those asked for")

    @few_blocks
    @pytest.mark.cost
    def test_causal_leaves_tiles_out(self, rng, blocks):
        assert_causal_tiles_left_out("flash_backward", rng, blocks)

    @pytest.mark.cost
    def test_work_of_a_tile(self, rng):
        n_computed = entries(tiles("flash_backward", signed_case(rng, 250, 120), 64, 32))
        hint = "once for each tile, twice where dQ has a loop of its own. P is exp(S − L): nothing else is made anew"
        name = "the scores computed for N_q = 250, N_k = 120"
        assert_at_most(name, n_computed, 2 * 250 * 120, unit="entries", hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=30)
    def test_no_matrix_seen_from_outside(self, memory_limit):
        Q, K, V, dO = large_inputs()
        O, L = large_forward(Q, K, V)
        want = large_backward(Q, K, V, O, L, dO)
        assert_large(GRADIENTS, memory_limit(flash_backward, Q, K, V, O, L, dO, False, 512, 512), want)


class TestFlashAttention:
    @pytest.mark.basic
    def test_worked_example(self):
        measure_step(worked_case)

    @pytest.mark.basic
    @every_case
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)
        given = case.arguments
        with report_mutation_first(given):
            O, _, found = step_of_apply("step", *given.values(), case.dO, case.causal)
            assert_output(case, O, hint=row.hint, nan_hint=row.nan_hint)
            assert_gradients(case, arrived(found), hint=row.hint, nan_hint=row.nan_hint)

    @causal_or_not
    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng, causal):
        case = tensor_case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), causal=causal)
        O, _, found = step_of_apply("step", *case.inputs, case.dO, causal, on_nan=True)
        assert_output(case, O, nan_hint=NAN_FROM_EMPTY)
        assert_gradients(case, arrived(found), nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.parametrize("far", [1e3, 1e7, 1e10])
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        case = tensor_case(rng, n=24, d=8, causal=True, dtype=torch.float64)
        case.Q[:, 0], case.K[:, 0] = far, -1  # every score is far below 0, by nearly the same amount
        O, _, gradients = step_of_apply("step", *case.inputs, case.dO, True)
        assert_hidden_keys_do_not_leak(case, ("O", *GRADIENTS), (O, *gradients), far)

    def test_is_causal_may_be_left_out(self, rng):
        case = tensor_case(rng, n=40, d=8)
        left_out, said = output_of_apply(*case.inputs), output_of_apply(*case.inputs, False)
        require(bool(torch.equal(left_out, said)), "is_causal left out must mean False")
        case.check("O", left_out)

    @pytest.mark.seconds(60)  # gradcheck's first call imports sympy
    def test_gradcheck(self, rng):
        for causal in (False, True):
            case = tensor_case(rng, n_queries=4, n_keys=6, d=3, d_v=2, causal=causal, dtype=torch.float64, batch=(2,))
            right = torch.autograd.gradcheck(
                lambda *x, causal=causal: ByStep.apply(
                    lambda *x: output_of_apply(*x, causal), lambda *x: step_of_apply("step", *x, causal)[2], *x
                ),
                [x.requires_grad_() for x in case.inputs],
                raise_exception=False,
                check_undefined_grad=False,
            )
            require(right, f"torch.autograd.gradcheck, {causal=}: the gradients are not those of the output")

    @pytest.mark.robust
    def test_second_derivatives_are_right_or_refused(self, rng):
        case = tensor_case(rng, n_queries=6, n_keys=9, d=4, d_v=3, dtype=torch.float64)
        second = step_of_apply("penalised_gradients", *case.inputs, case.dO)
        if isinstance(second, str):  # refused
            return
        want, alone = gradients_with_penalty(*map(numbers, (*case.inputs, case.dO)))
        hint = "backward is differentiated too, but L is a constant there: refuse, where torch.is_grad_enabled()"
        for name, got, exact, first in zip(GRADIENTS, second, want, alone, strict=True):
            name, atol = f"{name} of a loss with a penalty on its own gradients", 4e-7 * np.abs(exact).max()
            left_out = "the penalty is left out: backward's results come without a graph, and without an error"
            assert_close(
                name,
                got,
                exact,
                baseline=exact,
                tolerance=Tolerance(atol=atol),
                reference=gradients_with_penalty,
                mistakes={left_out: first},
                hint=hint,
            )

    @pytest.mark.robust
    def test_one_input_in_three_places(self, rng):
        case = tensor_case(rng, n=40, d=8)
        case.K = case.V = case.Q
        gradient = gradient_of_one_input(case.Q, case.dO)
        case.want["dX"] = sum(case.want[name] for name in GRADIENTS)
        case.baseline["dX"] = sum(case.baseline[name] for name in GRADIENTS)
        alone = {f"only {name} arrives": case.want[name] for name in GRADIENTS}
        case.check("dX", gradient, alone, hint="X is query, key and value: its gradient is dQ + dK + dV")

    @pytest.mark.robust
    def test_gradient_of_a_sum(self, rng):
        case = tensor_case(rng, n=70, d=8, batch=(2,))
        case.dO = torch.ones_like(case.dO)
        _, _, gradients = step_of_apply("step", *case.inputs, None)
        assert_gradients(case, arrived(gradients), hint=SUM_OF_O)

    @pytest.mark.parametrize("needed_inputs", ["Q", "K", "V", "KV", "QV"])
    def test_inputs_that_need_no_gradient(self, rng, needed_inputs):
        case = tensor_case(rng, n=40, d=8, causal=True)
        needs = [name in needed_inputs for name in "QKV"]
        _, _, gradients = step_of_apply("step", *case.inputs, case.dO, case.causal, needs=needs)
        why = "backward returns one value for each argument of forward, with None in the place of those not needed"
        for name, gradient, needed in zip(GRADIENTS, gradients, needs, strict=True):
            if needed:
                require(gradient is not None, f"{name} never arrived, though its input needs a gradient\n{why}")
                assert_gradients(case, {name: gradient}, hint="each gradient must stand in its own argument's place")
            else:
                require(gradient is None, f"{name} arrived, though its input needs no gradient")

    @pytest.mark.robust
    def test_without_any_gradient(self, rng):
        case = tensor_case(rng, n=40, d=8)
        O = apply(case, False)
        require(not O.requires_grad, "no input needs a gradient, and yet O does")
        with torch.no_grad():
            O = apply(case, True)
        require(not O.requires_grad, "under torch.no_grad() O must not need a gradient")
        case.check("O", O)

    @pytest.mark.robust
    def test_backward_twice(self, rng):
        case = tensor_case(rng, n=40, d=8, causal=True)
        _, _, once = step_of_apply("step", *case.inputs, case.dO, case.causal)
        _, _, both = step_of_apply("step", *case.inputs, case.dO, case.causal, n_backward=2)
        first = arrived(once)
        for name, twice in arrived(both).items():
            off = float((twice - 2 * first[name]).abs().max())
            message = f"{name} of a second backward pass differs from the first's by {off:.3g}"
            cause = "backward changes a saved tensor in place"
            largest = 1e-6 * float(twice.abs().max())
            require_at_most(f"{name}'s change", off, largest, f"{message}\nUsual cause: {cause}", unit="tolerance")

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = tensor_case(rng, n=40, d=8)
        with unchanged({"Q": case.Q, "K": case.K, "V": case.V, "dO": case.dO}):
            output, O_now, _ = step_of_apply("step", *case.inputs, case.dO, case.causal)
            assert_output(case, output)
        assert_unchanged("O", O_now, output)

    @half_or_not
    @pytest.mark.cost
    def test_saved_are_q_k_v_o_and_one_l(self, rng, dtype):
        for batch in ((2, 3), ()):
            case = tensor_case(rng, n_queries=70, n_keys=80, d=8, d_v=6, batch=batch, dtype=dtype)
            O, saved = saved_by_apply(*case.inputs)
            assert_output(case, O)
            assert_saved(case, saved)

    @half_or_not
    @pytest.mark.cost
    def test_forward_leaves_nothing_else_behind(self, rng, dtype):
        case = tensor_case(rng, n_queries=256, n_keys=192, d=8, batch=(2,), dtype=dtype)
        (kept, O), _ = kept_by_apply(*case.inputs)
        assert_output(case, O)
        hint = "between the passes only L may take memory: is a tensor kept as an attribute of ctx, or a copy saved?"
        assert_at_most("what the forward pass keeps, besides Q, K, V and O,", kept, 2 * 256 * 4, hint=hint)

    @pytest.mark.cost
    def test_memory_goes_when_the_output_goes(self, rng):
        case = tensor_case(rng, n=64)
        _, (left, O) = kept_by_apply(*case.inputs)
        assert_output(case, torch.tensor(O))
        hint = "an output kept as an attribute of ctx keeps itself alive until Python's cycle collector comes by"
        assert_at_most("what is still alive when the output is gone", left, 0, hint=hint)

    @half_or_not
    @causal_or_not
    @pytest.mark.cost
    def test_no_pass_makes_an_n_by_n_tensor(self, causal, dtype):
        # Where 512 tokens show already that tiles are small, 1024 of them would take many tiles and tell no more.
        small_enough = {"largest_bytes": 4 * 2**14, "peak_bytes": 4 * 512 * 512 // 2}
        short = long_step(512, causal, dtype).values()
        if all(counts[name] <= limit for counts in short for name, limit in small_enough.items()):
            return
        for name, counts in long_step(1024, causal, dtype).items():
            assert_small(name, counts, largest=2**17, peak=1024 * 1024 // 2)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_no_matrix_seen_from_outside(self, memory_limit):
        Q, K, V, dO = large_inputs(2048)
        O, L = large_forward(Q, K, V)
        got = memory_limit(step_through, FlashAttention, Q, K, V, dO)
        assert_large(("O", *GRADIENTS), got, (O, *large_backward(Q, K, V, O, L, dO)), "tiles of the function's choice")

    @pytest.mark.parametrize(
        ("sizes", "causal", "side"),
        [
            ([(64, 512), (64, 2048)], False, "keys"),
            ([(512, 64), (2048, 64)], False, "queries"),
            ([(512, 512), (1024, 1024)], True, "tokens"),
        ],
        ids=["keys", "queries", "causal"],
    )
    @pytest.mark.cost
    def test_tiles_do_not_grow_with_n(self, rng, sizes, causal, side):
        cases = [tensor_case(rng, d=2, n_queries=n_q, n_keys=n_k, causal=causal) for n_q, n_k in sizes]
        assert_largest_stays(side, sizes, *map(measure_step, cases))

    @pytest.mark.cost
    def test_causal_leaves_tiles_out_in_both_passes(self):
        for n in (512, 1024, 2048):  # of few large tiles a larger share holds a key that some query sees
            full, half = long_step(n, False), long_step(n, True)
            shares = {name: half[name]["flops"] / full[name]["flops"] for name in full}
            if max(shares.values()) <= 0.68 or (n == 1024 and max(shares.values()) > 0.8):
                break
        cause = "tiles that lie above the diagonal are computed and then masked: leave them out"
        for name, share in shares.items():
            message = f"with is_causal {name} does {share:.0%} of the full work, though half of the scores are hidden"
            hidden = f"of the scores that no query sees, what {name} computes"
            require_at_most(hidden, 2 * share - 1, 0.5, f"{message}\nUsual cause: {cause}")

    @pytest.mark.gpu
    @causal_or_not
    def test_bfloat16_on_cuda(self, rng, causal):
        case = tensor_case(rng, n=500, d=64, causal=causal, dtype=torch.bfloat16, batch=(2, 2), device="cuda")
        O, _, found = step_of_apply("step", *case.inputs, case.dO, causal)
        assert_output(case, O, hint=SHORT_SUMS)
        assert_gradients(case, arrived(found), hint=SHORT_SUMS)

    @pytest.mark.gpu
    def test_memory_on_cuda(self, rng):
        case = tensor_case(rng, n=8192, d=64, dtype=torch.bfloat16, device="cuda")
        inputs = [x.requires_grad_() for x in case.inputs]
        (FlashAttention.apply(*inputs, True) * case.dO).sum().backward()  # once uncounted: workspaces of libraries
        for x in inputs:
            x.grad = None
        with CudaMeter("cuda") as meter:
            (FlashAttention.apply(*inputs, True) * case.dO).sum().backward()
        name = "the peak memory of a training step on CUDA"
        assert_at_most(name, meter.peak_bytes, 8192 * 8192 // 2, hint=WHOLE_MATRIX)
