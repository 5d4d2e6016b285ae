"""Inputs of attention, and what comes out of them: exactly, and plainly in the inputs' own precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.testing.attention.reference import Attention, attention, gradients, random_qkv
from labkit.testing.compare import (
    NAN_HINT,
    TOLERANCE,
    Mistakes,
    Tolerance,
    as_mapping,
    assert_close,
    assert_type,
    noted,
)
from labkit.testing.unchanged import copied
from labkit.testing.wording import sizes_of

DTYPES = (np.float16, np.float32, np.float64)
Results = dict[str, npt.NDArray[np.floating]]
"""The output O, the weights P and the log-sum-exps L; with a gradient dO of the output dQ, dK and dV too; by name."""


class Case:
    """One call of attention: its inputs, its results in float64, and what a plain computation of them loses.

    The inputs are arrays, or tensors; these may come with the gradient dO of the output. `mask` (True where a key is
    masked out), `causal` and `scale` are as in `reference.attention`. Inputs may be changed until the results are first
    asked for.
    """

    def __init__(
        self,
        Q: Any,
        K: Any,
        V: Any,
        dO: Any = None,
        *,
        mask: npt.NDArray[np.bool_] | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        self.Q, self.K, self.V, self.dO = Q, K, V, dO
        self.mask, self.causal, self.scale = mask, causal, scale

    @property
    def inputs(self) -> tuple[Any, Any, Any]:
        """Copies of Q, K and V."""
        Q, K, V = copied(self.Q, self.K, self.V)
        return Q, K, V

    @property
    def arguments(self) -> dict[str, Any]:
        """Copies of Q, K, V and, where there is one, the mask, by these names."""
        mask = {} if self.mask is None else {"mask": self.mask.copy()}
        return {**dict(zip("QKV", self.inputs, strict=True)), **mask}

    @property
    def backward_arguments(self) -> dict[str, Any]:
        """What a backward pass on tensors is given, by name: copies of Q, K, V and dO, and the right O and L."""
        O, L = self.forward_result
        return {**self.arguments, "O": O, "L": L, "dO": copied(self.dO)[0]}

    @property
    def forward_result(self) -> tuple[Any, Any]:
        """The right O and L as tensors, in the dtypes in which a forward pass returns them."""
        import torch

        O, L = (torch.from_numpy(self.want[name]).to(self.Q.device) for name in "OL")
        return O.to(self.Q.dtype), L.to(self.precise)

    @property
    def exact_inputs(self) -> tuple[npt.NDArray[np.float64], ...]:
        """Q, K and V in float64."""
        return tuple(map(numbers, self.inputs))

    def sizes(self) -> str:
        """The case in words: shapes, dtypes and options."""
        tensors = {name: getattr(self, name) for name in ("Q", "K", "V", "dO")}
        options = {"mask": self.mask is not None, "causal": self.causal, "scale": self.scale}
        return sizes_of(tensors | {name: value for name, value in options.items() if value not in (False, None)})

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

    @property
    def precise(self) -> Any:
        """The dtype of tensors' L and of sums: float32 for half precision, otherwise that of the inputs."""
        import torch

        return torch.float32 if self.Q.dtype.itemsize == 2 else self.Q.dtype

    @cached_property
    def hidden(self) -> npt.NDArray[np.bool_]:
        """True where a query does not see a key, by the mask or by causality: broadcasts to (..., N_q, N_k)."""
        hidden = later_keys(self.n_queries, self.n_keys, 1 if self.causal else self.n_keys)
        return hidden if self.mask is None else hidden | self.mask

    @cached_property
    def scores(self) -> npt.NDArray[np.float64]:
        """The scores in float64, −inf where a key is hidden."""
        Q, K, _ = self.exact_inputs
        return np.where(self.hidden, -np.inf, self.used_scale * np.einsum("...id,...jd->...ij", Q, K))

    @cached_property
    def want(self) -> Results:
        """What is right, in float64."""
        return self.results()

    @cached_property
    def baseline(self) -> Results:
        """What a plain computation in the inputs' precision gives.

        On tensors: both passes in one tile and in float32, and half precision is rounded at the end of each pass. As
        FlashAttention has it (Dao et al. 2022), D is computed from the rounded O. What float64 loses is what float32
        loses, scaled down.
        """
        if isinstance(self.Q, np.ndarray):
            return _named(
                attention(*self.inputs, mask=self.mask, causal=self.causal, scale=self.scale, dtype=self.Q.dtype)
            )
        made = self._in_one_tile()
        return scaled_down(made, self.want) if self.Q.dtype.itemsize == 8 else made

    @cached_property
    def tolerance(self) -> Tolerance:
        """The error allowed of O, P, L and dV: more for large scores."""
        return TOLERANCE.for_scores(self.scores)

    def tolerance_of(self, name: str) -> Tolerance:
        """The error allowed of one result. In dQ and dK terms cancel, whose rounding errors stay."""
        if name not in ("dQ", "dK"):
            return self.tolerance
        return replace(self.tolerance, largest=self.largest_terms[name])

    @cached_property
    def largest_terms(self) -> dict[str, float]:
        """The largest value of dQ and dK before P dP and P D cancel: their rounding errors stay."""
        Q, K, V = map(np.abs, self.exact_inputs)
        terms = self.used_scale * self.want["P"] * (np.abs(numbers(self.dO)) @ np.swapaxes(V, -1, -2))
        each = {"dQ": terms @ K, "dK": np.swapaxes(terms, -1, -2) @ Q}
        return {name: float(x.max(initial=0)) for name, x in each.items()}

    def reference_of(self, name: str) -> Callable[..., Any]:
        """The function that computes one result."""
        return attention if name in ("O", "P", "L") else gradients

    def results(self, *, hidden: npt.ArrayLike | None = None, scale: float | None = None) -> Results:
        """All results in float64, with other keys hidden, or with another scale."""
        given: dict[str, Any] = {
            "mask": self.hidden if hidden is None else hidden,
            "scale": self.used_scale if scale is None else scale,
        }
        Q, K, V = self.exact_inputs
        made = _named(attention(Q, K, V, **given))
        return made if self.dO is None else made | gradients(Q, K, V, numbers(self.dO), **given)._asdict()

    def check(
        self,
        name: str,
        got: Any,
        mistakes: Mistakes | None = None,
        *,
        called: str = "",
        dtype: Any = None,
        hint: str = "",
        nan_hint: str = "",
    ) -> None:
        """Compare the result `name` with the reference, and name a usual mistake when one fits.

        `called` is what the handout calls the result, if not by the same name. Each of `mistakes` is the value of this
        result, or several results by name, or a function that returns either.
        """
        called = called or name
        if not isinstance(self.Q, np.ndarray):
            assert_type(called, got, type(self.Q), "a tensor")
            got = numbers(got)

        def values() -> dict[str, Any]:
            return {text: _of(value, name) for text, value in as_mapping(mistakes).items()}

        with noted(self.sizes), np.errstate(all="ignore"):
            assert_close(
                called,
                got,
                self.want[name],
                baseline=self.baseline[name],
                tolerance=self.tolerance_of(name),
                reference=self.reference_of(name),
                dtype=dtype,
                mistakes=values,
                hint=hint,
                nan_hint=nan_hint or NAN_HINT,
            )

    def _in_one_tile(self) -> Results:
        """All results of tensors in float32, O and the gradients rounded to the inputs' dtype where that has less."""
        import torch

        dtype, hidden = self.Q.dtype, torch.from_numpy(self.hidden)
        Q, K, V = (x.cpu().float() for x in self.inputs)
        S = (self.used_scale * Q @ K.mT).masked_fill(hidden, -torch.inf)
        O, L = rounded(S.softmax(-1).nan_to_num(0) @ V, dtype), S.logsumexp(-1)  # NaN: a row without any key
        made = {"O": O, "L": L}
        if self.dO is not None:
            dO = self.dO.cpu().float()
            P = torch.exp(S - L.masked_fill(L.isneginf(), 0)[..., None])
            dS = P * (dO @ V.mT - (dO * O).sum(-1, keepdim=True))
            back = (self.used_scale * dS @ K, self.used_scale * dS.mT @ Q, P.mT @ dO)
            made |= {name: rounded(x, dtype) for name, x in zip(("dQ", "dK", "dV"), back, strict=True)}
        return {name: x.numpy() for name, x in made.items()}


def array_case(
    rng: np.random.Generator, *, n: int | None = None, causal: bool = False, masked: bool = False, **sizes: Any
) -> Case:
    """A case of standard-normal arrays. `sizes` are those of `random_qkv`, with `n` for N_q = N_k.

    `masked` hides two keys of five, others for each query and each batch entry, but never the first key.
    """
    Q, K, V = random_qkv(rng, **_all_sizes(n, sizes))
    mask = None
    if masked:
        mask = rng.random((*Q.shape[:-1], K.shape[-2])) < 0.4
        mask[..., 0] = False
    return Case(Q, K, V, causal=causal, mask=mask)


def tensor_case(rng: np.random.Generator, *, causal: bool = False, **sizes: Any) -> Case:
    """A case of standard-normal tensors, with dO; `sizes` are those of `random_tensors`."""
    return Case(*random_tensors(rng, **sizes), causal=causal)


def random_tensors(
    rng: np.random.Generator, *, n: int | None = None, dtype: Any = "float32", device: str = "cpu", **sizes: Any
) -> list[Any]:
    """Standard-normal tensors Q, K, V and dO; `sizes` are those of `random_qkv`, with `n` for N_q = N_k."""
    import torch

    arrays = random_qkv(rng, dtype=np.float64, **_all_sizes(n, sizes))
    dO = rng.standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1]))
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return [torch.from_numpy(x).to(device, dtype) for x in (*arrays, dO)]


def _all_sizes(n: int | None, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"d": 16, **({"n_queries": n} if n else {}), **sizes}


def worked_example() -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """The inputs that handouts work by hand: one query, two keys; the output is 0.6698, the log-sum-exp 1.1079."""
    Q, K, V = (np.array(x, np.float32) for x in ([[1, 0]], [[1, 0], [0, 1]], [[1], [0]]))
    return Q, K, V


def later_keys(n_queries: int, n_keys: int, first: int = 1) -> npt.NDArray[np.bool_]:
    """True where key j comes `first` or more after query i: with 1, what causality hides; (N_q, N_k)."""
    return np.arange(n_keys) >= np.arange(n_queries)[:, None] + first


def numbers(x: Any) -> npt.NDArray[np.float64]:
    """An array or a tensor as an array of float64."""
    return x.detach().cpu().double().numpy() if hasattr(x, "detach") else np.asarray(x, np.float64)


def rounded(x: Any, dtype: Any) -> Any:
    """A tensor of float32 whose numbers are rounded to `dtype`, where that has half precision."""
    return x.to(dtype).float() if dtype.itemsize == 2 else x


def scaled_down(found: Results, exact: Results) -> Results:
    """What computations in float32 lose of `exact`, as if they had been made in float64."""
    shrink = np.finfo(np.float64).eps / np.finfo(np.float32).eps
    return {
        name: np.where(np.isfinite(exact[name]), exact[name] + (x - exact[name]) * shrink, exact[name])
        for name, x in found.items()
    }


def _named(made: Attention) -> Results:
    return {"O": made.output, "P": made.weights, "L": made.lse}


def _of(value: Any, name: str) -> Any:
    def made() -> Any:
        result = value() if callable(value) else value
        return result[name] if isinstance(result, Mapping) else result

    return made
