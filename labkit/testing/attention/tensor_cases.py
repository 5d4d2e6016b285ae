"""Inputs of attention as tensors, with what the forward and the backward pass make of them, exactly and plainly."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.cases import Case as ArrayCase
from labkit.testing.attention.cases import later_keys
from labkit.testing.attention.reference import orders, random_qkv
from labkit.testing.attention.tensor_reference import attention, gradients
from labkit.testing.compare import HALF_SLACK, NAN_HINT, SLACK, Suspects, as_mapping, assert_close, assert_type
from labkit.testing.lazily import Lazily

RESULTS = ("O", "L", "dQ", "dK", "dV")
MANY_SCORES = 2**16
SMALL_SCORE = 30
Results = dict[str, npt.NDArray[np.floating]]


class Case:
    """Q, K, V and the gradient dO of the output; the results O, L, dQ, dK and dV, by these names.

    `mask`, (N_q, N_k), is True where a key is masked out, `causal` hides later keys besides. Sizes are those of
    `random_qkv`, with `n` for N_q = N_k. Inputs may be changed until the results are first asked for.

    Attributes:
        half_slack: how often the loss of a plain computation is allowed in half precision. Twice parts sums in float32
            from others where they are long; in a short one the luck of a last rounding needs more.
    """

    half_slack: float = HALF_SLACK

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        n: int | None = None,
        causal: bool = False,
        mask: npt.NDArray[np.bool_] | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        **sizes: Any,
    ) -> None:
        sizes = {"d": 16, **({"n_queries": n} if n else {}), **sizes}
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
        """Q, K and V."""
        return self.Q, self.K, self.V

    @property
    def precise(self) -> torch.dtype:
        """The dtype of L and of sums: float32 for half precision, otherwise that of the inputs."""
        return torch.float32 if self.Q.dtype.itemsize == 2 else self.Q.dtype

    @property
    def slack(self) -> float:
        """How often the loss of a plain computation is allowed."""
        return self.half_slack if self.Q.dtype.itemsize == 2 else SLACK

    @property
    def arrays(self) -> ArrayCase:
        """The same call of attention in NumPy, in float64: what suspects are made of."""
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
    def plain(self) -> dict[str, Lazily[npt.NDArray[np.floating]]]:
        """What plain implementations get, of which the worst counts: by autograd, and by the formulas in one tile.

        The formulas come with the scale in three places, to base e and 2, where scores are small also with powers that
        nothing is taken from before, and with sums in several orders, of which one will do where so many numbers are
        made that luck evens out. Float64 is the reference: what is lost in it is float32's loss, scaled down.
        """
        is_double = self.Q.dtype == torch.float64
        dtype = torch.float32 if is_double else self.Q.dtype
        still = self._as_it_is()
        makers = [partial(still.results, dtype=dtype)]
        is_bare = self._scores_are_small
        n_scores = math.prod(self.Q.shape[:-1]) * self.K.shape[-2]
        for turn in range(len(orders(1)) if n_scores <= MANY_SCORES else 1):
            for place in ("scores", "queries", "keys"):
                makers += [partial(still._by_formulas, dtype, place, base, turn) for base in (math.e, 2.0)]
                makers += [partial(still._by_formulas, dtype, place, math.e, turn, bare=True)] * is_bare
        made = Lazily(makers)
        found = {name: made.map(itemgetter(name)).map(lambda x: x.astype(np.float32)) for name in RESULTS}
        return {name: scaled_down(found[name], exact) for name, exact in self.want.items()} if is_double else found

    @cached_property
    def forward_result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The reference's O and L, in the dtypes in which a forward pass returns them."""
        O, _, L = attention(*self.inputs, mask=self.hidden)
        return O.to(self.Q.dtype), L.to(self.precise)

    def results(
        self,
        *,
        hidden: npt.NDArray[np.bool_] | torch.Tensor | None = None,
        scale: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Results:
        """All results by autograd in `dtype`, with other keys hidden or with another scale."""
        mask = self.hidden if hidden is None else torch.as_tensor(hidden).to(self.Q.device)
        made = attention(*self.inputs, mask=mask, scale=scale, dtype=dtype)
        back = gradients(*self.inputs, self.dO, mask=mask, scale=scale, dtype=dtype)
        return dict(zip(RESULTS, map(numbers, (made.output, made.lse, *back)), strict=True))

    def check(
        self, name: str, got: Any, suspects: Suspects | None = None, *, hint: str = "", nan_hint: str = ""
    ) -> None:
        """Compare the result `name` with the reference, and name a usual mistake when one fits.

        Each of `suspects` is the value of this result or a function that returns it; or, of several results, a dict or
        a function that returns one.
        """
        assert_type(name, got, torch.Tensor, "a tensor")
        own = lambda: {text: _named(value, name) for text, value in as_mapping(suspects).items()}  # noqa: E731
        got = got.detach().to("cpu", torch.float64)
        with np.errstate(all="ignore"):
            assert_close(
                name,
                got,
                self.want[name],
                plain=self.plain[name],
                slack=self.slack,
                suspects=own,
                hint=hint,
                nan_hint=nan_hint or NAN_HINT,
            )

    def _as_it_is(self) -> Self:
        """A copy with the inputs that the results are of: what is made later must not be made of changed ones."""
        still = copy.copy(self)
        still.__dict__["want"] = self.want
        still.Q, still.K, still.V, still.dO = (x.clone() for x in (*self.inputs, self.dO))
        return still

    @property
    def _scores_are_small(self) -> bool:
        Q, K = (torch.linalg.vector_norm(x.double(), dim=-1).max() for x in (self.Q, self.K))
        return float(Q * K) * self.Q.shape[-1] ** -0.5 < SMALL_SCORE

    def _by_formulas(self, dtype: torch.dtype, place: str, base: float, turn: int, bare: bool = False) -> Results:
        """All results in one tile; the gradients from the true O and L, or from those of another order of rounding.

        The scores of a backward pass are not rounded as those were that its L comes from, and every weight is off by
        the difference.

        `bare` powers are those of the scores as they are: no maximum is subtracted from them, and L's power is a factor
        of dO and D.
        """
        precise = self.precise if dtype == self.Q.dtype else dtype
        lengths = (*self.Q.shape[-2:], *self.V.shape[-2:])
        queries, wide, keys, deep = (torch.from_numpy(orders(n)[turn].copy()) for n in lengths)
        Q, K, V, dO = (x.cpu().to(dtype).to(precise) for x in (*self.inputs, self.dO))
        Q, K = Q[..., queries, :][..., wide], K[..., keys, :][..., wide]
        V, dO = V[..., keys, :][..., deep], dO[..., queries, :][..., deep]
        scale, per_e = Q.shape[-1] ** -0.5, 1 / math.log(base)
        exp = torch.exp2 if base == 2 else torch.exp
        factors = {name: scale * per_e if name == place else 1.0 for name in ("scores", "queries", "keys")}
        hidden = self.hidden.cpu()[queries][:, keys]

        def scores(Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
            products = (factors["queries"] * Q) @ (factors["keys"] * K).mT
            return (factors["scores"] * products).masked_fill(hidden, -torch.inf)

        S = scores(Q, K)
        m = S.amax(-1, keepdim=True)
        m = torch.zeros_like(m) if bare else m.masked_fill(m.isneginf(), 0)
        l = exp(S - m).sum(-1, keepdim=True)
        made = {"O": exp(S - m) / l.masked_fill(l == 0, 1) @ V, "L": (m + l.log() * per_e) / per_e}
        if turn == 0 and base != 2:
            O, L = (torch.from_numpy(self.want[name]).to(kind) for name, kind in (("O", dtype), ("L", precise)))
            O, L = O[..., queries, :][..., deep], L[..., queries, None]
        else:
            others = exp(scores(Q.flip(-1), K.flip(-1)) - m).sum(-1, keepdim=True)
            O, L = made["O"].to(dtype), (m + others.log() * per_e) / per_e
        D, L = (dO * O.to(precise)).sum(-1, keepdim=True), torch.where(L.isneginf(), 0, L)
        if bare:
            P, share = exp(S), exp(-L)
            D, dO = D * share, dO * share
        else:
            P = exp(S - L * per_e)
        dS = P * (dO @ V.mT - D)
        back = {"dQ": scale * dS @ K, "dK": scale * dS.mT @ Q, "dV": P.mT @ dO}
        made |= {name: x.to(dtype) for name, x in back.items()}
        rows = {"O": queries, "L": queries, "dQ": queries, "dK": keys, "dV": keys}
        columns = {"O": deep, "dQ": wide, "dK": wide, "dV": deep}
        made = {name: x[..., _inverse(rows[name]), :] for name, x in made.items()}
        made = {name: x[..., _inverse(columns[name])] if name in columns else x[..., 0] for name, x in made.items()}
        return {name: numbers(x.to(dtype) if name == "O" else x) for name, x in made.items()}


def numbers(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """The tensor as a NumPy array of float64."""
    return tensor.detach().cpu().double().numpy()


def scaled_down(found: Lazily[Any], exact: npt.NDArray[np.floating]) -> Lazily[Any]:
    """What computations in float32 lose of `exact`, as if they had been made in float64."""
    shrink = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return found.map(lambda x: exact + (x - exact) * shrink)


def strided(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers, laid out as (batch, N, heads, d) tensors that are seen as (batch, heads, N, d)."""
    return [x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in tensors]


def _inverse(order: torch.Tensor) -> torch.Tensor:
    return torch.argsort(order)


def _named(value: Any, name: str) -> Any:
    def made() -> Any:
        result = value() if callable(value) else value
        return result[name] if isinstance(result, Mapping) else result

    return made
