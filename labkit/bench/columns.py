"""The columns of the benchmark table, and what tells one row from another."""

from collections.abc import Mapping
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
"""As the published table has them: times in milliseconds; its MB are MiB, 2**20 bytes."""

EXTRA_COLUMNS = ("impl", "fwd_ms_iqr", "bwd_ms_iqr")
"""What the published table leaves out: the form of attention, and the interquartile range of the times."""


def row_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What was asked for in a row, without what came out."""
    return tuple(row[name] for name in ("d_model", "seq_len", "batch_size", "warmup_steps", "steps", "device", "impl"))


def format_cell(value: Any) -> str:
    """Six significant digits, as the published table prints; a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
