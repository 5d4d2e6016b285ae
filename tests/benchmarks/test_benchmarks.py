"""The benchmarks' harness with a fixed clock, and the pages' tables against data.json."""

from __future__ import annotations

import pytest

from benchmarks.harness import Table, load_tables, made, time_in_turn, with_table
from labkit.labs.catalog import ROOT


def test_ratios_are_taken_within_a_round() -> None:
    """Seconds of a and b in three rounds: 1 and 3, 4 and 2, 10 and 5; the round that warms up takes longer."""
    ticks = iter([0, 9, 0, 1, 1, 4, 0, 4, 4, 6, 0, 10, 10, 15])
    times = time_in_turn({"a": int, "+ b": int}, 3, clock=lambda: next(ticks))
    columns = {"ms": times.ms, "× a": times.times_as_fast("a"), "gain": times.gain}
    assert made("a", "", "", "", times.seconds, columns).rows == {"a": [4000.0, 1.0, None], "+ b": [3000.0, 2.0, 2.0]}


@pytest.mark.parametrize("table", [table for table in load_tables() if table.page], ids=lambda table: table.name)
def test_a_page_shows_the_saved_table(table) -> None:
    text = (ROOT / table.page).read_text(encoding="utf-8")
    assert with_table(text, table) == text, "benchmarks.harness.write_pages() writes it again"


def test_digits_that_another_run_would_repeat() -> None:
    values = [0.123, 1.995, 2.04, 9.94, 9.96, 27.6]
    columns = ["× a"] * 6 + ["ms", "peak, MiB", "gain"]
    table = Table("split", "x.md", "", "form", columns, {"b": [*values, 131.2, 0.884, None]})
    text = with_table("before\n<!-- benchmark split: begin -->\nold\n<!-- benchmark split: end -->\n", table)
    assert "\n| b | 0.12 | 2.00 | 2.0 | 9.9 | 10 | 28 | 131 | 0.88 | |\n" in text
    with pytest.raises(ValueError, match=r"x\.md has 0 places for the table split"):
        with_table("no place", table)


def test_the_built_in_attention_is_also_called_by_the_kernels_names() -> None:
    import torch

    from benchmarks.kernel import BACKENDS, BUILT_IN, built_in, forward_flops

    Q, K, V = torch.randn(3, 2, 4, 8, 16)
    calls = built_in(Q, K, V, causal=True)
    assert list(calls) == [BUILT_IN, "built-in, flash"], "cuDNN's needs a CUDA device"
    assert set(calls) <= {BUILT_IN, *BACKENDS}
    torch.testing.assert_close(calls["built-in, flash"](), calls[BUILT_IN]())
    assert forward_flops(Q, causal=False) == 2 * 4 * 4 * 8 * 8 * 16
    assert forward_flops(Q, causal=True) == 2 * 4 * 4 * 36 * 16
