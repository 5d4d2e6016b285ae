"""The usual mistakes of attention's backward pass and of the log-sum-exp, each with the results that it leads to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from labkit.testing.attention.cases import Case, Results, numbers
from labkit.testing.attention.mistakes import Made, mask_mistakes

Array = npt.NDArray[np.float64]


def lse_mistakes_of(case: Case) -> dict[str, Array]:
    """Usual mistakes in L alone."""
    return lse_mistakes(case.want["L"], case.scores.max(-1, initial=-np.inf))


def lse_mistakes(lse: npt.NDArray, peaks: npt.NDArray) -> dict[str, Array]:
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
    dO, O = numbers(case.dO), case.want["O"]
    normal = case.Q.shape[-1] ** -0.5
    rows = (dO * O).sum(-1, keepdims=True)
    by = partial(partial, gradients_by_formulas, case)
    found: Made = {
        "P is computed from scores that are not divided by √d": by(in_S=1.0),
        "dS is not multiplied by 1/√d on its way into it": by(in_dS=1.0),
        "1/√d is applied twice on the way into it": by(in_dS=normal**2),
        "P is a softmax of each tile's own, instead of exp(S − L)": by(weights=partial(_softmax_of_tiles, block_k)),
        "D is left out: dS = P ∘ (dP − D)": by(D=np.zeros(())),
        "D is added: dS = P ∘ (dP − D)": by(D=-rows),
        "dS is not multiplied by P": by(through_exp=False),
        "D is summed over the queries instead of the width": by(D=lambda P, dP: (P * dP).sum(-2, keepdims=True)),
        "D is taken from P ∘ dP of one tile after the other, not over all keys": by(
            D=lambda P, dP: _sums_of_tiles(P * dP, block_k)
        ),
        "D is a mean over the width instead of a sum": by(D=rows / dO.shape[-1]),
        "L is the maximum instead of the log-sum-exp, so that P is not normalised": by(
            L=case.scores.max(-1, initial=-np.inf)
        ),
        "one tile's sums replace those before, instead of being added to them": partial(
            _last_tiles, case, block_q, block_k
        ),
    }
    if case.Q.shape == case.V.shape == case.K.shape:
        for other in ("dQ", "dK", "dV"):
            text = f"the gradients come in another order, and this is {other}: the result is (dQ, dK, dV)"
            found[text] = lambda other=other: dict.fromkeys(("dQ", "dK", "dV"), case.want[other])  # type: ignore[misc]
    late = {name: np.roll(case.want[name], block_k, -2) for name in ("dK", "dV")}
    found["dK and dV are written one block of keys too late"] = lambda: case.want | late
    if dO.shape[-1] == dO.shape[-2]:
        found["D is summed over the queries (axis −2) instead of the width (axis −1)"] = by(
            D=(dO * O).sum(-2)[..., None]
        )
    for text, hidden in mask_mistakes(case, block_q, block_k).items():
        where = " in the backward pass" if text == "causal is ignored" else ""
        found[text + where] = by(hidden=hidden)
    return found


def gradients_by_formulas(
    case: Case,
    *,
    in_S: float | None = None,
    in_dS: float | None = None,
    D: Array | Callable[[Array, Array], Array] | None = None,
    L: Array | None = None,
    hidden: npt.NDArray[np.bool_] | None = None,
    through_exp: bool = True,
    weights: Callable[[Array], Array] | None = None,
) -> Results:
    """dQ, dK and dV in float64 from the right O and L, with the mistakes that are asked for."""
    (Q, K, V), dO = case.exact_inputs, numbers(case.dO)
    normal = Q.shape[-1] ** -0.5
    lse = case.want["L"] if L is None else L
    with np.errstate(all="ignore"):
        S = (normal if in_S is None else in_S) * Q @ np.swapaxes(K, -1, -2)
        S = np.where(case.hidden if hidden is None else hidden, -np.inf, S)
        P = weights(S) if weights else np.exp(S - lse[..., None])
        dP = dO @ np.swapaxes(V, -1, -2)
        if D is None:
            D = (dO * case.want["O"]).sum(-1, keepdims=True)
        slopes = D(P, dP) if callable(D) else D
        dS = (normal if in_dS is None else in_dS) * (P if through_exp else 1) * (dP - slopes)
        return {"dQ": dS @ K, "dK": np.swapaxes(dS, -1, -2) @ Q, "dV": np.swapaxes(P, -1, -2) @ dO}


def _tiles(x: Array, block_k: int) -> list[Array]:
    return np.split(x, range(block_k, x.shape[-1], block_k), -1)


def _softmax_of_tiles(block_k: int, S: Array) -> Array:
    powers = [np.exp(tile - tile.max(-1, keepdims=True)) for tile in _tiles(S, block_k)]
    return np.concatenate([np.nan_to_num(each / each.sum(-1, keepdims=True)) for each in powers], -1)


def _sums_of_tiles(products: Array, block_k: int) -> Array:
    sums = [np.broadcast_to(tile.sum(-1, keepdims=True), tile.shape) for tile in _tiles(products, block_k)]
    return np.concatenate(sums, -1)


def _last_tiles(case: Case, block_q: int, block_k: int) -> Results:
    """dQ from the last block of keys alone, dK and dV from the last block of queries alone."""
    first_key = (case.n_keys - 1) // block_k * block_k
    first_query = (case.n_queries - 1) // block_q * block_q
    early_keys, early_queries = np.arange(case.n_keys) < first_key, (np.arange(case.n_queries) < first_query)[:, None]
    made = gradients_by_formulas(case, hidden=case.hidden | early_queries)
    return made | {"dQ": gradients_by_formulas(case, hidden=case.hidden | early_keys)["dQ"]}
