"""Prints the benchmark: its rows, the parts of their memory, and the longest sequences that fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from labkit.bench.accounting import DEFINITIONS, MIB, SOFTMAXES, account_for, attention_memory, longest_that_fits
from labkit.bench.rows import COLUMNS, EXTRA_COLUMNS, OF_TIMES, Row, format_value

SETTINGS = ("impl", "d_model", "batch_size", "warmup_steps", "steps", "device", "status")
"""Columns that can be printed once, above the table, where all rows have the same value."""
MEANING = {
    "forward_peak": "the most alive up to the loss",
    "step_peak": "the most alive in forward and backward: must fit to train",
    "inference_peak": "the most alive in one call without gradients",
}


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def show_rows(rows: list[Row]) -> None:
    """The table with the published columns, those of times only if there are any; the form if there are several."""
    several_impls = len({row["impl"] for row in rows}) > 1 or any(row["impl"] != "written_out" for row in rows)
    timed = any(row["fwd_ms"] is not None for row in rows)
    extra = [name for name in EXTRA_COLUMNS if (several_impls if name == "impl" else timed)]
    console = _console()
    names = [*(name for name in COLUMNS if timed or name not in OF_TIMES), *extra]
    table = _table(rows, names)
    if _width(console, table) > console.width:  # no number may be cut off: values that all rows share go first
        same = [name for name in SETTINGS if name in names and len({row[name] for row in rows}) == 1]
        table = _table(rows, [name for name in names if name not in same])
        values = ", ".join(f"{name} {format_value(rows[0][name])}" for name in same)
        console.print(f"in every row: {values}\n", style="dim", soft_wrap=True)
    console.width = max(console.width, _width(console, table))
    console.print(table)
    console.print("\nMB is MiB (2²⁰ bytes) here, as in the published table.", style="dim")


def _table(rows: list[Row], names: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in ("device", "status", "impl") else "right", no_wrap=True)
    for row in rows:
        style = "red" if row["status"] != "success" else None
        table.add_row(*(format_value(row[name]) for name in names), style=style)
    return table


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def show_parts(rows: list[Row]) -> None:
    """The parts of each row's peak and of its saved bytes; the parts add up to the measured total."""
    console = _console()
    for row in rows:
        if row["impl"] not in SOFTMAXES or row["status"] != "success":
            continue
        for column, definition in (("mem_max_MB", "forward_peak"), ("add_mem_MB", "saved")):
            parts = account_for(row, definition)
            console.print(
                f"\nd_model {row['d_model']}, seq_len {row['seq_len']}, {row['impl']}: {column}", style="bold"
            )
            for name, nbytes in (*parts.items(), ("total", sum(parts.values()))):
                console.print(f"  {name:<14} {nbytes:>16,} bytes  {nbytes / MIB:>12.4f} MiB")
            console.print(f"  {column:<14} {row[column] * MIB:>16,.0f} bytes  {row[column]:>12.4f} MiB  (measured)")


def show_fit(capacity_bytes: int, batch_size: int, d_models: list[int]) -> None:
    """The longest sequence that fits, under each definition and softmax, and the bytes it takes."""
    console = _console()
    console.print(f"The longest sequence in {capacity_bytes:,} bytes ({capacity_bytes / 2**30:.4g} GiB)", style="bold")
    console.print(f"batch {batch_size}, one head, float32, the 64 MiB of workspaces counted\n")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("definition", "softmax", "d_model", "longest N", "bytes there"):
        table.add_column(name, justify="left" if name in ("definition", "softmax") else "right")
    for definition in (name for name in DEFINITIONS if name in MEANING):
        for softmax in SOFTMAXES:
            for d_model in d_models:
                n = longest_that_fits(capacity_bytes, batch_size, d_model, definition=definition, softmax=softmax)
                nbytes = 0
                if n:
                    parts = attention_memory(batch_size, n, d_model, definition=definition, softmax=softmax)
                    nbytes = sum(parts.values())
                table.add_row(definition, softmax, str(d_model), f"{n:,}", f"{nbytes:,}")
    console.print(table)
    console.print()
    for name, meaning in MEANING.items():
        console.print(f"{name}: {meaning}", style="dim")
