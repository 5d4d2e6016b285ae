"""Attention with a learned number in the denominator: inputs, results, usual mistakes."""

from __future__ import annotations

import numpy as np
import torch

from labkit.testing.attention.reference import orders
from labkit.testing.attention.tensor_cases import Results, numbers
from labkit.testing.compressed.sinks import Made, TwoResults


class LogitCase(TwoResults):
    """Attention with a number a head in the denominator."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        heads: int = 3,
        n_queries: int = 5,
        n_keys: int = 20,
        d: int = 8,
        d_v: int = 5,
        batch: tuple[int, ...] = (),
        logit_scale: float = 1.0,
        sink: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.draw(rng, (*batch, heads), logit_scale, dtype, n_queries, n_keys, d, d_v)
        self.sink = torch.from_numpy(sink + rng.standard_normal(heads)).to(dtype)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What the student is given."""
        return self.q, self.k, self.v, self.sink

    def made(
        self,
        *,
        sink: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        in_lse: bool = True,
        scale: float | None = None,
        bare: bool = False,
        dtype: torch.dtype = torch.float64,
        turn: int = 0,
    ) -> Results:
        """The results, with another sink (broadcast to (..., H, N_q, 1)), a value of its own, or an lse without it."""
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        order = torch.from_numpy(orders(k.shape[-2])[turn].copy())
        scores = (q @ k[..., order, :].mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        added = self.sink[:, None, None] if sink is None else sink
        logit = added.to(dtype).expand(*scores.shape[:-1], 1)
        both = torch.cat([scores, logit], -1)
        top = scores.amax(-1, keepdim=True) if bare and k.shape[-2] else both.amax(-1, keepdim=True)
        top = top.masked_fill(top.isneginf(), 0)
        powers = torch.exp(both - top)
        total = powers.sum(-1, keepdim=True)
        o = powers[..., :-1] @ v[..., order, :] + (0 if value is None else powers[..., -1:] * value.to(dtype))
        o = o / total.masked_fill(total == 0, 1)
        lse = (top + total.log())[..., 0] if in_lse else scores.logsumexp(-1)
        return {"o": numbers(o), "lse": numbers(lse), "m": numbers(top[..., 0])}

    def in_float32(self) -> list[Results]:
        """The results in float32, the keys in several orders."""
        turns = range(len(orders(1)))
        return [self.made(dtype=torch.float32, turn=turn) for turn in turns] + [self._by_lse(turn) for turn in turns]

    def _by_lse(self, turn: int) -> Results:
        """As a right answer may: attention as it was, by its own log-sum-exp, and the share that keys have of it."""
        order = torch.from_numpy(orders(self.k.shape[-2])[turn].copy())
        q, k, v = self.q.float(), self.k.float()[..., order, :], self.v.float()[..., order, :]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        lse = scores.logsumexp(-1)
        both = torch.logaddexp(lse, self.sink.float()[:, None])
        share = torch.exp(lse - both).nan_to_num(0)[..., None]
        return {"o": numbers(share * (torch.exp(scores - lse[..., None]) @ v)), "lse": numbers(both)}


def logit_suspects(case: LogitCase) -> Made:
    """Usual mistakes with a sink in the denominator."""
    sink, d = case.sink.double()[:, None, None], case.q.shape[-1]
    nothing = torch.full_like(sink, -torch.inf)
    v = case.v.double()
    found: Made = {
        "lse leaves the sink out: it is the logarithm of the whole denominator": lambda: {
            "o": case.want["o"],
            "lse": case.made(in_lse=False)["lse"],
        },
        "the sink is left out": lambda: case.made(sink=nothing),
        "the sink is scaled by 1/√d: only products of q and k are": lambda: case.made(sink=sink * d**-0.5),
        "the sink itself is added to the denominator: its exponential is": lambda: case.made(sink=sink.log()),
        "one head's sink is used for all": lambda: case.made(sink=sink[:1]),
        "the sink has the wrong sign": lambda: case.made(sink=-sink),
        "the scores are not divided by √d": lambda: case.made(scale=1.0),
        "the maximum is taken from the scores alone, and the sink's power overflows": lambda: case.made(bare=True),
    }
    if case.k.shape[-2]:
        found["the sink is in the numerator too, with the mean of the values: it has no value"] = lambda: case.made(
            value=v.mean(-2, keepdim=True)
        )
        found["the sink is in the numerator too, with the first value: it has no value"] = lambda: case.made(
            value=v[..., :1, :]
        )
        found["the sink's power is added to every number of the numerator: it has no value"] = lambda: case.made(
            value=torch.ones(())
        )
    return found
