"""Attention whose query heads share key heads: inputs, what comes out of them, and the mistakes usual in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import lse_mistakes_of
from labkit.testing.attention.cases import Case, Results, later_keys, numbers, random_tensors
from labkit.testing.attention.mistakes import Made, scale_mistakes
from labkit.testing.attention.reference import attention
from labkit.testing.compare import assert_dtype, assert_type, compare_each

RESULTS = {"o": "O", "lse": "L"}
"""What the handout calls a result → what the reference calls it."""


class GroupedCase(Case):
    """Inputs of grouped attention: K and V have `kv_heads` heads, and Q has `group` heads to each of them.

    `causal` counts from the bottom right. Sizes are those of `Case`, `batch` the axes before the heads.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        kv_heads: int = 2,
        group: int = 3,
        n: int | None = None,
        causal: bool = False,
        batch: tuple[int, ...] = (),
        **sizes: Any,
    ) -> None:
        if n is not None:
            sizes |= {"n_queries": n, "n_keys": n}
        Q, K, V, _ = random_tensors(rng, batch=(*batch, kv_heads * group), **sizes)
        super().__init__(Q, K, V)
        self.share(self.K[..., ::group, :, :], self.V[..., ::group, :, :])
        self.group, self.counted_from_the_end = group, causal
        if causal:
            n_queries, n_keys = self.Q.shape[-2], self.K.shape[-2]
            self.mask = later_keys(n_queries, n_keys, 1 + n_keys - n_queries)

    def share(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Let these be the keys and values, (..., kv_heads, N_k, width)."""
        self.K, self.V = k.contiguous(), v.contiguous()

    @property
    def k(self) -> torch.Tensor:
        """K, by the handout's name."""
        return self.K

    @property
    def v(self) -> torch.Tensor:
        """V, by the handout's name."""
        return self.V

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q, and K and V once more for every query head: what the reference computes with."""
        return self.Q, self.K.repeat_interleave(self.group, -3), self.V.repeat_interleave(self.group, -3)

    def check_results(
        self, got: dict[str, Any], mistakes: Made | None = None, *, hint: str = "", nan_hint: str = ""
    ) -> None:
        """Compare o and lse, by these names, and name a usual mistake where one fits."""

        def check(name: str) -> None:
            def usual() -> dict[str, Any]:
                return grouped_mistakes(self) | (mistakes or {}) | (lse_mistakes_of(self) if name == "lse" else {})

            assert_type(name, got[name], torch.Tensor, "a tensor")
            assert_dtype(name, got[name], self.precise if name == "lse" else self.Q.dtype)
            self.check(RESULTS[name], got[name], usual, called=name, hint=hint, nan_hint=nan_hint)

        compare_each(got, check)


def grouped_mistakes(case: GroupedCase) -> Made:
    """Usual mistakes with heads, with where the diagonal lies, and with the scale: what each leads to."""
    n_queries, n_keys = case.Q.shape[-2], case.K.shape[-2]
    found: Made = {
        "query head h reads key head h % H_kv instead of h // group": partial(_by_remainder, case),
        "query head h is grouped with h % H_kv, and the heads come out group by group": partial(_exchanged, case),
        "the rows of a group's product, query by query, are taken for rows head by head": partial(_by_query, case),
    }
    if case.counted_from_the_end:
        top_left, one_less = (later_keys(n_queries, n_keys, first) for first in (1, n_keys - n_queries))
        text = "the diagonal is counted from the top left: here the last query sees the last key"
        found[text] = partial(case.results, hidden=top_left)
        found["the last query sees one key less: its own is one of them"] = partial(case.results, hidden=one_less)
        rows = np.arange(case.group * n_queries)
        queries = {
            "the rows of a group's product are counted through: its heads have the same queries": rows,
            "the last row of a group's product sees the last key, and each row above it one less: its heads have the "
            "same queries": rows - (case.group - 1) * n_queries,
            "row r of a group's product is taken for query r // group": rows // case.group,
        }
        for text, query in queries.items():
            later = np.arange(n_keys) > query[:, None] + n_keys - n_queries
            of_each_head = np.tile(later.reshape(case.group, n_queries, n_keys), (case.K.shape[-3], 1, 1))
            found[text] = partial(case.results, hidden=of_each_head)
    if n_keys:
        for text, scale in scale_mistakes(case).items():
            found[text] = partial(case.results, scale=scale)
    return found


def _by_remainder(case: GroupedCase) -> Results:
    heads = torch.arange(case.Q.shape[-3]) % case.K.shape[-3]
    made = attention(*map(numbers, (case.Q, case.K[..., heads, :, :], case.V[..., heads, :, :])), mask=case.hidden)
    return {"O": made.output, "L": made.lse}


def _exchanged(case: GroupedCase) -> Results:
    rows = case.Q.unflatten(-3, (case.group, -1)).transpose(-4, -3).reshape(case.Q.shape)
    made = attention(*map(numbers, (rows, *case.inputs[1:])), mask=case.hidden)
    return {"O": made.output, "L": made.lse}


def _by_query(case: GroupedCase) -> Results:
    rows = case.Q.unflatten(-3, (-1, case.group)).transpose(-3, -2).reshape(case.Q.shape)
    made = attention(*map(numbers, (rows, *case.inputs[1:])), mask=case.hidden)
    return {"O": made.output, "L": made.lse}


def split_mistakes(case: GroupedCase, num_splits: int) -> Made:
    """Usual mistakes in merging the parts of a split sequence of keys: what each leads to."""
    n_keys = case.K.shape[-2]
    if not 0 < num_splits <= n_keys:
        return {}
    found: Made = {
        "the partial outputs are averaged: each weighs as much as its keys do": partial(_averaged, case, num_splits),
        "the weighted outputs are added up, and not divided by the sum of the weights": partial(
            _undivided, case, num_splits
        ),
    }
    whole = n_keys // num_splits * num_splits
    if whole < n_keys:
        behind = np.arange(n_keys) >= whole
        found["the keys behind the last full split are dropped"] = partial(case.results, hidden=behind)
    return found


def _averaged(case: GroupedCase, num_splits: int) -> Results:
    """The mean of the parts' outputs, and no log-sum-exp."""
    outputs = [part["O"] for part in _parts(case, num_splits)]
    return {"O": np.mean(outputs, axis=0), "L": np.full_like(case.want["L"], np.nan)}


def _undivided(case: GroupedCase, num_splits: int) -> Results:
    """Outputs with weights that belong to the largest log-sum-exp of the parts."""
    largest = np.max([part["L"] for part in _parts(case, num_splits)], axis=0)
    return case.want | {"O": case.want["O"] * np.exp(case.want["L"] - largest)[..., None]}


def _parts(case: GroupedCase, num_splits: int) -> list[Results]:
    """The results over the keys of each split."""
    n_keys = case.K.shape[-2]
    split_of_key = np.arange(n_keys) // -(-n_keys // num_splits)
    return [case.results(hidden=split_of_key != split) for split in np.unique(split_of_key)]
