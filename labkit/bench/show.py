"""The benchmark on the terminal: its rows, what they are made of, what fits, and the published claims."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from labkit.bench.accounting import DEFINITIONS, MIB, SOFTMAXES, account_for, attention_memory, longest_that_fits
from labkit.bench.columns import COLUMNS, EXTRA_COLUMNS, Row, format_cell
from labkit.bench.contradictions import seed_contradictions

SETTINGS = ("impl", "d_model", "batch_size", "warmup_steps", "steps", "device", "status")
"""Columns that say what was asked for: the same in every row, they can be said once."""
MEANING = {
    "forward_peak": "the most alive until the loss is there",
    "step_peak": "the most alive in forward and backward: what has to fit to train",
    "inference_peak": "the most alive in one call without gradients",
}


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def show_rows(rows: list[Row]) -> None:
    """The table, columns as published; the extra ones only where they say something."""
    several_impls = len({row["impl"] for row in rows}) > 1 or any(row["impl"] != "written_out" for row in rows)
    timed = any(row["fwd_ms"] is not None for row in rows)
    extra = [name for name in EXTRA_COLUMNS if (several_impls if name == "impl" else timed)]
    console = _console()
    names = [*COLUMNS, *extra]
    table = _table(rows, names)
    said = ""
    if _width(console, table) > console.width:  # a number that is cut off says nothing: what all rows share goes first
        same = [name for name in SETTINGS if name in names and len({row[name] for row in rows}) == 1]
        table = _table(rows, [name for name in names if name not in same])
        said = ", ".join(f"{name} {format_cell(rows[0][name])}" for name in same)
    if said:
        console.print(f"in every row: {said}\n", style="dim", soft_wrap=True)
    console.width = max(console.width, _width(console, table))
    console.print(table)
    console.print("\nMB is MiB (2²⁰ bytes) here, as in the published table.", style="dim")


def _table(rows: list[Row], names: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in ("device", "status", "impl") else "right", no_wrap=True)
    for row in rows:
        style = "red" if row["status"] != "success" else None
        table.add_row(*(format_cell(row[name]) for name in names), style=style)
    return table


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def show_parts(rows: list[Row]) -> None:
    """What each row's peak and its saved bytes are made of; the parts add up to the byte."""
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
    """The longest sequence that fits, under each definition and softmax, and what it takes there."""
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
                taken = (
                    sum(attention_memory(batch_size, n, d_model, definition=definition, softmax=softmax).values())
                    if n
                    else 0
                )
                table.add_row(definition, softmax, str(d_model), f"{n:,}", f"{taken:,}")
    console.print(table)
    console.print()
    for name, meaning in MEANING.items():
        console.print(f"{name}: {meaning}", style="dim")


def show_claims() -> None:
    """Each published claim that its own document refutes, with the numbers that come out."""
    console = _console()
    for claim in seed_contradictions():
        console.print(claim.topic, style="bold")
        for what, numbers in (("stated", claim.stated), ("computed", claim.computed)):
            told = ", ".join(f"{name} {value:,.6g}" for name, value in numbers.items())
            console.print(f"  {what + ':':<9} {told}", soft_wrap=True)
        console.print(f"  {claim.why}\n", soft_wrap=True)
