"""Inputs of linear attention, what comes out of them exactly and in their own precision, and the usual mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.reference import random_qkv
from labkit.testing.compare import Suspects, assert_close, assert_type

AGREEMENT = 1e-10
"""How far apart two routes may be in float64."""
Map = Callable[[torch.Tensor], torch.Tensor]
NOT_POSITIVE = "0/0: the weights are above 0 when φ is, and eps belongs in the divisor"


def numbers(tensor: torch.Tensor) -> npt.NDArray:
    """The tensor as a NumPy array."""
    return tensor.detach().cpu().numpy()


def mapped(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The feature map of each, without overflow in the exponential or in its gradient."""
    return tuple(torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in tensors)


def weights_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The (N_q, N_k) weights of linear attention, before any division."""
    phi_q, phi_k = mapped(q, k)
    return phi_q @ phi_k.mT


def divided(
    weights: torch.Tensor,
    v: torch.Tensor,
    eps: float,
    numerator: torch.Tensor | None = None,
    divisor: torch.Tensor | None = None,
) -> torch.Tensor:
    """Linear attention from its weights, each times a factor; None where every key is seen."""
    seen = weights if numerator is None else weights * numerator
    total = (seen if divisor is None else weights * divisor).sum(-1, keepdim=True)
    return seen @ v / (total + eps)


class LinearCase:
    """Inputs, and what comes out of them, exactly and in float32."""

    def __init__(
        self,
        rng: np.random.Generator,
        n: int,
        d: int,
        d_v: int,
        batch: tuple[int, ...] = (),
        *,
        causal: bool = True,
        eps: float = 1e-6,
        n_keys: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        arrays = random_qkv(rng, n_queries=n, n_keys=n_keys, d=d, d_v=d_v, batch=batch, dtype=np.float64)
        self.q, self.k, self.v = (torch.from_numpy(x).to(dtype) for x in arrays)
        self.eps, self.causal = eps, causal
        ones = torch.ones(n, n_keys or n, dtype=torch.float64)
        self.all = ones
        self.seen = ones.tril() if causal else ones

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v."""
        return self.q, self.k, self.v

    @property
    def exact(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The inputs in float64."""
        return self.q.double(), self.k.double(), self.v.double()

    @cached_property
    def want(self) -> npt.NDArray:
        """What is right, in float64."""
        return numbers(self.by_weights(*self.exact))

    @cached_property
    def plain(self) -> npt.NDArray | list[npt.NDArray]:
        """What correct computations in the inputs' precision give, in several orders of rounding."""
        if self.q.dtype == torch.float64:
            return self.want + AGREEMENT / 2
        q, k, v = self.inputs
        seen = self.seen.to(q.dtype)
        backwards = divided(weights_of(q.flip(-1), k.flip(-1, -2)), v.flip(-2), self.eps, seen.flip(-1))
        return [numbers(self.by_weights(q, k, v)), numbers(backwards), self._by_partial_sums()]

    def by_weights(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """What is right for such q, k and v, in their precision and with a graph."""
        return divided(weights_of(q, k), v, self.eps, self.seen.to(q.dtype))

    def _by_partial_sums(self) -> npt.NDArray:
        """Every sum over the keys one after the other, in the inputs' precision, as states are added up."""
        q, k, v = (numbers(x) for x in self.inputs)
        weights = numbers(weights_of(self.q, self.k)) * numbers(self.seen).astype(q.dtype)
        total = np.zeros((*weights.shape[:-1], v.shape[-1]), q.dtype)
        divisor = np.zeros((*weights.shape[:-1], 1), q.dtype)
        for j in range(k.shape[-2]):
            total += weights[..., j, None] * v[..., None, j, :]
            divisor += weights[..., j, None]
        return total / (divisor + q.dtype.type(self.eps))

    def other(self, *masks: torch.Tensor, eps: float | None = None, **maps: Any) -> Callable[[], npt.NDArray]:
        """What comes out with other factors, another eps or other feature maps."""
        masks = masks or (self.seen,)
        return lambda: self._with(*masks, eps=self.eps if eps is None else eps, **maps)

    def _with(
        self,
        numerator: torch.Tensor,
        divisor: torch.Tensor | None = None,
        *,
        eps: float,
        map_q: Map = lambda x: mapped(x)[0],
        map_k: Map = lambda x: mapped(x)[0],
    ) -> npt.NDArray:
        q, k, v = self.exact
        return numbers(divided(map_q(q) @ map_k(k).mT, v, eps, numerator, divisor))

    def suspects(self, chunk: int | None = None) -> Suspects:
        """Usual mistakes and what each leads to."""
        found = {
            "φ is left out": self.other(map_q=_same, map_k=_same),
            "φ is not applied to k": self.other(map_k=_same),
            "φ is not applied to q": self.other(map_q=_same),
            "φ is elu, without the + 1": self.other(map_q=_elu, map_k=_elu),
            "φ is applied twice to k": self.other(map_k=lambda x: mapped(*mapped(x))[0]),
            "the output is not divided by the sum of the weights": self._not_divided,
            "φ(k) is summed over d in place of the keys": self._summed_over_d,
        } | self._eps_suspects()
        if self.causal:
            found |= {
                "every query sees every key: that is the bidirectional form": self.other(self.all),
                "the sum of the weights is over all keys: the divisor must be causal too": self.other(
                    self.seen, self.all
                ),
                "a query does not see the key of its own position: j ≤ i": self.other(self.all.tril(-1)),
                "the divisor lacks the query's own key: j ≤ i there too": self.other(self.seen, self.all.tril(-1)),
                "a query sees one key too many, j ≤ i + 1": self.other(self.all.tril(1)),
            }
        return found | (self._chunk_suspects(chunk) if chunk else {})

    def _eps_suspects(self) -> dict[str, Any]:
        def added(form: Callable[..., torch.Tensor]) -> Callable[[], npt.NDArray]:
            def value() -> npt.NDArray:
                q, k, v = self.exact
                weights = weights_of(q, k) * self.seen
                total = weights.sum(-1, keepdim=True)
                widths = mapped(q)[0].sum(-1, keepdim=True)
                return numbers(form(weights @ v, total, widths))

            return value

        e = self.eps
        return {
            "eps is left out, or is 1e-6 whatever is asked for": self.other(eps=0.0),
            "eps is added twice": self.other(eps=2 * e),
            "eps is a floor of the divisor, not added to it": added(lambda o, t, _w: o / t.clamp(min=e)),
            "eps is added to the quotient, not to the divisor": added(lambda o, t, _w: o / t + e),
            "eps is added to each number of Σφ(k), so that it is multiplied by φ(q)": added(
                lambda o, t, w: o / (t + e * w)
            ),
            "eps is added to every weight": added(lambda o, t, _w: o / (t + e * self.seen.sum(-1, keepdim=True))),
        }

    def _chunk_suspects(self, chunk: int) -> dict[str, Any]:
        n = len(self.seen)
        block = torch.arange(n) // chunk
        later, here = block[:, None] - block, (block[:, None] == block).double()
        lagging = self.seen * (later != 1)
        own_twice = self.seen + here
        found = {
            "keys of earlier chunks are lost: the state is not carried on": self.seen * here,
            "the chunk just before is missing from the state: the state lags by one chunk": lagging,
            "the chunk's own keys are in the state already, and so count twice": own_twice,
            "within a chunk nothing is masked": (later >= 0).double(),
            "the state holds the chunk before and none of the earlier ones": self.seen * (later <= 1),
            "within a chunk a query does not see its own key": self.all.tril(-1),
        }
        made = {text: self.other(mask) for text, mask in found.items()}
        made |= {f"in the divisor, {text}": self.other(self.seen, mask) for text, mask in found.items()}
        made |= {f"in the numerator, {text}": self.other(mask, self.seen) for text, mask in found.items()}
        return made

    def _not_divided(self) -> npt.NDArray:
        q, k, v = self.exact
        return numbers((weights_of(q, k) * self.seen) @ v)

    def _summed_over_d(self) -> npt.NDArray:
        q, k, v = self.exact
        phi_q, phi_k = mapped(q, k)
        weights = phi_q @ phi_k.mT * self.seen
        return numbers(weights @ v / (phi_q.sum(-1, keepdim=True) * phi_k.sum() + self.eps))

    def check(
        self, name: str, got: Any, *, chunk: int | None = None, hint: str = "", nan_hint: str = NOT_POSITIVE
    ) -> None:
        """Compare an output with the reference."""
        assert_type(name, got, torch.Tensor, "a tensor")
        with np.errstate(all="ignore"):
            assert_close(name, got, self.want, plain=self.plain, dtype=self.q.dtype, suspects=self.suspects(chunk),
                         hint=hint, nan_hint=nan_hint)  # fmt: skip


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _elu(x: torch.Tensor) -> torch.Tensor:
    return mapped(x)[0] - 1
