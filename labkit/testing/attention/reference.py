"""Attention computed plainly in a chosen precision: float64 to compare with, the input's own to set the tolerance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Attention(NamedTuple):
    """Everything attention makes: `output (..., N_q, d_v)`, `weights (..., N_q, N_k)`, `lse (..., N_q)`."""

    output: npt.NDArray[np.floating]
    weights: npt.NDArray[np.floating]
    lse: npt.NDArray[np.floating]


def attention(
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    V: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Attention:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1), every step in `dtype`.

    `Q (..., N_q, d)`, `K (..., N_k, d)`, `V (..., N_k, d_v)`, leading axes broadcast. `mask`, broadcast to
    `(..., N_q, N_k)`, is True where a key is masked out; `causal` masks key j from query i when j > i. The scale is
    1/√d unless given. A row with every key masked has weights and output 0 and log-sum-exp −inf.
    """
    precision: np.dtype[Any] = np.dtype(dtype)
    q, k, v = (np.asarray(x).astype(precision) for x in (Q, K, V))
    zero, one, minus_inf = (precision.type(number) for number in (0, 1, -np.inf))
    factor = precision.type(q.shape[-1] ** -0.5 if scale is None else scale)
    logits = factor * np.einsum("...id,...jd->...ij", q, k, optimize=True)
    hidden = np.zeros(logits.shape[-2:], dtype=bool)
    if causal:
        hidden = np.triu(~hidden, 1)
    if mask is not None:
        hidden = hidden | np.asarray(mask, dtype=bool)
    logits = np.where(hidden, minus_inf, logits)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    finite_top = np.where(np.isfinite(top), top, zero)
    powers = np.exp(logits - finite_top)
    mass = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(mass > 0, mass, one)
    output = np.einsum("...ij,...jv->...iv", weights, v, optimize=True)
    with np.errstate(divide="ignore"):
        lse = (finite_top + np.log(mass))[..., 0]
    return Attention(output, weights, lse)


class Gradients(NamedTuple):
    """Gradients of the loss, each of the shape of what it is the gradient of."""

    dQ: npt.NDArray[np.floating]
    dK: npt.NDArray[np.floating]
    dV: npt.NDArray[np.floating]


def gradients(
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    V: npt.ArrayLike,
    dO: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Gradients:
    """The gradients of the sum of `output ∘ dO`, `dO (..., N_q, d_v)`, in float64 (Dao et al. 2022, appendix B.2).

    Q, K and V have the same leading axes; the other arguments are those of `attention`.
    """
    q, k, v, d_out = (np.asarray(x, dtype=np.float64) for x in (Q, K, V, dO))
    P = attention(q, k, v, mask=mask, causal=causal, scale=scale).weights
    dP = d_out @ np.swapaxes(v, -1, -2)
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return Gradients(dS @ k, np.swapaxes(dS, -1, -2) @ q, np.swapaxes(P, -1, -2) @ d_out)


def gradients_with_penalty(
    Q: npt.NDArray, K: npt.NDArray, V: npt.NDArray, dO: npt.NDArray, *, mask: npt.ArrayLike | None = None
) -> tuple[Gradients, Gradients]:
    """The gradients of the sum of `output ∘ dO` and of the squares of its own gradients; and those without the squares.

    The squares of gradients g have the gradient 2 H g, and H g is how g changes along g: a central difference, right
    to about nine digits.
    """
    alone = gradients(Q, K, V, dO, mask=mask)
    step = 1e-5 / max(float(np.abs(each).max()) for each in alone)

    def moved(by: float) -> Gradients:
        q, k, v = (x + by * g for x, g in zip((Q, K, V), alone, strict=True))
        return gradients(q, k, v, dO, mask=mask)

    ahead, behind = moved(step), moved(-step)
    penalty = [(a - b) / step for a, b in zip(ahead, behind, strict=True)]
    return Gradients(*(g + more for g, more in zip(alone, penalty, strict=True))), alone


def random_qkv(
    rng: np.random.Generator,
    *,
    n_queries: int,
    n_keys: int | None = None,
    d: int,
    d_v: int | None = None,
    batch: tuple[int, ...] = (),
    dtype: npt.DTypeLike = np.float32,
    logit_scale: float = 1.0,
) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """Standard-normal `Q (*batch, n_queries, d)`, `K (*batch, n_keys, d)` and `V (*batch, n_keys, d_v)`.

    `logit_scale` multiplies Q: 1 gives logits of about ±3, 30 gives logits at which `exp` overflows float32.
    """
    n_keys = n_queries if n_keys is None else n_keys
    d_v = d if d_v is None else d_v
    Q = logit_scale * rng.standard_normal((*batch, n_queries, d))
    K = rng.standard_normal((*batch, n_keys, d))
    V = rng.standard_normal((*batch, n_keys, d_v))
    return Q.astype(dtype), K.astype(dtype), V.astype(dtype)
