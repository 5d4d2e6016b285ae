"""Inputs of attention as tensors, with what the forward and the backward pass make of them, exactly and plainly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.cases import Case as ArrayCase
from labkit.testing.attention.cases import later_keys
from labkit.testing.attention.reference import attention, gradients, random_qkv
from labkit.testing.compare import NAN_HINT, ROUNDINGS, Mistakes, as_mapping, assert_close, assert_type
from labkit.testing.unchanged import copied

RESULTS = ("O", "L", "dQ", "dK", "dV")
Results = dict[str, npt.NDArray[np.floating]]


class Case:
    """Q, K, V and the gradient dO of the output; the results O, L, dQ, dK and dV, by these names.

    `mask`, (N_q, N_k), is True where a key is masked out, `causal` hides later keys besides. Sizes are those of
    `random_qkv`, with `n` for N_q = N_k. Inputs may be changed until the results are first asked for.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        n: int | None = None,
        causal: bool = False,
        mask: npt.NDArray[np.bool_] | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: str = "cpu",
        **sizes: Any,
    ) -> None:
        sizes = {"d": 16, **({"n_queries": n} if n else {}), **sizes}
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        arrays = random_qkv(rng, dtype=np.float64, **sizes)
        dO = rng.standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1]))
        self._take([torch.from_numpy(x).to(device, dtype) for x in (*arrays, dO)], causal, mask)

    @classmethod
    def of(cls, Q: Any, K: Any, V: Any, dO: Any, *, causal: bool = False) -> Case:
        """A case with these inputs: tensors, or lists of numbers in float32."""
        case = cls.__new__(cls)
        case._take([torch.as_tensor(x) for x in (Q, K, V, dO)], causal, None)
        return case

    def _take(self, tensors: list[torch.Tensor], causal: bool, mask: npt.NDArray[np.bool_] | None) -> None:
        self.Q, self.K, self.V, self.dO = tensors
        self.causal, self.mask = causal, mask

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copies of Q, K and V."""
        Q, K, V = copied(self.Q, self.K, self.V)
        return Q, K, V

    @property
    def precise(self) -> torch.dtype:
        """The dtype of L and of sums: float32 for half precision, otherwise that of the inputs."""
        return torch.float32 if self.Q.dtype.itemsize == 2 else self.Q.dtype

    @property
    def arrays(self) -> ArrayCase:
        """The same call of attention in NumPy, in float64: what mistakes are made of."""
        return ArrayCase(*map(numbers, self.inputs), causal=self.causal, mask=self.mask)

    @cached_property
    def hidden(self) -> torch.Tensor:
        """True where a query does not see a key, (N_q, N_k)."""
        n_queries, n_keys = self.Q.shape[-2], self.K.shape[-2]
        hidden = later_keys(n_queries, n_keys, 1 if self.causal else n_keys)
        return torch.from_numpy(hidden if self.mask is None else hidden | self.mask).to(self.Q.device)

    @cached_property
    def want(self) -> Results:
        """What is right, in float64."""
        return self.results()

    @cached_property
    def plain(self) -> Results:
        """The results of both passes in one tile: in float32, and half precision is rounded at the end of each pass.

        As FlashAttention has it (Dao et al. 2022), D is computed from the rounded O. What float64 loses is what float32
        loses, scaled down.
        """
        made = self._in_one_tile()
        return scaled_down(made, self.want) if self.Q.dtype == torch.float64 else made

    @cached_property
    def roundings(self) -> float:
        """Units of rounding of the largest value that are allowed besides: twice its largest score, and eight.

        A score s, a sum, is off by about 2 |s| units, and its power by as many.
        """
        scores = self.arrays.scores
        return ROUNDINGS + 2 * float(np.abs(scores[np.isfinite(scores)]).max(initial=0))

    @cached_property
    def largest_terms(self) -> dict[str, float]:
        """The largest value of dQ and dK before P dP and P D cancel: their rounding errors stay."""
        Q, K, V, dO = (np.abs(numbers(x)) for x in (self.Q, self.K, self.V, self.dO))
        terms = Q.shape[-1] ** -0.5 * self.arrays.want.weights * (dO @ np.swapaxes(V, -1, -2))
        each = {"dQ": terms @ K, "dK": np.swapaxes(terms, -1, -2) @ Q}
        return {name: float(x.max(initial=0)) for name, x in each.items()}

    @cached_property
    def forward_result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The reference's O and L, in the dtypes in which a forward pass returns them."""
        O, L = (torch.from_numpy(self.want[name]).to(self.Q.device) for name in "OL")
        return O.to(self.Q.dtype), L.to(self.precise)

    def results(
        self, *, hidden: npt.NDArray[np.bool_] | torch.Tensor | None = None, scale: float | None = None
    ) -> Results:
        """All results in float64, with other keys hidden or with another scale."""
        mask = torch.as_tensor(self.hidden if hidden is None else hidden).cpu().numpy()
        Q, K, V, dO = map(numbers, (self.Q, self.K, self.V, self.dO))
        made = attention(Q, K, V, mask=mask, scale=scale)
        back = gradients(Q, K, V, dO, mask=mask, scale=scale)
        return dict(zip(RESULTS, (made.output, made.lse, *back), strict=True))

    def check(
        self,
        name: str,
        got: Any,
        mistakes: Mistakes | None = None,
        *,
        hint: str = "",
        nan_hint: str = "",
        called: str = "",
    ) -> None:
        """Compare the result `name` with the reference, and name a usual mistake when one fits.

        `called` is what the handout calls the result, if not by the same name.

        Each of `mistakes` is the value of this result or a function that returns it; or, of several results, a dict or
        a function that returns one.
        """
        assert_type(called or name, got, torch.Tensor, "a tensor")

        def own() -> dict[str, Any]:
            return {text: _named(value, name) for text, value in as_mapping(mistakes).items()}

        got = got.detach().to("cpu", torch.float64)
        with np.errstate(all="ignore"):
            assert_close(
                called or name,
                got,
                self.want[name],
                plain=self.plain[name],
                roundings=self.roundings,
                largest=self.largest_terms[name] if name in ("dQ", "dK") else 0.0,
                mistakes=own,
                hint=hint,
                nan_hint=nan_hint or NAN_HINT,
            )

    def _in_one_tile(self) -> Results:
        """All results in float32, O and the gradients rounded to the inputs' dtype where that has less."""
        dtype, hidden = self.Q.dtype, self.hidden.cpu()
        Q, K, V, dO = (x.cpu().float() for x in (*self.inputs, self.dO))
        scale = Q.shape[-1] ** -0.5
        S = (scale * Q @ K.mT).masked_fill(hidden, -torch.inf)
        O, L = rounded(S.softmax(-1).nan_to_num(0) @ V, dtype), S.logsumexp(-1)  # NaN: a row without any key
        P = torch.exp(S - L.masked_fill(L.isneginf(), 0)[..., None])
        dS = P * (dO @ V.mT - (dO * O).sum(-1, keepdim=True))
        back = (rounded(x, dtype) for x in (scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO))
        return dict(zip(RESULTS, (x.numpy() for x in (O, L, *back)), strict=True))


def numbers(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """The tensor as a NumPy array of float64."""
    return tensor.detach().cpu().double().numpy()


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of float32 whose numbers are rounded to `dtype`, where that has half precision."""
    return x.to(dtype).float() if dtype.itemsize == 2 else x


def scaled_down(found: Results, exact: Results) -> Results:
    """What computations in float32 lose of `exact`, as if they had been made in float64."""
    shrink = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return {name: np.where(np.isfinite(x), x + (found[name] - x) * shrink, x) for name, x in exact.items()}


def _named(value: Any, name: str) -> Any:
    def made() -> Any:
        result = value() if callable(value) else value
        return result[name] if isinstance(result, Mapping) else result

    return made
