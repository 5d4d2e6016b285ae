"""Attention over a cache of latent vectors: inputs, what comes out of them, and the mistakes usual in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.reference import orders
from labkit.testing.attention.tensor_cases import numbers
from labkit.testing.attention.tensor_reference import attention
from labkit.testing.compare import assert_close, assert_dtype, assert_type

Numbers = npt.NDArray[np.floating]


class LatentCase:
    """One query a head over N latent vectors, with the matrices that would make keys and values of them.

    To the reference every head has keys and values of its own, which are made: what the answer does without.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        heads: int = 3,
        n_tokens: int = 20,
        d_n: int = 8,
        d_r: int = 4,
        d_c: int = 12,
        d_v: int = 6,
        batch: tuple[int, ...] = (),
        logit_scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def drawn(*shape: int, factor: float = 1.0) -> torch.Tensor:
            return torch.from_numpy(factor * rng.standard_normal(shape)).to(dtype)

        self.q_nope = drawn(*batch, heads, d_n, factor=logit_scale)
        self.q_rope = drawn(*batch, heads, d_r, factor=logit_scale)
        self.c_kv, self.k_rope = drawn(*batch, n_tokens, d_c), drawn(*batch, n_tokens, d_r)
        self.W_UK, self.W_UV = (drawn(heads, width, d_c, factor=d_c**-0.5) for width in (d_n, d_v))

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What the student is given."""
        return self.q_nope, self.q_rope, self.c_kv, self.k_rope, self.W_UK, self.W_UV

    @property
    def cache_bytes(self) -> int:
        """What the cache weighs: (d_c + d_r) numbers a token."""
        return self.c_kv.nbytes + self.k_rope.nbytes

    @cached_property
    def want(self) -> Numbers:
        """o in float64."""
        return self.made()

    def made(
        self,
        *,
        scale: float | None = None,
        nope: float = 1,
        rope: float = 1,
        k_rope: torch.Tensor | None = None,
        heads: torch.Tensor | None = None,
        value_heads: torch.Tensor | None = None,
    ) -> Numbers:
        """o in float64, with another scale, factors of the parts of the scores, or the matrices of other heads."""
        q_nope, q_rope, c_kv, own_rope, W_UK, W_UV = (x.double() for x in self.arguments)
        W_UK = W_UK if heads is None else W_UK[heads]
        W_UV = W_UV if value_heads is None else W_UV[value_heads]
        keys, values = (torch.einsum("...nc,hwc->...hnw", c_kv, W) for W in (W_UK, W_UV))
        turned = (own_rope if k_rope is None else k_rope.double()).unsqueeze(-3).expand(*keys.shape[:-1], -1)
        Q, K = torch.cat([nope * q_nope, rope * q_rope], -1), torch.cat([keys, turned], -1)
        return numbers(attention(Q.unsqueeze(-2), K, values, scale=scale).output.squeeze(-2))

    @cached_property
    def plain(self) -> list[Numbers]:
        """What plain computations in float32 get, with keys made or not, in several orders; rounded at the end."""
        if not self.c_kv.shape[-2]:
            return [self.want]
        ways = ("keys", "powers", "lse")
        made = [self._in_float32(turn, way) for turn in range(len(orders(1))) for way in ways]
        if self.q_nope.dtype != torch.float64:
            return made
        shrink = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        return [self.want + (x - self.want) * shrink for x in made]

    def _in_float32(self, turn: int, way: str) -> Numbers:
        tokens, latent = (torch.from_numpy(orders(n)[turn].copy()) for n in self.c_kv.shape[-2:])
        q_nope, q_rope, c_kv, k_rope, W_UK, W_UV = (x.float() for x in self.arguments)
        c_kv, k_rope = c_kv[..., tokens, :][..., latent], k_rope[..., tokens, :]
        W_UK, W_UV = W_UK[..., latent], W_UV[..., latent]
        scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
        turned = q_rope @ k_rope.mT
        if way != "keys":
            scores = scale * (torch.einsum("...hn,hnc->...hc", q_nope, W_UK) @ c_kv.mT + turned)
            top = scores.amax(-1, keepdim=True) if way == "powers" else scores.logsumexp(-1, keepdim=True)
            powers = torch.exp(scores - top)
            sums = powers @ c_kv / (powers.sum(-1, keepdim=True) if way == "powers" else 1)
            o = torch.einsum("...hc,hvc->...hv", sums, W_UV)
        else:
            keys, values = (torch.einsum("...nc,hwc->...hnw", c_kv, W) for W in (W_UK, W_UV))
            scores = scale * (torch.einsum("...hw,...hnw->...hn", q_nope, keys) + turned)
            o = torch.einsum("...hn,...hnv->...hv", scores.softmax(-1), values)
        return o.to(self.q_nope.dtype if self.q_nope.dtype.itemsize == 2 else torch.float32).float().numpy()

    def check(self, got: Any, *, hint: str = "", nan_hint: str = "") -> None:
        """Compare o, and name a usual mistake where one fits."""
        assert_type("o", got, torch.Tensor, "a tensor")
        told: dict[str, Any] = {"nan_hint": nan_hint} if nan_hint else {}
        with np.errstate(all="ignore"):
            assert_close(
                "o",
                got.detach().to(torch.float64),
                self.want,
                plain=self.plain,
                suspects=latent_suspects(self),
                hint=hint,
                **told,
            )
        assert_dtype("o", got, self.q_nope.dtype)


def latent_suspects(case: LatentCase) -> dict[str, Callable[[], Numbers]]:
    """Usual mistakes with the scale, the two parts of the scores and the heads' matrices: o that each leads to."""
    heads, d_n = case.q_nope.shape[-2:]
    d_r, d_c = case.q_rope.shape[-1], case.c_kv.shape[-1]
    found: dict[str, Callable[[], Numbers]] = {
        "the scores are not divided by √(d_n + d_r)": lambda: case.made(scale=1.0),
        "the scale leaves d_r out: a key is d_n + d_r wide": lambda: case.made(scale=d_n**-0.5),
        "the scale is taken from the width of the latent vector: it is that of the keys, d_n + d_r": lambda: case.made(
            scale=d_c**-0.5
        ),
        "the scale is taken from d_c + d_r, what the product is wide: the keys are d_n + d_r wide": lambda: case.made(
            scale=(d_c + d_r) ** -0.5
        ),
        "the part of the scores with positions, q_rope · k_rope, is left out": lambda: case.made(rope=0),
        "the part of the scores without positions is left out": lambda: case.made(nope=0),
        "each part of the scores is divided by the root of its own width: the sum is, by √(d_n + d_r)": lambda: (
            case.made(scale=1.0, nope=d_n**-0.5, rope=d_r**-0.5)
        ),
    }
    if heads > 1:
        first = torch.zeros(heads, dtype=torch.int64)
        found["every head uses the first head's W_UK"] = lambda: case.made(heads=first)
        found["every head uses the first head's W_UV"] = lambda: case.made(value_heads=first)
    if d_r <= d_c:
        found["q_rope meets the latent vectors in place of k_rope: positions are not in them"] = lambda: case.made(
            k_rope=case.c_kv[..., :d_r]
        )
    return found
