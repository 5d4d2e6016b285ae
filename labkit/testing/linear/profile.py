"""The rows of a profile of linear attention's memory: their form, and their numbers held to what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from labkit.testing.compare import assert_equal, assert_keys, assert_type, require, require_at_most
from labkit.testing.linear.memory import NEAR, expected_bytes

ROUTES = ("standard", "linear_bidir", "linear_causal", "linear_chunked")
COLUMNS = (
    "seq_len",
    "input_memory_mb",
    *(f"{name}_memory_mb" for name in ROUTES),
    *(f"{name}_theoretical_mb" for name in ROUTES),
    "savings_bidir",
)
Row = Mapping[str, Any]


def rows_of(got: Any, seq_lens: Sequence[int]) -> list[Row]:
    """What `profile_attention_memory` gave, its form checked: a row for each of `seq_lens`."""
    assert_type("profile_attention_memory's result", got, list, "a list of dicts, one a length")
    assert_equal("the number of rows", len(got), len(seq_lens))
    for row in got:
        assert_keys("a row", row, COLUMNS)
    assert_equal("seq_len of the rows", [row["seq_len"] for row in got], list(seq_lens))
    return got


def assert_row(row: Row, peaks: Mapping[str, int], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Fail unless all columns of a row are right, where nothing is out of memory.

    `peaks` are the bytes that the functions it is about need over their inputs, by the names in `ROUTES`; `shape` is
    that of q, k and v, (batch, heads, seq_len, d).
    """
    batch, heads, n, d = shape
    want = expected_bytes((batch, heads, n, d, dtype.itemsize))
    inputs = want["inputs"]
    one = {"only one of q, k and v is counted": inputs / 3e6}
    assert_mb(f"input_memory_mb for N = {n}", row["input_memory_mb"], inputs, one)
    for name, peak in peaks.items():
        theory = want[f"{name}_peak"]
        suspects = {
            "the inputs are counted: the peak is over them": (peak + inputs) / 1e6,
            "the prediction is written down in place of a measurement": theory / 1e6,
        }
        others = peaks.items() - {(name, peak)}
        suspects |= {f"{other} is measured in its place": value / 1e6 for other, value in sorted(others)}
        hint = "the peak of one call over its inputs, as measure_peak gives it"
        assert_mb(f"{name}_memory_mb for N = {n}", row[f"{name}_memory_mb"], peak, suspects, hint)
        added = {"the inputs are added: both sides are over the inputs": (theory + inputs) / 1e6}
        predicted = row[f"{name}_theoretical_mb"]
        if not abs(predicted - theory / 1e6) <= NEAR * theory / 1e6:
            assert_mb(f"{name}_theoretical_mb for N = {n}", predicted, theory, added)
    quotient = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    require_at_most(
        "savings_bidir's error",
        abs(row["savings_bidir"] - quotient),
        1e-6 * quotient,
        f"savings_bidir is {row['savings_bidir']:.6g}, expected measured standard over measured bidirectional, "
        f"{quotient:.6g}",
        kind="tolerance",
    )


def assert_mb(
    name: str, got: Any, want_bytes: int, suspects: Mapping[str, float] | None = None, hint: str = ""
) -> None:
    """Fail unless a number of MB is that of `want_bytes`, to a thousandth.

    `suspects` are usual mistakes and the number of MB that each leads to.
    """
    assert_type(name, got, (int, float), "a number: MB")
    want = want_bytes / 1e6
    usual = {
        "the unit is MiB: MB are 10⁶ bytes": want_bytes / 2**20,
        "the unit is bytes: the column is in MB": float(want_bytes),
        "the unit is GB: the column is in MB": want_bytes / 1e9,
    }
    for text, value in {**(suspects or {}), **usual}.items():
        found = math.isfinite(got) and abs(got - value) <= 1e-6 * abs(value)
        told = f"{name} is {got:.6g}, expected {want:.6g}"
        require(not found or abs(value - want) <= 1e-3 * want, f"{told}\nThat is exactly what comes out when {text}")
    cause = f"\nUsual cause: {hint}" if hint else ""
    told = f"{name} is {got:.6g} MB, expected {want:.6g}{cause}"
    require_at_most(f"{name}'s error", abs(got - want), 1e-3 * want, told, kind="tolerance")
