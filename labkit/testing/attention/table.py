"""The table of cases that every attention must get right: names, sizes, options, and the usual cause of an error.

A lab's suite runs one test over it:

    @pytest.mark.parametrize("row", attention_cases("full", "causal"))
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)  # Q, K and V as the row says, and what comes out of them in float64
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

OVERFLOW = "exp overflows: no score may enter exp without the row's maximum, or an L above it, taken from it"
FAR_BELOW = "the maximum must be the row's own, and it may be far below 0: a running maximum starts at −inf"
SHORT_SUMS = "scores or sums are kept in half precision: keep them in float32 and convert once, at the end"
TOP_LEFT = "query i sees the keys j ≤ i, whatever the lengths"
HALF = ("float16", "bfloat16")

VARIANTS: Mapping[str, Mapping[str, Any]] = {"full": {}, "causal": {"causal": True}, "masked": {"masked": True}}
"""Variant → the arguments of a case that it adds."""


@dataclass(frozen=True)
class Row:
    """One row: how its inputs are drawn and changed, and what usually causes an error in it alone, or a NaN.

    `sizes` are those of `random_qkv`, with `n` for N_q = N_k, and `causal` or `masked`.
    """

    sizes: Mapping[str, Any]
    change: Callable[[Any], None] = lambda case: None
    hint: str = ""
    nan_hint: str = ""
    kind: str = "exact"
    variants: Collection[str] = field(default=tuple(VARIANTS))

    def draw(self, make: Callable[..., Any], rng: np.random.Generator) -> Any:
        """The case that `make(rng, **sizes)` gives, changed as the row says."""
        case = make(rng, **{name: size(rng) if callable(size) else size for name, size in self.sizes.items()})
        self.change(case)
        return case


def attention_cases(
    *variants: str,
    dtypes: Collection[str] = ("float16", "bfloat16", "float32", "float64"),
    sums: str = "float32",
    diagonal: str = TOP_LEFT,
    only: Collection[str] = (),
) -> list[Any]:
    """All rows for these `VARIANTS`, as pytest's parameters: named, and marked with their kind where it is not exact.

    Args:
        variants: names of `VARIANTS`; rows of only some variants come once, without a variant's name.
        dtypes: what the inputs' dtype may be.
        sums: "float32" where sums of half precision are kept in float32, "own" where they may be in the inputs' dtype.
        diagonal: the hint of causal rows with N_q ≠ N_k: which query sees which keys.
        only: the names of the rows to take, where a call is slow or not every row applies; all of them unless given.

    Raises:
        ValueError: there is no row of a name in `only`.
    """
    rows: list[tuple[str, Row]] = []
    for name, row in {**dict(_shapes()), **dict(_numbers()), **dict(_precisions(dtypes, sums))}.items():
        for variant in (each for each in variants if each in row.variants):
            options = VARIANTS[variant]
            hint, nan_hint = row.hint, row.nan_hint
            if "causal" in options and "n_queries" in row.sizes and hint:
                hint = diagonal
            if options:  # a hidden key may have leaked as well
                hint, nan_hint = ("" if each == OVERFLOW else each for each in (hint, nan_hint))
            named = f"{name}-{variant}" if len(row.variants) > 1 and len(variants) > 1 else name
            rows.append((named, replace(row, sizes={**row.sizes, **options}, hint=hint, nan_hint=nan_hint)))
    if absent := set(only) - {name for name, _ in rows}:
        raise ValueError(f"no rows {', '.join(sorted(absent))}: there are {', '.join(name for name, _ in rows)}")
    return [
        pytest.param(row, id=name, marks=[] if row.kind == "exact" else getattr(pytest.mark, row.kind))
        for name, row in rows
        if not only or name in only
    ]


def mismatched_shapes(Q: Any, K: Any, V: Any, *rest: Any) -> list[tuple[tuple[Any, ...], str, list[str]]]:
    """Calls that must be refused, for `assert_refused`: arguments, when that is, and the shapes to be named."""
    narrow, short = K[..., :-1], V[..., :-1, :]
    return [
        ((Q, narrow, V, *rest), "when Q and K differ in d", [str(tuple(x.shape)) for x in (Q, narrow)]),
        ((Q, K, short, *rest), "when K and V differ in N_k", [str(tuple(x.shape)) for x in (K, short)]),
    ]


def _shapes() -> Iterator[tuple[str, Row]]:
    for n in (63, 129, 2):
        yield f"N{n}", Row({"n": n, "d": 17})
    for i in (1, 2, 3):
        yield f"random_sizes{i}", Row(dict.fromkeys(("n_queries", "n_keys", "d", "d_v"), _some))
    for n_queries, n_keys in ((5, 129), (129, 7), (20, 65), (65, 20)):
        sizes = {"n_queries": n_queries, "n_keys": n_keys, "d": 8}
        yield f"N{n_queries}x{n_keys}", Row(sizes, hint="N_q is taken for N_k somewhere")
    yield "d_v5", Row({"n": 70, "d": 24, "d_v": 5}, hint="d is taken for d_v somewhere", variants=("full",))
    for batch in ((3,), (2, 3), (2, 1, 2)):
        of_batch = {"n_queries": 33, "n_keys": 40, "d": 8, "batch": batch}
        yield f"B{'x'.join(map(str, batch))}", Row(of_batch, _tenfold_from_entry_to_entry, nan_hint=OVERFLOW)
    hint = "here every axis has 16 elements: an operation along a wrong one does not crash"
    yield "every_axis_16", Row({"n": 16, "d": 16, "batch": (16,)}, hint=hint, variants=("full",))


def _numbers() -> Iterator[tuple[str, Row]]:
    for scale in (30, 300, 10_000):
        yield (
            f"logits_times_{scale}",
            Row({"n": 70, "d": 16, "logit_scale": scale}, hint=OVERFLOW, nan_hint=OVERFLOW, kind="robust"),
        )
    far = Row({"n": 40, "d": 16}, _far_below_zero, FAR_BELOW, FAR_BELOW, kind="robust", variants=("full",))
    yield "logits_far_below_0", far
    hint = "a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent"
    sizes: dict[str, Any] = {"n": 20, "d": 8, "batch": (2, 3)}
    yield "not_contiguous", Row(sizes, _strided, hint, kind="robust", variants=("full",))


def _precisions(dtypes: Collection[str], sums: str) -> Iterator[tuple[str, Row]]:
    short_sums = SHORT_SUMS if sums == "float32" else ""
    hints = dict.fromkeys(HALF, short_sums)
    hints["float64"] = "a step is done in float32, or a small number was added to the sums"
    for dtype in dtypes:
        yield dtype, Row({"n": 40, "d": 8, "dtype": dtype}, hint=hints.get(dtype, ""), kind="robust")
    if sums != "float32":
        return
    for n_queries, n_keys in ((8, 2000), (2000, 8)):
        sizes = {"n_queries": n_queries, "n_keys": n_keys, "d": 8, "dtype": "bfloat16"}
        row = Row(sizes, growing_then_shrinking, short_sums, kind="robust", variants=("full",))
        yield f"long_sums_{n_queries}x{n_keys}", row


def _some(rng: np.random.Generator) -> int:
    return int(rng.integers(2, 40))


def _tensors(case: Any) -> list[str]:
    return [name for name in ("Q", "K", "V", "dO") if getattr(case, name, None) is not None]


def _tenfold_from_entry_to_entry(case: Any) -> None:
    for entry in range(min(3, case.Q.shape[-3])):
        case.Q[..., entry, :, :] *= 10.0**entry


def _far_below_zero(case: Any) -> None:
    case.Q, case.K = abs(case.Q) * 300, -abs(case.K) - 1


def _strided(case: Any) -> None:
    for name in _tensors(case):
        setattr(case, name, strided(getattr(case, name)))


def growing_then_shrinking(case: Any) -> None:
    """All numbers positive: what a sum in half precision loses on the way stays lost."""
    for name in _tensors(case):
        setattr(case, name, abs(getattr(case, name)) + 1)
    case.Q /= 8
    case.V[..., : case.K.shape[-2] // 2, :] += 4


def strided(x: Any) -> Any:
    """The same numbers, laid out as a (batch, N, heads, d) array that is seen as (batch, heads, N, d)."""
    swapped = x.swapaxes(-3, -2)
    swapped = swapped.contiguous() if hasattr(swapped, "contiguous") else swapped.copy(order="C")
    return swapped.swapaxes(-3, -2)
