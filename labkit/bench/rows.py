"""Rows of the benchmark: their columns, how they are printed, and a CSV file that keeps each row as it finishes."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]

COLUMNS = (
    "d_model",
    "seq_len",
    "batch_size",
    "warmup_steps",
    "steps",
    "device",
    "fwd_ms",
    "bwd_ms",
    "mem_max_MB",
    "add_mem_MB",
    "status",
)
"""The published table's columns: times in milliseconds; its MB are MiB, 2**20 bytes."""

OF_TIMES = ("warmup_steps", "steps", "fwd_ms", "bwd_ms")
"""Columns that say something only where times were measured."""

EXTRA_COLUMNS = ("impl", "fwd_ms_iqr", "bwd_ms_iqr")
"""Columns that the published table lacks: the form of attention, and the interquartile range of the times."""

REQUEST = ("d_model", "seq_len", "batch_size", "warmup_steps", "steps", "device", "impl")
"""Columns that state what was requested, not what was measured."""

_INTEGERS = ("d_model", "seq_len", "batch_size", "warmup_steps", "steps")
_FLOATS = ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB", "fwd_ms_iqr", "bwd_ms_iqr")


def row_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings of a row: two rows with the same key are the same measurement."""
    return tuple(row[name] for name in REQUEST)


def format_value(value: Any) -> str:
    """Six significant digits, as the published table prints; a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def append_csv(path: str | Path, row: Row) -> None:
    """Add one row to the file, with a header line if the file is new."""
    path = Path(path)
    is_new = not path.exists() or path.stat().st_size == 0
    columns = (*COLUMNS, *EXTRA_COLUMNS)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: row.get(name) for name in columns})


def read_csv(path: str | Path) -> list[Row]:
    """The rows of a file, with numbers as numbers and None for what was not measured; [] for an empty file.

    Raises OSError if it cannot be read, and ValueError if it holds something else.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        header, rows = table.fieldnames, list(table)
    if header and tuple(header) != (*COLUMNS, *EXTRA_COLUMNS):
        raise ValueError(f"{path} holds no rows of the benchmark")
    try:
        return [{name: _parsed(name, text) for name, text in row.items()} for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has a line that is not a row of the benchmark: {error}") from error


def _parsed(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in _INTEGERS:
        return int(text)
    return float(text) if name in _FLOATS else text
