"""`lab check 13`: the counts of its request traces, for the course's servers and for yours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from labkit.labs.manifest import Lab
from labkit.suite.results import TestResult

BOARD_FILE = "board.json"
COLUMNS = {
    "requests\nin time": ("in_time", ""),
    "bytes read\nper token": ("bytes_read", "tokens"),
    "prefix tokens\nnot computed": ("prefix_tokens", ""),
    "computed\nagain": ("again", ""),
    "blocks\nat most": ("peak_blocks", ""),
    "bytes\nat most": ("peak_bytes", ""),
}
"""Title → what is counted, and what it is divided by."""


def count_tables(lab: Lab, results: Sequence[TestResult]) -> list[Table]:
    """A table for each trace with counts in `results`; none for a lab without reference counts."""
    path = lab.folder / BOARD_FILE
    if not path.is_file():
        return []
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    yours = {trace_of(result.test): result.counts for result in results if result.counts}
    tables = []
    for trace in [trace for trace in board["traces"] if trace in yours]:
        rows = {each["name"]: each["counts"][trace] for each in board["references"]} | {"yours": yours[trace]}
        tables.append(_table(f"{trace}: {board['traces'][trace]}", rows))
    return tables


def trace_of(test: str) -> str:
    """The trace of a test: `chat` of `test_traces_under_the_budget[chat]`."""
    return test.partition("[")[2].removesuffix("]")


def cells(counts: dict[str, int]) -> list[str]:
    """The numbers of a row, in the order of `COLUMNS`."""
    return [f"{round(counts[counted] / counts.get(over, 1)):,}" for counted, over in COLUMNS.values()]


def _table(title: str, rows: dict[str, dict[str, int]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="", box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("server")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, counts in rows.items():
        table.add_row(name, *cells(counts), style="bold" if name == "yours" else "")
    return table
