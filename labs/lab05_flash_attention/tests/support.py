"""Lab 05's calls and comparisons: both passes with their blocks, and a training step through `apply`."""

import functools
import math

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import backward_mistakes, lse_mistakes_of
from labkit.testing.attention.cases import Case, numbers, tensor_case, worked_example
from labkit.testing.attention.mistakes import attention_mistakes
from labkit.testing.compare import (
    assert_at_most,
    assert_dtype,
    assert_tuple,
    compare_each,
    require,
    require_at_most,
)
from labkit.testing.unchanged import report_mutation_first
from labkit.testing.wording import dtype_name
from labkit.testing.work import (
    assert_products_seen,
    assert_tile_sizes,
    entries,
    entries_seen,
    require_own_attention,
)

from .probes import measured_call, output_of_apply, step_of_apply, tiles_of_call

GRADIENTS = ("dQ", "dK", "dV")
worked_case = Case(*map(torch.from_numpy, worked_example()), torch.ones(1, 1))


def assert_forward(case, result, *blocks, hint="", nan_hint=""):
    """Compare (O, L) with the reference, and their dtypes; name a known mistake where one fits."""
    O, L = assert_tuple("flash_forward's result", result, "OL")
    assert_in_order(case, {"O": O, "L": L})

    def check(name):
        def known():
            return attention_mistakes(case, *blocks) | (lse_mistakes_of(case) if name == "L" else {})

        got = O if name == "O" else L
        case.check(name, got, known, hint=hint, nan_hint=nan_hint)
        assert_result_dtype(case, name, got)

    compare_each("OL", check)


def assert_backward(case, result, *blocks, hint="", nan_hint=""):
    """Compare (dQ, dK, dV) with the reference."""
    found = dict(zip(GRADIENTS, assert_tuple("flash_backward's result", result, GRADIENTS), strict=True))
    assert_gradients(case, found, *blocks, hint=hint, nan_hint=nan_hint)


def assert_gradients(case, found, *blocks, hint="", nan_hint=""):
    """Compare gradients, by their names, with the reference, and their dtypes; name a known mistake where one fits."""
    assert_in_order(case, found)

    def check(name):
        known = functools.partial(backward_mistakes, case, *blocks)
        case.check(name, found[name], known, hint=hint, nan_hint=nan_hint)
        assert_result_dtype(case, name, found[name])

    compare_each(found, check)


def assert_in_order(case, results):
    """Fail where results, by their names, have the shapes of one another, from back to front."""
    shapes = [tuple(getattr(got, "shape", ())) for got in results.values()]
    expected = [case.want[name].shape for name in results]
    message = f"the results have the shapes {', '.join(map(str, shapes))}: the order is ({', '.join(results)})"
    require(not shapes == expected[::-1] != expected, message)


def assert_result_dtype(case, name, got):
    """Fail unless a result has the dtype of the inputs; L has float32 where those are in half precision."""
    expected = case.precise if name == "L" else case.Q.dtype
    message = f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(expected)} for inputs in "
    message += dtype_name(case.Q.dtype)
    if expected != case.Q.dtype:
        message += "\nL is float32 for half precision: what it is off by, every weight of the backward pass is off by"
    require(got.dtype == expected, message)


def assert_hidden_keys_do_not_leak(case, names, result, far):
    """Compare results in float64 of a causal case whose scores are all about −far/√8."""
    for name, got in zip(names, assert_tuple("the result", result, names), strict=True):
        want = case.want[name]
        off = float(np.nan_to_num(np.abs(numbers(got) - want), nan=np.inf).max())
        message = f"{name} is off by {off:.3g} where all scores are about {-far / math.sqrt(8):.0e}"
        cause = "a large negative number stands for −inf; beside scores that are lower still it is large"
        largest = 1e-3 * float(np.abs(want).max())
        require_at_most(f"{name}'s error", off, largest, message, unit="tolerance", hint=cause)


# What a call allocates and computes


COMPARISONS = {"flash_forward": assert_forward, "flash_backward": assert_backward}


def measure(task, case, *blocks, hint=""):
    """What a call of a task, whose results are right, allocated and computed."""
    given = case.arguments if task == "flash_forward" else case.backward_arguments
    with report_mutation_first(given):
        result, counts = measured_call(task, *given.values(), case.causal, *blocks)
        require_own_attention(task, counts)
        COMPARISONS[task](case, result, *blocks, hint=hint)
    assert_products_seen(task, counts)
    return counts


def signed_case(rng, n_queries, n_keys, causal=False):
    """A case for `ScoreTiles`: Q above 0, K below, and no block as long as d is wide."""
    case = tensor_case(rng, n_queries=n_queries, n_keys=n_keys, d=11, d_v=5, causal=causal)
    case.Q, case.K = case.Q.abs() + 0.1, -case.K.abs() - 0.1
    return case


def tiles(task, case, *blocks):
    """The tiles of scores, (queries, keys), that a call of a task computes, whose results are right."""
    given = case.arguments if task == "flash_forward" else case.backward_arguments
    with report_mutation_first(given):
        result, found, fused = tiles_of_call(task, case.Q.shape[-1], *given.values(), case.causal, *blocks)
        require_own_attention(task, {"fused": fused})
        COMPARISONS[task](case, result, *blocks)
    assert_products_seen(task, {"fused": fused, "flops": len(found)})
    return found


def assert_tiles(task, rng, blocks):
    """Fail unless the largest tiles of four calls have the sizes asked for."""
    for n_queries, n_keys, causal in [(60, 44, False), (60, 44, True), (20, 150, False), (150, 20, True)]:
        found = tiles(task, signed_case(rng, n_queries, n_keys, causal), *blocks)
        name = "{} with blocks of {} × {}".format(task, *blocks)
        assert_tile_sizes(name, found, n_queries, n_keys, blocks, causal)


def assert_causal_tiles_left_out(task, rng, blocks):
    """Fail where a causal call of 130 queries and 165 keys computes scores of tiles in which no query sees a key.

    A last, short block of queries may be taken for as long as the others.
    """
    full, half = (entries(tiles(task, signed_case(rng, 130, 165, causal), *blocks)) for causal in (False, True))
    share = entries_seen(130, 165, *blocks, nominal=True) / (130 * 165)
    first = -(-blocks[0] // blocks[1]) * blocks[1]
    hint = f"Queries 0 to {blocks[0] - 1}, for one, see no key from {first} on: no tile of theirs begins there or later"
    hint += "\nUsual cause: tiles above the diagonal are computed and then masked: leave them out, the first one too"
    name = "the scores that {} computes with causal, blocks of {} × {},".format(task, *blocks)
    assert_at_most(name, half, round(share * full), unit="entries", hint=hint)


# Inputs so long that one N × N array of float32 has 64 MiB, where a correct submission needs a few


def large_inputs(n=4096):
    """Q, K, V and dO, each (n, 16)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 16, generator=generator) for _ in range(4)]


def large_forward(Q, K, V):
    """O and L of large inputs, 256 rows at a time."""
    blocks = [rows @ K.T / 4 for rows in Q.split(256)]
    return torch.cat([S.softmax(-1) @ V for S in blocks]), torch.cat([S.logsumexp(-1) for S in blocks])


def large_backward(Q, K, V, O, L, dO):
    """dQ, dK and dV of large inputs, 256 rows at a time."""
    dQ, dK, dV = [], torch.zeros_like(K), torch.zeros_like(V)
    for rows in torch.arange(len(Q)).split(256):
        P = torch.exp(Q[rows] @ K.T / 4 - L[rows, None])
        dS = P * (dO[rows] @ V.T - (O * dO)[rows].sum(-1, keepdim=True)) / 4
        dQ.append(dS @ K)
        dK += dS.T @ Q[rows]
        dV += P.T @ dO[rows]
    return torch.cat(dQ), dK, dV


def assert_large(names, got, want, tiles="tiles of 512 × 512"):
    """Compare the results of a call whose memory was bounded."""
    for name, value, right in zip(names, got, want, strict=True):
        close = getattr(value, "shape", ()) == right.shape and torch.allclose(value, right, rtol=1e-4, atol=1e-4)
        require(close, f"memory stayed within the limit, but {name} is wrong at N = {len(right)} in {tiles}")


# A training step through autograd


def apply(case, needs_gradient):
    """The student's output, for inputs that need a gradient or do not."""
    inputs = [x.detach().requires_grad_(needs_gradient) for x in case.inputs]
    O = output_of_apply(*inputs, *[True] * case.causal)
    assert_output_alone(O)
    return O


def assert_output_alone(O):
    """Fail unless `apply` returned one tensor."""
    message = f"apply returned a {type(O).__name__}, expected O alone: what only backward needs goes into ctx"
    require(isinstance(O, torch.Tensor), message)


def assert_output(case, O, hint="", nan_hint=""):
    """Compare what `apply` returned with the reference."""
    assert_output_alone(O)
    assert_dtype("O", O, case.Q.dtype)
    known_mistakes = functools.partial(attention_mistakes, case, case.n_queries, case.n_keys)
    case.check("O", O, known_mistakes, hint=hint, nan_hint=nan_hint)


def arrived(gradients):
    """The gradients by their names; fails unless all are there."""
    found = dict(zip(GRADIENTS, gradients, strict=True))
    for name, gradient in found.items():
        require(gradient is not None, f"{name} never arrived: backward returned None in its place")
    return found


def measure_step(case, hint=""):
    """What the passes of a training step, whose results are right, allocated and computed, by their names."""
    O, gradients, passes = step_of_apply("measured_step", *case.inputs, case.dO, case.causal)
    for name, counts in passes.items():
        require_own_attention(name, counts)
    assert_output(case, O, hint=hint)
    assert_gradients(case, arrived(gradients), hint=hint)
    for name, counts in passes.items():
        assert_products_seen(name, counts)
    return passes


@functools.cache
def long_step(n, causal, dtype=torch.float32):
    """A step with n tokens, measured once for several tests."""
    return measure_step(tensor_case(np.random.default_rng(5), n=n, causal=causal, dtype=dtype))


def assert_saved(case, saved):
    """Fail unless Q, K, V and O are saved, by their names, and besides them L alone, which must be right."""
    names = [x for x in saved if isinstance(x, str)]
    for name in "QKVO":
        message = f"{name} is not saved for backward, which cannot do without it\n"
        message += "Usual cause: it is kept elsewhere or computed anew; ctx.save_for_backward takes Q, K, V, O and L"
        require(name in names, message)
    others, shape = [x for x in saved if not isinstance(x, str)], tuple(case.Q.shape[:-1])
    found = ", ".join(f"{dtype_name(x.dtype)} {tuple(x.shape)}" for x in others) or "nothing"
    message = f"saved besides Q, K, V and O: {found}; expected L alone, {dtype_name(case.precise)} {shape}\n"
    folded = (math.prod(shape[:-1]), shape[-1])  # the same bytes
    alone = len(others) == 1 and tuple(others[0].shape) in (shape, folded)
    require(alone, message + _why_others(case, others, shape))
    (L,) = others
    message = f"the saved L is {dtype_name(L.dtype)}, expected {dtype_name(case.precise)}: "
    require(L.dtype == case.precise, message + "one number stands for a whole row of weights")
    case.check("L", L.reshape(shape), lse_mistakes_of(case))


def _why_others(case, others, shape):
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


class ByStep(torch.autograd.Function):
    """`ByStep.apply(forward, step, *inputs)`: the output by one call, the gradients by another, for torch's gradcheck.

    `step(*inputs, d_out)` gives the inputs' gradients. Either may run in another process.
    """

    @staticmethod
    def forward(ctx, forward, step, *inputs):
        ctx.step = step
        ctx.save_for_backward(*inputs)
        return forward(*inputs).detach()

    @staticmethod
    def backward(ctx, d_out):
        with torch.enable_grad():
            return None, None, *ctx.step(*ctx.saved_tensors, d_out)
