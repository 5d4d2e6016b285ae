"""The benchmarks' harness with a clock of our own, and the chapters' tables, which are the kept ones."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.chapters import TOLD, chapters, times, with_tables
from benchmarks.harness import Row, Table, load_tables, rows, time_in_turn


class TestHarness:
    def test_ratios_are_taken_within_a_round(self) -> None:
        """Every call takes one tick more than the one before; the second candidate two calls' ticks."""
        ticks = itertools.count()
        clock = iter(float(sum(range(k))) for k in ticks)
        measured = time_in_turn({"a": lambda: None, "b": lambda: next(clock)}, 3, clock=lambda: next(clock))
        first, second = measured.seconds["a"], measured.seconds["b"]
        assert len(first) == len(second) == 3, "the round that warms up is not counted"
        assert measured.times_as_fast("b", "a") == sorted(x / y for x, y in zip(first, second, strict=True))[1]
        assert measured.ms("a") == 1e3 * first[1]

    def test_a_step_gains_over_the_row_above(self) -> None:
        clock = iter([0.0, 4.0, 4.0, 6.0])
        measured = time_in_turn({"plain": int, "+ step": int}, 1, clock=lambda: next(clock), warm=0)
        plain, step = rows(measured, ["plain"], {"plain": 8.0, "+ step": 1.0}.get)
        assert plain == Row("plain", 4000.0, {"plain": 1.0}, 0.0, 8.0)
        assert step == Row("+ step", 2000.0, {"plain": 2.0}, 2.0, 1.0)


class TestChapters:
    @pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
    def test_a_table_is_the_kept_one(self, path) -> None:
        text = path.read_text(encoding="utf-8")
        assert with_tables(path.name, text, load_tables()) == text, "python -m benchmarks.chapters writes it anew"

    def test_every_table_has_its_place(self) -> None:
        for name, told in TOLD.items():
            text = next(path for path in chapters() if path.name == told.chapter).read_text(encoding="utf-8")
            assert text.count(f"<!-- benchmark {name}: begin -->") == 1

    def test_a_table_follows_its_data(self) -> None:
        kept = {
            "decode: split": Table(
                "decode",
                "split",
                "",
                rows=[Row(f"{k} splits" if k > 1 else "1 split", 1.0, {"1 split": k / 2}) for k in (1, 2, 8, 32)],
            )
        }
        begin, end = "<!-- benchmark split: begin -->\n", "\n<!-- benchmark split: end -->"
        made = with_tables("09_decoding.md", f"before\n{begin}stale{end}\nafter", kept)
        table = ["| | × one split | peak, MiB |", "|---|---:|---:|", "| 1 split | 0.50 | |", "| 2 splits | 1.00 | |",
                 "| 8 splits | 4.0 | |", "| 32 splits | 16 | |"]  # fmt: skip
        assert made == f"before\n{begin}" + "\n".join(table) + f"{end}\nafter"

    def test_a_mark_in_another_chapter_is_an_error(self) -> None:
        text = "<!-- benchmark split: begin -->\n<!-- benchmark split: end -->"
        with pytest.raises(KeyError, match=r"09_decoding.md's"):
            with_tables("08_sliding_windows.md", text, {})

    @pytest.mark.parametrize(
        ("value", "told"), [(0.123, "0.12"), (1.995, "2.00"), (2.04, "2.0"), (9.94, "9.9"), (9.96, "10"), (27.6, "28")]
    )
    def test_digits(self, value: float, told: str) -> None:
        assert times(value) == told
