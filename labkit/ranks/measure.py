"""Runs ranks as threads, and returns their results and measurements as plain data: for the probes of a suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from labkit.ranks.comm import Deadlock
from labkit.ranks.threads import Operation, run_ranks


def run_measured(function: Callable[..., Any], arguments: Sequence[Sequence[Any]], **options: Any) -> dict[str, Any]:
    """Call `function(comm, *arguments[rank], **options)` on ranks that are threads.

    `trouble` is why ranks got stuck, and empty where they did not; then `results`, `peak_bytes`, `largest_bytes`,
    `flops`, `fused`, `hidden_transfers` and the fields of `Traffic` are lists by rank. `messages_asked` are the
    bytes that each message to or from another rank sends, `hidden_transfers` those of the messages during which the
    rank multiplied matrices.
    """
    try:
        ran = run_ranks(partial(function, **options), arguments)
    except Deadlock as error:
        return {"trouble": str(error)}
    traffic = [asdict(each) for each in ran.traffic]
    transfers = [_transfers(operations) for operations in ran.operations]
    return {
        "trouble": "",
        **{name: [each[name] for each in traffic] for name in traffic[0]},
        "results": ran.results,
        "peak_bytes": ran.peak_bytes,
        "largest_bytes": ran.largest_bytes,
        "flops": ran.flops,
        "fused": ran.fused,
        "messages_asked": [[sends for sends, _ in each] for each in transfers],
        "hidden_transfers": [[sends for sends, flops in each if flops > 0] for each in transfers],
        "collective_calls": [sum(each.is_collective for each in operations) for operations in ran.operations],
    }


def _transfers(operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """For each message of a rank, the bytes that it sends, and the FLOPs between requesting it and waiting for it."""
    asked: dict[int, Operation] = {}
    transfers = []
    for operation in operations:
        if operation.kind == "asks" and not operation.is_collective:
            asked[operation.transfer] = operation
        elif operation.kind == "waits" and operation.transfer in asked:
            request = asked[operation.transfer]
            transfers.append((request.sends, operation.flops - request.flops))
    return transfers
