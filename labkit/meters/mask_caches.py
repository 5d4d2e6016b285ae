"""What a cache of tensors does, deed by deed: what it gives out again, what it costs, and what it keeps in memory."""

import contextlib
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from labkit.meters.tensors import measure_peak


def session_of(cache: Any, deeds: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """What a new cache of masks does, deed by deed.

    A deed is ("get", arguments), ("hold", arguments), a get whose user keeps the mask, ("fail", arguments), a get that
    raises, or ("clear",).

    Told of each deed: what came out (of a held mask as it is at the end), as the number of the deed that got it first
    both its memory and the tensor itself, the peak of the call, `len` afterwards, and the numbers of the deeds whose
    masks are then in memory.
    """
    told: list[dict[str, Any]] = []
    held: list[torch.Tensor] = []
    memories: dict[int, weakref.ref] = {}
    tensors: dict[int, weakref.ref] = {}
    for number, (kind, *given) in enumerate(deeds):
        result: dict[str, Any] = {"mask": None, "memory": None, "tensor": None, "peak_bytes": 0}
        if kind == "clear":
            cache.clear()
        elif kind == "fail":
            with contextlib.suppress(ValueError):
                cache.get(*given[0])
        else:
            result["peak_bytes"], _, mask = measure_peak(cache.get, *given[0])
            result["mask"] = mask
            if isinstance(mask, torch.Tensor):
                memories[number], tensors[number] = weakref.ref(mask.untyped_storage()), weakref.ref(mask)
                result["memory"] = next(at for at, memory in memories.items() if memory() is memories[number]())
                result["tensor"] = next(at for at, tensor in tensors.items() if tensor() is mask)
                if kind == "hold":
                    held.append(mask)
                else:
                    result["mask"] = mask.clone()
            mask = None
        told.append(result | {"len": len(cache), "alive": _alive(memories, len(cache))})
    return told


def _alive(memories: dict[int, weakref.ref], n_expected: int) -> list[int]:
    """Which memories are there; more than expected may be garbage, which is then collected (a second, with torch)."""
    if len({id(memory()) for memory in memories.values() if memory() is not None}) > n_expected:
        gc.collect()
    return [number for number, memory in memories.items() if memory() is not None]
