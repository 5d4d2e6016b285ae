"""Lab 05's calls and comparisons: both passes with their blocks, and a training step through `apply`."""

import functools
import math

import numpy as np
import torch

from labkit.testing.attention.tensor_cases import Case
from labkit.testing.attention.tensor_mistakes import backward_mistakes, forward_mistakes, lse_mistakes_of
from labkit.testing.compare import assert_dtype, assert_tuple, compare_each, require
from labkit.testing.unchanged import left_alone
from labkit.testing.wording import dtype_name
from labkit.testing.work import assert_products_seen

from .probes import FUNCTIONS, measured_call, output_of_apply, step_of_apply, tiles_of_call

GRADIENTS = ("dQ", "dK", "dV")
RESULTS = {"flash_forward": ("O", "L"), "flash_backward": GRADIENTS}
worked_case = Case.of([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]], [[1.0]])


def arguments(task, case):
    """The tensors that `flash_forward` or `flash_backward` is given, by their names."""
    given = dict(zip("QKV", case.inputs, strict=True))
    if task == "flash_backward":
        given |= {**dict(zip("OL", case.forward_result, strict=True)), "dO": case.dO}
    return given


def named(task, result):
    """The results of a call by their names; fails unless they are a tuple as long as the task's."""
    return dict(zip(RESULTS[task], assert_tuple(f"{task}'s result", result, RESULTS[task]), strict=True))


def run(task, case, *blocks):
    """The results of the student's function, by their names; fails if it changed its arguments."""
    given = arguments(task, case)
    with left_alone(given, given.values()):
        result = FUNCTIONS[task](*given.values(), case.causal, *blocks)
    return named(task, result)


def assert_right(case, results, *blocks, hint="", nan_hint=""):
    """Compare results, by their names, with the reference; name a known mistake where one fits."""

    def known_mistakes(name):
        found = forward_mistakes(case, *blocks) if "O" in results else backward_mistakes(case, *blocks)
        return found | lse_mistakes_of(case) if name == "L" else found

    shapes = [getattr(results[name], "shape", ()) for name in results]
    expected = [case.want[name].shape for name in results]
    turned_round = shapes == expected[::-1] != expected
    message = f"the results have the shapes {', '.join(map(str, map(tuple, shapes)))}: the order is "
    require(not turned_round, f"{message}({', '.join(results)})")

    def check(name):
        case.check(name, results[name], functools.partial(known_mistakes, name), hint=hint, nan_hint=nan_hint)
        assert_result_dtype(case, name, results[name])

    compare_each(results, check)


def assert_result_dtype(case, name, got):
    """Fail unless a result has the dtype of the inputs; L has float32 where those are in half precision."""
    expected = case.precise if name == "L" else case.Q.dtype
    message = f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(expected)} for inputs in "
    message += dtype_name(case.Q.dtype)
    if name == "L":
        message += "\nL is float32 for half precision: what it is off by, every weight of the backward pass is off by"
    require(got.dtype == expected, message)


# What a call allocates and computes


def measure(task, case, *blocks):
    """What a call of a task, whose results are right, allocated and computed."""
    result, counts = measured_call(task, *arguments(task, case).values(), case.causal, *blocks)
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
    given = arguments(task, case).values()
    result, found, fused = tiles_of_call(task, case.Q.shape[-1], *given, case.causal, *blocks)
    assert_right(case, named(task, result), *blocks)
    assert_products_seen(task, {"fused": fused, "flops": len(found)})
    return found


# Inputs so long that one N × N array of float32 has 64 MiB, where a correct submission needs a few


def large_inputs():
    """Q, K, V and dO, each (4096, 16)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4096, 16, generator=generator) for _ in range(4)]


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


def assert_large(names, got, want):
    """Compare the results of a call whose memory was bounded."""
    for name, value, right in zip(names, got, want, strict=True):
        close = getattr(value, "shape", ()) == right.shape and torch.allclose(value, right, rtol=1e-4, atol=1e-4)
        require(close, f"memory stayed within the limit, but {name} is wrong at N = 4096 in tiles of 512 × 512")


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
    known_mistakes = functools.partial(forward_mistakes, case, case.Q.shape[-2], case.K.shape[-2])
    case.check("O", O, known_mistakes, hint=hint, nan_hint=nan_hint)


def arrived(gradients):
    """The gradients by their names; fails unless all are there."""
    found = dict(zip(GRADIENTS, gradients, strict=True))
    for name, gradient in found.items():
        require(gradient is not None, f"{name} never arrived: backward returned None in its place")
    return found


def measure_step(case):
    """What the passes of a training step, whose results are right, allocated and computed, by their names."""
    O, gradients, passes = step_of_apply("measured_step", *case.inputs, case.dO, case.causal)
    assert_output(case, O)
    assert_right(case, arrived(gradients))
    for name, counts in passes.items():
        assert_products_seen(name, counts)
    return passes


@functools.cache
def long_step(n, causal):
    """A step with n tokens, measured once for several tests."""
    return measure_step(Case(np.random.default_rng(5), n=n, causal=causal))


def assert_saved(case, saved):
    """Fail unless Q, K, V and O are saved, by their names, and besides them L alone, which must be right."""
    names = [x for x in saved if isinstance(x, str)]
    for name in "QKVO":
        message = f"{name} is not saved for backward, which cannot do without it\n"
        message += "Usual cause: it is kept elsewhere or computed anew; ctx.save_for_backward takes Q, K, V, O and L"
        require(name in names, message)
    others, shape = [x for x in saved if not isinstance(x, str)], tuple(case.Q.shape[:-1])
    heads_in_a_row = (math.prod(shape[:-1]), shape[-1])
    found = ", ".join(f"{dtype_name(x.dtype)} {tuple(x.shape)}" for x in others) or "nothing"
    message = f"saved besides Q, K, V and O: {found}; expected L alone, {dtype_name(case.precise)} {shape}\n"
    alone = [tuple(x.shape) for x in others] in ([shape], [heads_in_a_row])
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
