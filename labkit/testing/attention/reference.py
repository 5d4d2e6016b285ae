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


def orders(width: int) -> list[npt.NDArray[np.intp]]:
    """Orders in which a sum over `width` numbers may run: as they stand, from the middle, and backwards."""
    natural = np.arange(width)
    return [natural, np.roll(natural, width // 2), natural[::-1]]


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
