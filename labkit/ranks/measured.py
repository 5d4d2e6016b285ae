"""What a run of ranks returned and took, as plain data: how a suite's programs tell of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from labkit.ranks.comm import RanksStuck
from labkit.ranks.threads import Deed, Ran, run_ranks


def told(function: Callable[..., Any], arguments: Sequence[Sequence[Any]], **options: Any) -> dict[str, Any]:
    """Call `function(comm, *arguments[rank], **options)` on ranks that are threads; what came of it.

    `trouble` says why ranks got stuck, and is empty where they did not; then `results`, `peak_bytes`, `largest_bytes`,
    `flops`, `fused`, `hidden_transfers` and the fields of `Traffic` are lists by rank. `hidden_transfers` counts the
    messages to or from another rank during which the rank multiplied matrices, `messages_asked` all of them.
    """
    try:
        ran = run_ranks(partial(function, **options), arguments)
    except RanksStuck as error:
        return {"trouble": str(error)}
    return {"trouble": "", **_as_data(ran)}


def _as_data(ran: Ran) -> dict[str, Any]:
    traffic = [asdict(each) for each in ran.traffic]
    found: dict[str, Any] = {name: [each[name] for each in traffic] for name in traffic[0]}
    found |= {"results": ran.results, "peak_bytes": ran.peak_bytes, "largest_bytes": ran.largest_bytes}
    found |= {"flops": ran.flops, "fused": ran.fused}
    transfers = [_transfers(deeds) for deeds in ran.deeds]
    found["messages_asked"] = [len(each) for each in transfers]
    found["hidden_transfers"] = [sum(flops > 0 for flops in each) for each in transfers]
    found["collective_calls"] = [
        sum(d.kind == "asks" and d.to is None and d.from_ is None for d in x) for x in ran.deeds
    ]
    return found


def _transfers(deeds: Sequence[Deed]) -> list[int]:
    """For each message of a rank, the FLOPs between asking for it and waiting for it."""
    asked = {
        deed.transfer: deed.flops for deed in deeds if deed.kind == "asks" and (deed.to, deed.from_) != (None, None)
    }
    return [deed.flops - asked[deed.transfer] for deed in deeds if deed.kind == "waits" and deed.transfer in asked]
