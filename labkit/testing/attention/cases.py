"""Inputs of attention as NumPy arrays, and what comes out of them: exactly, and plainly in their own precision."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.testing.attention.reference import Attention, attention, random_qkv
from labkit.testing.compare import NAN_HINT, ROUNDINGS, Mistakes, as_mapping, assert_close
from labkit.testing.unchanged import copied

DTYPES = (np.float16, np.float32, np.float64)


class Case:
    """One call of attention: its inputs, its results in float64, and what plain computations of them lose.

    `mask` (True where a key is masked out), `causal` and `scale` are as in `reference.attention`. Inputs may be changed
    until the results are first asked for.
    """

    def __init__(
        self,
        Q: npt.NDArray,
        K: npt.NDArray,
        V: npt.NDArray,
        *,
        mask: npt.NDArray | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        self.Q, self.K, self.V = Q, K, V
        self.mask, self.causal, self.scale = mask, causal, scale

    @classmethod
    def drawn(
        cls,
        rng: np.random.Generator,
        *,
        n: int | None = None,
        causal: bool = False,
        masked: bool = False,
        **sizes: Any,
    ) -> Case:
        """A case with standard-normal inputs. `sizes` are those of `random_qkv`, with `n` for N_q = N_k.

        `masked` hides two keys of five, others for each query and each batch entry, but never the first key.
        """
        sizes = {"d": 16, **({"n_queries": n} if n else {}), **sizes}
        Q, K, V = random_qkv(rng, **sizes)
        mask = None
        if masked:
            mask = rng.random((*Q.shape[:-1], K.shape[-2])) < 0.4
            mask[..., 0] = False
        return cls(Q, K, V, causal=causal, mask=mask)

    @property
    def inputs(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Copies of Q, K and V."""
        Q, K, V = copied(self.Q, self.K, self.V)
        return Q, K, V

    @property
    def arguments(self) -> dict[str, npt.NDArray]:
        """Copies of Q, K, V and, where there is one, the mask, by these names."""
        mask = {} if self.mask is None else {"mask": self.mask.copy()}
        return {**dict(zip("QKV", self.inputs, strict=True)), **mask}

    @property
    def n_queries(self) -> int:
        """N_q."""
        return self.Q.shape[-2]

    @property
    def n_keys(self) -> int:
        """N_k."""
        return self.K.shape[-2]

    @property
    def used_scale(self) -> float:
        """The scale given, or 1/√d."""
        return self.Q.shape[-1] ** -0.5 if self.scale is None else float(self.scale)

    @cached_property
    def hidden(self) -> npt.NDArray[np.bool_]:
        """True where a query does not see a key, by the mask or by causality: broadcasts to (..., N_q, N_k)."""
        hidden = later_keys(self.n_queries, self.n_keys, 1 if self.causal else self.n_keys)
        return hidden if self.mask is None else hidden | self.mask

    @cached_property
    def scores(self) -> npt.NDArray[np.float64]:
        """The scores in float64, −inf where a key is hidden."""
        products = np.einsum("...id,...jd->...ij", self.Q.astype(float), self.K.astype(float))
        return np.where(self.hidden, -np.inf, self.used_scale * products)

    @cached_property
    def want(self) -> Attention:
        """What is right."""
        return self.other()

    @cached_property
    def plain(self) -> Attention:
        """What a plain computation in the inputs' precision gives."""
        return attention(*self.inputs, mask=self.mask, causal=self.causal, scale=self.scale, dtype=self.Q.dtype)

    def roundings(self, part: str) -> float:
        """How many units of rounding of the largest value `part` may be off besides.

        A score s is off by up to eps × |s|, here and in the reference, and exp(s) by this share of itself. The
        log-sum-exp is not: it is as large as the scores.
        """
        largest = np.abs(self.scores[np.isfinite(self.scores)]).max(initial=0)
        return ROUNDINGS + (0 if part == "lse" else 2 * float(largest))

    def other(self, *, hidden: npt.ArrayLike | None = None, scale: float | None = None) -> Attention:
        """The results in float64 with other keys hidden, or with another scale."""
        hidden = self.hidden if hidden is None else hidden
        return attention(*self.inputs, mask=hidden, scale=self.used_scale if scale is None else scale)

    def check(
        self,
        name: str,
        got: Any,
        part: str = "output",
        *,
        mistakes: Mistakes | None = None,
        hint: str = "",
        nan_hint: str = "",
        dtype: Any = None,
    ) -> None:
        """Compare one result, `part` of the reference, and name a usual mistake when one fits.

        Each of `mistakes` is a function that returns an Attention, or the value of this result.
        """
        assert_close(
            name,
            got,
            getattr(self.want, part),
            plain=getattr(self.plain, part),
            roundings=self.roundings(part),
            dtype=dtype,
            mistakes=lambda: {text: _part_of(value, part) for text, value in as_mapping(mistakes).items()},
            hint=hint,
            nan_hint=nan_hint or NAN_HINT,
        )


def worked_example() -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """The inputs that handouts work by hand: one query, two keys; the output is 0.6698, the log-sum-exp 1.1079."""
    Q, K, V = (np.array(x, np.float32) for x in ([[1, 0]], [[1, 0], [0, 1]], [[1], [0]]))
    return Q, K, V


def later_keys(n_queries: int, n_keys: int, first: int = 1) -> npt.NDArray[np.bool_]:
    """True where key j comes `first` or more after query i: with 1, what causality hides; (N_q, N_k)."""
    return np.arange(n_keys) >= np.arange(n_queries)[:, None] + first


def _part_of(value: Any, part: str) -> Any:
    def made() -> Any:
        with np.errstate(all="ignore"):
            result = value() if callable(value) else value
        return getattr(result, part) if isinstance(result, Attention) else result

    return made
