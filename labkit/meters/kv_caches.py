"""What a cache of keys and values does, deed by deed: what it holds, and what each deed writes and allocates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.meters.moved import MovedBytes
from labkit.meters.tensors import AllocationMeter


def session_of(make: Callable[[], Any], deeds: Sequence[tuple[Any, ...]]) -> tuple[list[dict[str, Any]], int]:
    """What a new cache does, deed by deed: ("append", k, v) or ("truncate", n); and the bytes alive at its end.

    Told of each deed: the error that it raised, `keys` and `values` afterwards (None where that is no tensor), `len`,
    the bytes written and held by the deed, those that reading the keys takes, and whether keys and values lie in the
    memory in which they lay first.
    """
    with AllocationMeter() as life:
        cache = make()
        first = [x.untyped_storage() if isinstance(x, torch.Tensor) else None for x in (cache.keys, cache.values)]
        told = [_told_of(cache, deed, first) for deed in deeds]
    copies = [x for one in told for x in (one["keys"], one["values"]) if x is not None]
    return told, life.live_bytes - sum(x.nbytes for x in copies)


def _told_of(cache: Any, deed: tuple[Any, ...], first: Sequence[Any]) -> dict[str, Any]:
    error = None
    with MovedBytes() as moved, AllocationMeter() as memory:
        try:
            getattr(cache, deed[0])(*deed[1:])
        except ValueError as raised:
            error = str(raised)
    with AllocationMeter() as reading:
        found = cache.keys, cache.values
    told: dict[str, Any] = {"error": error, "len": len(cache), "written": moved.written}
    told |= {"peak_bytes": memory.peak_bytes, "reading_bytes": reading.peak_bytes}
    told["stays"] = [
        isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() == old.data_ptr()
        for x, old in zip(found, first, strict=True)
    ]
    for name, x in zip(("keys", "values"), found, strict=True):
        told[name] = x.clone() if isinstance(x, torch.Tensor) else None
    return told
