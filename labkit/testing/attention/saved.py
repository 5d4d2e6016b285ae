"""What FlashAttention's forward pass saves for its backward pass: Q, K, V, O and one log-sum-exp, and why not more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from labkit.testing.attention.tensor_cases import Case
from labkit.testing.attention.tensor_suspects import lse_suspects
from labkit.testing.compare import require
from labkit.testing.wording import dtype_name


def assert_saved(case: Case, saved: Sequence[torch.Tensor | str]) -> None:
    """Fail unless Q, K, V and O are saved, by their names, and besides them L alone, which must be right.

    `saved` is what `labkit.meters.steps.saved_tensors` tells.
    """
    for name in "QKVO":
        require(
            name in [x for x in saved if isinstance(x, str)],
            f"{name} is not saved for backward, which cannot do without it\n"
            "Usual cause: it is kept elsewhere or computed anew; ctx.save_for_backward takes Q, K, V, O and L",
        )
    others, shape = [x for x in saved if not isinstance(x, str)], tuple(case.Q.shape[:-1])
    heads_in_a_row = (math.prod(shape[:-1]), shape[-1])
    found = ", ".join(f"{dtype_name(x.dtype)} {tuple(x.shape)}" for x in others) or "nothing"
    require(
        [tuple(x.shape) for x in others] in ([shape], [heads_in_a_row]),
        f"saved besides Q, K, V and O: {found}; expected L alone, {dtype_name(case.precise)} {shape}\n"
        + _why_others(case, others, shape),
    )
    (L,) = others
    require(
        L.dtype == case.precise,
        f"the saved L is {dtype_name(L.dtype)}, expected {dtype_name(case.precise)}: one number stands for a whole row "
        "of weights",
    )
    case.check("L", L.reshape(shape), lse_suspects(case))


def _why_others(case: Case, others: Sequence[torch.Tensor], shape: tuple[int, ...]) -> str:
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
