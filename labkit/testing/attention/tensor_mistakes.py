"""The usual mistakes of attention's two passes on tensors, each with the results that it leads to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.mistakes import attention_mistakes, mask_mistakes
from labkit.testing.attention.reference import Attention
from labkit.testing.attention.tensor_cases import Case, Results, numbers

Made = dict[str, Callable[[], Results]]


def forward_mistakes(case: Case, block_q: int = 64, block_k: int = 64) -> Made:
    """Usual mistakes of a forward pass: O and L that each leads to."""

    def of(made: Callable[[], Attention]) -> Callable[[], Results]:
        def values() -> Results:
            with np.errstate(all="ignore"):
                result = made()
            return {"O": result.output, "L": result.lse}

        return values

    return {text: of(made) for text, made in attention_mistakes(case.arrays, block_q, block_k).items()}


def lse_mistakes_of(case: Case) -> Results:
    """Usual mistakes in L alone."""
    return lse_mistakes(case.want["L"], case.arrays.scores.max(-1, initial=-np.inf))


def lse_mistakes(lse: npt.NDArray, peaks: npt.NDArray) -> Results:
    """Usual mistakes with the log-sum-exp of rows whose largest scores are `peaks`."""
    with np.errstate(all="ignore"):
        return {
            "L is a logarithm to base 2: it must be the natural one": lse / math.log(2),
            "the logarithm of l is to base 2: L = m + log l with the natural one": peaks + (lse - peaks) / math.log(2),
            "the maximum is left out: L = m + log l": lse - peaks,
            "L is the maximum alone: L = m + log l": peaks,
            "L is m + l, without the logarithm of l": peaks + np.exp(lse - peaks),
            "L is l, the sum alone: L = m + log l": np.exp(lse - peaks),
            "the maximum is subtracted: L = m + log l": lse - 2 * peaks,
        }


def backward_mistakes(case: Case, block_q: int = 64, block_k: int = 64) -> Made:
    """Usual mistakes of a backward pass that is given the right O and L: dQ, dK and dV that each leads to."""
    dO, O = case.dO.double().cpu(), torch.from_numpy(case.want["O"])
    normal = case.Q.shape[-1] ** -0.5
    rows = (dO * O).sum(-1, keepdim=True)
    peaks = torch.from_numpy(case.arrays.scores.max(-1, initial=-np.inf))

    def by(**mistake: object) -> Callable[[], Results]:
        return lambda: gradients_by_formulas(case, **mistake)  # type: ignore[arg-type]

    found = {
        "P is computed from scores that are not divided by √d": by(in_S=1.0),
        "dS is not multiplied by 1/√d on its way into it": by(in_dS=1.0),
        "1/√d is applied twice on the way into it": by(in_dS=normal**2),
        "P is a softmax of each tile's own, instead of exp(S − L)": by(
            weights=lambda S: torch.cat([tile.softmax(-1).nan_to_num() for tile in S.split(block_k, -1)], -1)
        ),
        "D is left out: dS = P ∘ (dP − D)": by(D=torch.zeros(())),
        "D is added: dS = P ∘ (dP − D)": by(D=-rows),
        "dS is not multiplied by P": by(through_exp=False),
        "D is summed over the queries instead of the width": by(D=lambda P, dP: (P * dP).sum(-2, keepdim=True)),
        "D is taken from P ∘ dP of one tile after the other, not over all keys": by(
            D=lambda P, dP: _tile_by_tile(P * dP, block_k)
        ),
        "D is a mean over the width instead of a sum": by(D=rows / dO.shape[-1]),
        "L is the maximum instead of the log-sum-exp, so that P is not normalised": by(L=peaks),
        "one tile's sums replace those before, instead of being added to them": lambda: _last_tiles(
            case, block_q, block_k
        ),
    }
    if case.Q.shape == case.V.shape == case.K.shape:
        found["the gradients come in another order: the result is (dQ, dK, dV)"] = lambda: (
            case.want | {"dQ": case.want["dV"], "dV": case.want["dQ"]}
        )
    late = {name: np.roll(case.want[name], block_k, -2) for name in ("dK", "dV")}
    found["dK and dV are written one block of keys too late"] = lambda: case.want | late
    if dO.shape[-1] == dO.shape[-2]:
        found["D is summed over the queries (axis −2) instead of the width (axis −1)"] = by(
            D=(dO * O).sum(-2)[..., None]
        )
    for text, hidden in mask_mistakes(case.arrays, block_q, block_k).items():
        where = " in the backward pass" if text == "causal is ignored" else ""
        found[text + where] = by(hidden=torch.from_numpy(hidden))
    return found


def gradients_by_formulas(
    case: Case,
    *,
    in_S: float | None = None,
    in_dS: float | None = None,
    D: torch.Tensor | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    L: torch.Tensor | None = None,
    hidden: torch.Tensor | None = None,
    through_exp: bool = True,
    weights: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Results:
    """dQ, dK and dV in float64 from the right O and L, with the mistakes that are asked for."""
    Q, K, V, dO = (x.detach().cpu().double() for x in (*case.inputs, case.dO))
    normal = Q.shape[-1] ** -0.5
    L = torch.from_numpy(case.want["L"]) if L is None else L
    S = (normal if in_S is None else in_S) * Q @ K.mT
    S = S.masked_fill(case.hidden.cpu() if hidden is None else hidden, -torch.inf)
    P = weights(S) if weights else torch.exp(S - L[..., None])
    dP = dO @ V.mT
    if D is None:
        D = (dO * torch.from_numpy(case.want["O"])).sum(-1, keepdim=True)
    slopes = D(P, dP) if callable(D) else D
    dS = (normal if in_dS is None else in_dS) * (P if through_exp else 1) * (dP - slopes)
    return {"dQ": numbers(dS @ K), "dK": numbers(dS.mT @ Q), "dV": numbers(P.mT @ dO)}


def _tile_by_tile(products: torch.Tensor, block_k: int) -> torch.Tensor:
    parts = [part.sum(-1, keepdim=True).expand_as(part) for part in products.split(block_k, -1)]
    return torch.cat(parts, -1)


def _last_tiles(case: Case, block_q: int, block_k: int) -> Results:
    """dQ from the last block of keys alone, dK and dV from the last block of queries alone."""
    n_queries, n_keys = case.Q.shape[-2], case.K.shape[-2]
    first_key, first_query = (n_keys - 1) // block_k * block_k, (n_queries - 1) // block_q * block_q
    early_keys = torch.arange(n_keys) < first_key
    early_queries = (torch.arange(n_queries) < first_query)[:, None]
    made = gradients_by_formulas(case, hidden=case.hidden.cpu() | early_queries)
    return made | {"dQ": gradients_by_formulas(case, hidden=case.hidden.cpu() | early_keys)["dQ"]}
