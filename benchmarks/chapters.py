"""Writes the chapters' tables of speed from the tables that were kept: `python -m benchmarks.chapters`.

A chapter marks the place of a table by two comments, <!-- benchmark NAME: begin --> and <!-- benchmark NAME: end -->.
What stands between them is made here, from `benchmarks/data.json` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, Table, load_tables
from labkit.labs.catalog import ROOT

Cell = Callable[[Row], str]


@dataclass(frozen=True)
class Column:
    """A column of a chapter's table: its heading, the kept table that it is taken from, and what is taken."""

    heading: str
    key: str
    cell: Cell


@dataclass(frozen=True)
class Told:
    """A table as a chapter shows it: its columns, and its rows by their names in the benchmark and in the chapter."""

    chapter: str
    columns: Sequence[Column]
    rows: Mapping[str, str]
    heading: str = ""


def times(value: float) -> str:
    """A ratio with the digits that another run would give again: two decimals below 2, else two digits."""
    if value < 2:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def ms(row: Row) -> str:
    """Its time."""
    return f"{row.ms:.1f}" if row.ms < 9.95 else f"{row.ms:.0f}"


def gain(row: Row) -> str:
    """What it gains over the row above; nothing where it is no step on top of that."""
    return times(row.gain) if row.gain else ""


def peak(row: Row) -> str:
    """Its memory, where it has been measured."""
    return "" if row.peak_mib is None else f"{row.peak_mib:.2f}"


def against(reference: str) -> Cell:
    """How many times as fast as `reference` a row is."""
    return lambda row: times(row.times_as_fast[reference])


def _columns(key: str, cells: Mapping[str, Cell]) -> list[Column]:
    return [Column(heading, key, cell) for heading, cell in cells.items()]


def _grouped(model: str) -> Column:
    return Column(model, f"decode: grouped, {model}", against("built-in, enable_gqa"))


FLASH = {"× built-in": against("built-in (SDPA)"), "× naive": against("naive, autograd"), "peak, MiB": peak}

TOLD = {
    "tiling": Told(
        "04_tiling_and_blocking.md",
        _columns(
            "tiling: steps of the tuning",
            {
                "ms": ms,
                "speed, in place = 1": against("naive, in place"),
                "gain of the step": gain,
                "MiB beside the output": peak,
            },
        ),
        {
            "naive, textbook": "standard, textbook (a new array for each operation, three alive at once)",
            "naive, in place": "standard, in place",
            "tiled, plain, 64 × 64": "tiles of 64 × 64, plain",
            "tiled, plain, 256 × 512": "tiles of 256 × 512, plain",
            "+ in place, in buffers": "results into buffers made once (`out=`), subtraction and exp in place",
            "+ rescale when it moved": "rescale only when a maximum moved",
            "+ ones column on V": "a column of ones on $V$: the product gives the row sums",
            "+ no maximum when safe": "no maximum where it cannot matter",
            "right/tuned.py": "the same, complete (masks, batches, any shape)",
        },
        "step, each on top of the one before",
    ),
    "flash": Told(
        "05_flash_attention.md",
        [
            *_columns("flash: full", {f"full: {heading}": cell for heading, cell in FLASH.items()}),
            *_columns("flash: causal", {f"causal: {heading}": cell for heading, cell in FLASH.items()}),
        ],
        {
            "naive, autograd": "naive, autograd",
            "built-in (SDPA)": "built-in (SDPA)",
            "plain, 64 × 64": "plain, 64 × 64",
            "plain, large tiles": "plain, 512 × 256",
            "+ in place, in buffers": "+ in place, in buffers",
            "+ sums inside products": "+ sums inside products",
            "+ powers of 2": "+ powers of 2",
            "+ diagonal tiles trimmed": "+ diagonal tiles trimmed",
            "+ no maximum when safe": "+ no maximum when safe",
            "right/tuned.py": "right/tuned.py",
        },
    ),
    "linear": Told(
        "07_linear_attention.md",
        _columns(
            "linear: causal routes",
            {
                "ms": ms,
                "× quadratic": against("quadratic"),
                "× textbook": against("textbook"),
                "× recurrence": against("recurrent"),
                "peak, MiB": peak,
            },
        ),
        {
            "quadratic": "quadratic, masked in place",
            "textbook": "quadratic, textbook",
            "recurrent": "recurrence",
            "cumsum": "cumulative sum",
            "scan, chunk 64": "scan, chunks of 64",
            "chunked, chunk 64": "chunks of 64",
            "tuned, chunk 64": "chunks of 64, in place",
            "tuned, chunk 128": "chunks of 128, in place",
            "tuned, chunk 256": "chunks of 256, in place",
        },
        "route",
    ),
    "window": Told(
        "08_sliding_windows.md",
        _columns("window: forward", {"ms": ms, "× masked": against("built-in, masked"), "peak, MiB": peak}),
        {
            "built-in, masked": "built-in (SDPA), the window as its mask",
            "+ mask made each time": "the same, the mask made in each call",
            "built-in, causal": "built-in, causal, no window",
            "tiles, block 64": "tiles, blocks of 64",
            "tiles, block 128": "tiles, blocks of 128",
            "strips, block 128": "strips, blocks of 128",
            "strips, one bias, block 64": "strips, one bias, blocks of 64",
            "all blocks at once, block 128": "all blocks at once, blocks of 128",
        },
        "form",
    ),
    "decode": Told(
        "09_decoding.md",
        [_grouped(model) for model in ("Llama-3-8B", "Llama-3.1-405B", "Llama-2-7B")],
        {
            "built-in, enable_gqa": "built-in, `enable_gqa=True`",
            "one product a key head": "one product a key head",
            "a loop over key heads": "a loop over key heads",
        },
        "times as fast as the built-in one",
    ),
    "split": Told(
        "09_decoding.md",
        _columns("decode: split", {"× one split": against("1 split"), "peak, MiB": peak}),
        {name: name for name in ("1 split", "2 splits", "8 splits", "32 splits")},
    ),
    "paged": Told(
        "09_decoding.md",
        _columns("decode: paged", {"× contiguous": against("contiguous"), "peak, MiB": peak}),
        {
            "contiguous": "contiguous",
            "paged, a sequence gathered": "a sequence's blocks gathered, then one product a key head",
            "paged, block by block": "block by block",
        },
    ),
}


def table(told: Told, kept: Mapping[str, Table]) -> str:
    """The table in Markdown."""
    by_column = [{row.name: row for row in kept[column.key].rows} for column in told.columns]
    lines = ["| " + " | ".join([told.heading, *(column.heading for column in told.columns)]) + " |"]
    lines += ["|---|" + "---:|" * len(told.columns)]
    for name, words in told.rows.items():
        cells = [column.cell(rows[name]) for column, rows in zip(told.columns, by_column, strict=True)]
        lines.append("| " + " | ".join([words, *cells]) + " |")
    return "\n".join(lines).replace("|  |", "| |")


def with_tables(chapter: str, text: str, kept: Mapping[str, Table]) -> str:
    """The text of a chapter with its tables made anew; KeyError for a mark that has no table here."""

    def anew(found: re.Match[str]) -> str:
        told = TOLD[found["name"]]
        if told.chapter != chapter:
            raise KeyError(f"{chapter} shows the table {found['name']}, which is {told.chapter}'s")
        return f"{found['begin']}\n{table(told, kept)}\n{found['end']}"

    marks = r"(?P<begin><!-- benchmark (?P<name>\w+): begin -->)\n.*?(?P<end><!-- benchmark (?P=name): end -->)"
    return re.sub(marks, anew, text, flags=re.DOTALL)


def chapters() -> list[Path]:
    """The chapters with a table of speed."""
    return [ROOT / "docs" / name for name in sorted({told.chapter for told in TOLD.values()})]


def write_chapters() -> None:
    """Make all chapters' tables anew."""
    kept = load_tables()
    for path in chapters():
        path.write_text(with_tables(path.name, path.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    write_chapters()
