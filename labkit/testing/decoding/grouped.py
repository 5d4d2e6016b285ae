"""Attention whose query heads share key heads: inputs, what comes out of them, and the mistakes usual in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.cases import later_keys
from labkit.testing.attention.mistakes import scale_mistakes
from labkit.testing.attention.tensor_cases import Case, Results, numbers, rounded, scaled_down
from labkit.testing.attention.tensor_mistakes import lse_mistakes_of
from labkit.testing.attention.tensor_reference import attention
from labkit.testing.compare import as_mapping, assert_close, assert_dtype, assert_type, compare_each

RESULTS = {"o": "O", "lse": "L"}
"""What the handout calls a result → what the reference calls it."""

Made = dict[str, Callable[[], Results]]


class GroupedCase(Case):
    """Inputs of grouped attention; to the reference every query head has its keys and values to itself.

    `given` is what the student is given: K and V with `kv_heads` heads, `group` query heads to each. `causal` counts
    from the bottom right. Sizes are those of `Case`, `batch` the axes before the heads.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        kv_heads: int,
        group: int,
        n_queries: int,
        n_keys: int,
        causal: bool = False,
        batch: tuple[int, ...] = (),
        **sizes: Any,
    ) -> None:
        self.kv_heads, self.group, self.counted_from_the_end = kv_heads, group, causal
        mask = bottom_right(n_queries, n_keys) if causal else None
        heads = (*batch, kv_heads * group)
        super().__init__(rng, n_queries=n_queries, n_keys=n_keys, batch=heads, mask=mask, **sizes)
        self.share(*(x[..., ::group, :, :] for x in (self.K, self.V)))

    @classmethod
    def of_any_sizes(cls, rng: np.random.Generator) -> GroupedCase:
        """A case of sizes drawn at random, causal or not."""
        names = ("kv_heads", "group", "n_queries", "n_keys", "d", "d_v")
        sizes = dict(zip(names, rng.integers((2, 2, 1, 2, 2, 2), (5, 5, 12, 40, 20, 20)).tolist(), strict=True))
        causal = bool(rng.integers(2))
        return GroupedCase(rng, **sizes, causal=causal)

    def share(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Let these be the keys and values, (..., kv_heads, N_k, width)."""
        self.k, self.v = k.contiguous(), v.contiguous()
        self.K, self.V = (x.repeat_interleave(self.group, -3) for x in (self.k, self.v))

    @cached_property
    def want(self) -> Results:
        """o and lse in float64: nothing here goes back."""
        return self.results()

    @cached_property
    def plain(self) -> Results:
        """The results in float32, a half-precision O rounded at the end; what float64 loses is scaled down from it."""
        O, _, L = attention(*self.inputs, mask=self.hidden, dtype=torch.float32)
        made: Results = {"O": rounded(O, self.Q.dtype).numpy(), "L": L.numpy()}
        return scaled_down(made, self.want) if self.Q.dtype == torch.float64 else made

    def results(
        self,
        *,
        hidden: npt.NDArray[np.bool_] | torch.Tensor | None = None,
        scale: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Results:
        """O and L alone, with other keys hidden or with another scale."""
        mask = self.hidden if hidden is None else torch.as_tensor(hidden)
        made = attention(*self.inputs, mask=mask, scale=scale, dtype=dtype)
        return {"O": numbers(made.output), "L": numbers(made.lse)}

    @property
    def given(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v."""
        return self.Q, self.k, self.v

    def check_results(
        self, got: dict[str, Any], mistakes: Made | None = None, *, hint: str = "", nan_hint: str = ""
    ) -> None:
        """Compare o and lse, by these names, and name a usual mistake where one fits."""

        def check(name: str) -> None:
            value, there = got[name], RESULTS[name]
            assert_type(name, value, torch.Tensor, "a tensor")
            made = grouped_mistakes(self) if mistakes is None else mistakes
            usual: dict[str, Any] = {text: partial(_named, results, there) for text, results in made.items()}
            if there == "L":
                usual |= as_mapping(lse_mistakes_of(self))
            with np.errstate(all="ignore"):
                want, plain = self.want[there], self.plain[there]
                told: dict[str, Any] = {"nan_hint": nan_hint} if nan_hint else {}
                number = value.detach().to(torch.float64)
                assert_close(
                    name, number, want, plain=plain, roundings=self.roundings, mistakes=usual, hint=hint, **told
                )
            assert_dtype(name, value, self.precise if name == "lse" else self.Q.dtype)

        compare_each(got, check)

    def check_split(self, got: dict[str, Any], num_splits: int, *, hint: str = "", nan_hint: str = "") -> None:
        """The same of one query a head, whose keys were to be cut into so many parts."""
        for name, x in got.items():
            assert_type(name, x, torch.Tensor, "a tensor")
        n_keys = self.k.shape[-2]
        usual = split_mistakes(self, num_splits) if n_keys and num_splits <= n_keys else grouped_mistakes(self)
        with_queries = {"o": got["o"][..., None, :], "lse": got["lse"][..., None]}
        self.check_results(with_queries, usual, hint=hint, nan_hint=nan_hint)


def one_query(rng: np.random.Generator, **sizes: Any) -> GroupedCase:
    """A case with one query a head, whose axis an answer is not given; two key heads with three queries each."""
    return GroupedCase(rng, n_queries=1, **({"kv_heads": 2, "group": 3, "d": 8} | sizes))


def _named(results: Callable[[], Results], name: str) -> npt.NDArray[np.floating]:
    return results()[name]


def bottom_right(n_queries: int, n_keys: int) -> npt.NDArray[np.bool_]:
    """True where a key is hidden when the last query sees the last key."""
    return later_keys(n_queries, n_keys, 1 + n_keys - n_queries)


def grouped_mistakes(case: GroupedCase) -> Made:
    """Usual mistakes with heads, with where the diagonal lies, and with the scale: what each leads to."""
    n_queries, n_keys = case.Q.shape[-2], case.K.shape[-2]
    found: Made = {
        "query head h reads key head h % H_kv instead of h // group": lambda: _reading(case, _other_heads(case)),
        "every query head reads the first key head": lambda: _reading(
            case, torch.zeros(case.kv_heads * case.group, dtype=torch.int64)
        ),
    }
    if case.counted_from_the_end:
        top_left = later_keys(n_queries, n_keys, 1)
        one_more, one_less = (later_keys(n_queries, n_keys, k + n_keys - n_queries) for k in (2, 0))
        masks = {
            "the diagonal is counted from the top left: here the last query sees the last key": top_left,
            "causal is ignored": np.zeros_like(top_left),
            "the last query sees one key less: its own is one of them": one_less,
            "a query sees one key too many": one_more,
        }
        found |= {
            text: lambda mask=mask: case.results(hidden=mask)  # type: ignore[misc]
            for text, mask in masks.items()
        }
    if n_keys:
        found |= {
            text: lambda scale=scale: case.results(scale=scale)  # type: ignore[misc]
            for text, scale in scale_mistakes(case.arrays).items()
        }
    return found


def split_mistakes(case: GroupedCase, num_splits: int) -> Made:
    """Usual mistakes in merging the parts of a split sequence of keys, besides those of grouping."""
    n_keys = case.K.shape[-2]
    chunk = -(-n_keys // num_splits)
    whole = n_keys // num_splits * num_splits
    tail = torch.arange(n_keys) >= whole

    def parts(merge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], Results]:
        def made() -> Results:
            cuts = [torch.arange(n_keys) // chunk != split for split in range(-(-n_keys // chunk))]
            each = [case.results(hidden=cut[None].expand(case.Q.shape[-2], -1)) for cut in cuts]
            O, L = (torch.from_numpy(np.stack([one[name] for one in each])) for name in ("O", "L"))
            return {"O": merge(O, L).numpy(), "L": np.full_like(case.want["L"], math.nan)}

        return made

    found = grouped_mistakes(case) | {
        "the partial outputs are averaged: each weighs as much as its keys do": parts(lambda O, L: O.mean(0)),
        "the partial outputs are added up": parts(lambda O, L: O.sum(0)),
        "the parts are weighted by their log-sum-exps, not by their exponentials": parts(
            lambda O, L: (L[..., None] * O).sum(0) / L.sum(0)[..., None]
        ),
        "the parts are weighted by exp of the maximum, not of the log-sum-exp": _by_maxima(case, chunk),
    }
    if whole < n_keys:
        found["the keys behind the last full split are dropped"] = lambda: case.results(
            hidden=tail[None].expand(case.Q.shape[-2], -1)
        )
    return found


def _by_maxima(case: GroupedCase, chunk: int) -> Callable[[], Results]:
    def made() -> Results:
        n_keys = case.K.shape[-2]
        scores = torch.from_numpy(case.arrays.scores)
        top, O = [], []
        for start in range(0, n_keys, chunk):
            cut = (torch.arange(n_keys) // chunk != start // chunk)[None].expand(case.Q.shape[-2], -1)
            O.append(torch.from_numpy(case.results(hidden=cut)["O"]))
            top.append(scores[..., start : start + chunk].amax(-1))
        weights = torch.stack(top).softmax(0)
        merged = (weights[..., None] * torch.stack(O)).sum(0)
        return {"O": merged.numpy(), "L": np.full_like(case.want["L"], math.nan)}

    return made


def _other_heads(case: GroupedCase) -> torch.Tensor:
    return torch.arange(case.kv_heads * case.group) % case.kv_heads


def _reading(case: GroupedCase, heads: torch.Tensor) -> Results:
    """The results when query head h reads key head heads[h]."""
    made = attention(case.Q, case.k[..., heads, :, :], case.v[..., heads, :, :], mask=case.hidden)
    return {"O": numbers(made.output), "L": numbers(made.lse)}
