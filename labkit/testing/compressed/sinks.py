"""Attention whose cache holds the first tokens and the last ones: inputs, results by place, usual mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from labkit.testing.attention.reference import orders
from labkit.testing.attention.tensor_cases import Results, numbers
from labkit.testing.attention.tensor_suspects import lse_mistakes
from labkit.testing.compare import assert_close, assert_dtype, assert_type, compare_each, require

Made = dict[str, Callable[[], Results]]


class TwoResults:
    """q, k and v; float64 results o and lse, what float32 makes of them, and how an answer is compared."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def draw(self, rng: np.random.Generator, batch: tuple[int, ...], logit_scale: float, dtype: torch.dtype,
             n_queries: int, n_keys: int, d: int, d_v: int) -> None:  # fmt: skip
        """Standard-normal q (*batch, n_queries, d), k (*batch, n_keys, d) and v (*batch, n_keys, d_v)."""
        sizes = ((n_queries, d), (n_keys, d), (n_keys, d_v))
        drawn = [torch.from_numpy(rng.standard_normal((*batch, *size))) for size in sizes]
        self.q, self.k, self.v = (logit_scale * drawn[0]).to(dtype), drawn[1].to(dtype), drawn[2].to(dtype)

    @property
    def precise(self) -> torch.dtype:
        """The dtype of lse and of sums."""
        return torch.float32 if self.q.dtype.itemsize == 2 else self.q.dtype

    @cached_property
    def want(self) -> Results:
        """o and lse in float64."""
        return self.made()

    @cached_property
    def plain(self) -> dict[str, list[Any]]:
        """What plain computations in float32 get, in several orders; a half-precision o is rounded at the end."""
        half = self.q.dtype if self.q.dtype.itemsize == 2 else torch.float32
        found: dict[str, list[Any]] = {"o": [], "lse": []}
        for results in self.in_float32():
            found["o"].append(torch.from_numpy(results["o"]).to(half).float().numpy())
            found["lse"].append(results["lse"].astype(np.float32))
        if self.q.dtype != torch.float64:
            return found
        shrink = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        return {
            name: [np.where(np.isfinite(exact), exact + (x - np.where(np.isfinite(exact), exact, 0)) * shrink, exact)
                   for x in found[name]]
            for name, exact in self.want.items()
            if name in found
        }  # fmt: skip

    def made(self) -> Results:
        """The results and the rows' largest scores m, in float64; with arguments, those of a suspect."""
        raise NotImplementedError

    def in_float32(self) -> list[Results]:
        """The results in float32, in several orders of rounding."""
        raise NotImplementedError

    def check(self, got: dict[str, Any], suspects: Made, *, hint: str = "", nan_hint: str = "") -> None:
        """Compare o and lse, and name a usual mistake where one fits."""

        def check(name: str) -> None:
            assert_type(name, got[name], torch.Tensor, "a tensor")
            usual: dict[str, Any] = {text: lambda made=made, name=name: made()[name] for text, made in suspects.items()}
            if name == "lse":
                usual |= lse_mistakes(self.want["lse"], self.want["m"])
            told: dict[str, Any] = {"nan_hint": nan_hint} if nan_hint else {}
            endless = bool(got[name].isposinf().any())
            require(not endless, f"{name} is +inf somewhere" + (f"\nUsual cause: {nan_hint}" if nan_hint else ""))
            with np.errstate(all="ignore"):
                value, want = got[name].detach().to(torch.float64), self.want[name]
                assert_close(name, value, want, plain=self.plain[name], suspects=usual, hint=hint, **told)
            assert_dtype(name, got[name], self.precise if name == "lse" else self.q.dtype)

        compare_each(("o", "lse"), check)


class SinkCase(TwoResults):
    """The last queries of a text, whose cache holds the first `num_sinks` tokens and a window, with places by cache."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        window: int,
        num_sinks: int,
        n_queries: int = 5,
        n_keys: int = 20,
        d: int = 8,
        d_v: int = 5,
        batch: tuple[int, ...] = (),
        logit_scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.draw(rng, batch, logit_scale, dtype, n_queries, n_keys, d, d_v)
        self.window, self.num_sinks = window, num_sinks

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the student is given."""
        return self.q, self.k, self.v, self.window, self.num_sinks

    def cache_of(self, query: int, window: int, num_sinks: int, shift: int = 0) -> list[int]:
        """The tokens that a query finds in its cache, in order of age; `shift` moves its position."""
        position = query + shift + self.k.shape[-2] - self.q.shape[-2]
        last = range(max(0, position - window + 1), min(position, self.k.shape[-2] - 1) + 1)
        sinks = range(min(num_sinks, position + 1))
        return sorted({*sinks, *last})

    def made(
        self,
        *,
        window: int | None = None,
        num_sinks: int | None = None,
        shift: int = 0,
        by_text: bool = False,
        unturned: bool = False,
        scale: float | None = None,
        dtype: torch.dtype = torch.float64,
        turn: int = 0,
    ) -> Results:
        """The results query by query, each from its own cache, with the changes that are asked for."""
        window = self.window if window is None else window
        num_sinks = self.num_sinks if num_sinks is None else num_sinks
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        o, lse = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=dtype), torch.full(q.shape[:-1], -torch.inf, dtype=dtype)
        m = lse.clone()
        for i in range(q.shape[-2]):
            seen = self.cache_of(i, window, num_sinks, shift)
            if not seen:
                continue
            order = torch.from_numpy(orders(len(seen))[turn].copy())
            tokens, places = torch.tensor(seen)[order], torch.arange(len(seen))[order]
            own = torch.tensor([len(seen) - 1])
            if by_text:
                places, own = tokens, torch.tensor([i + k.shape[-2] - q.shape[-2]])
            row, keys = q[..., i : i + 1, :], k[..., tokens, :]
            if not unturned:
                row, keys = (turned(x, at) for x, at in ((row, own), (keys, places)))
            scores = (row @ keys.mT)[..., 0, :] * (q.shape[-1] ** -0.5 if scale is None else scale)
            m[..., i], lse[..., i] = scores.amax(-1), scores.logsumexp(-1)
            o[..., i, :] = (scores.softmax(-1)[..., None, :] @ v[..., tokens, :])[..., 0, :]
        return {"o": numbers(o), "lse": numbers(lse), "m": numbers(m)}

    def in_float32(self) -> list[Results]:
        """The results in float32: from each query's own cache, and from one product with all keys, in two ways."""
        return [self.made(dtype=torch.float32, turn=turn) for turn in range(len(orders(1)))] + [
            _by_text_in_float32(self, by_lse) for by_lse in (False, True)
        ]


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions, numbers i and i + d/2 a pair; angles in float64."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _by_text_in_float32(case: SinkCase, by_lse: bool) -> Results:
    """As a right answer may: the window's keys turned by their positions in the text, which lie as far apart."""
    q, k, v = (x.float() for x in (case.q, case.k, case.v))
    text, p = torch.arange(k.shape[-2]), torch.arange(q.shape[-2]) + k.shape[-2] - q.shape[-2]
    hidden = (text > p[:, None]) | ((text <= p[:, None] - case.window) & (text >= case.num_sinks))
    keys, places = turned(k, text), p.clamp_max(case.num_sinks + case.window - 1)
    far, near = turned(q, places) @ keys.mT, turned(q, p) @ keys.mT
    scores = torch.where(text < case.num_sinks, far, near) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse[..., None]) if by_lse else scores.softmax(-1)
    o = weights.masked_fill(lse.isneginf()[..., None], 0) @ v
    return {"o": numbers(o), "lse": numbers(lse)}


def sink_suspects(case: SinkCase) -> Made:
    """Usual mistakes with what a query sees, and with where it lies."""
    window, sinks = case.window, case.num_sinks
    n_queries, n_keys = case.q.shape[-2], case.k.shape[-2]
    found: Made = {
        "positions are those of the text: after tokens have gone, they are places in the cache": lambda: case.made(
            by_text=True
        ),
        "nothing is turned: positions are left out": lambda: case.made(unturned=True),
        "a query sees one key too many: its own is one of the window": lambda: case.made(window=window + 1),
        "the scores are not divided by √d": lambda: case.made(scale=1.0),
    }
    if sinks:
        found["the sinks are evicted: the first tokens stay for good"] = lambda: case.made(num_sinks=0)
        found["all sinks but one are evicted"] = lambda: case.made(num_sinks=1)
        if window > sinks:
            text = "the sinks are counted in the window: they are kept besides it"
            found[text] = lambda: case.made(window=window - sinks)
    if window > 1:
        found["a query sees one key too few: its own is one of the window"] = lambda: case.made(window=window - 1)
    if n_queries != n_keys:
        found["the diagonal is counted from the top left: here the last query sees the last key"] = lambda: case.made(
            shift=n_queries - n_keys
        )
    return found
