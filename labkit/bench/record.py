"""Rows of the benchmark kept in a CSV file as they finish, so that an interrupted run goes on where it stopped."""

import csv
import os
from pathlib import Path
from typing import Any

from labkit.bench.columns import COLUMNS, EXTRA_COLUMNS, Row

_WHOLE = ("d_model", "seq_len", "batch_size", "warmup_steps", "steps")
_REAL = ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB", "fwd_ms_iqr", "bwd_ms_iqr")


def append_csv(path: str | Path, row: Row) -> None:
    """Add one row to the file, which gets a header line if it is new; a line that was cut off half way goes.

    Raises ValueError if the file is there with other columns.
    """
    path = Path(path)
    columns = (*COLUMNS, *EXTRA_COLUMNS)
    _drop_cut_off_line(path)
    is_new = not path.exists() or path.stat().st_size == 0
    if not is_new and (header := _header(path)) != columns:
        raise ValueError(f"{path} has the columns {', '.join(header)}: not those of this benchmark")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: row.get(name) for name in columns})


def require_writable(path: str | Path) -> None:
    """Raise OSError now rather than after a row has run, if none could be kept in the file."""
    with Path(path).open("a"):
        pass


def read_csv(path: str | Path) -> list[Row]:
    """The rows of a file, with numbers as numbers and what was not measured as None; [] if there is no file.

    Raises ValueError if the file holds something else.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole_lines = [line for line in lines if line.endswith("\n")]
    table = csv.DictReader(whole_lines)
    if whole_lines and not set(COLUMNS) <= set(table.fieldnames or ()):
        raise ValueError(f"{path} holds no rows of the benchmark")
    return [{name: _value(name, text) for name, text in row.items()} for row in table]


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in _WHOLE:
        return int(text)
    return float(text) if name in _REAL else text


def _header(path: Path) -> tuple[str, ...]:
    with path.open(newline="") as file:
        return tuple(next(csv.reader(file)))


def _drop_cut_off_line(path: Path) -> None:
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)  # whole lines stay, also where the disk is full
