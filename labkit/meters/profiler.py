"""The CPU allocator's own record of a call, through `torch.profiler`; other meters are tested against it."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile

from labkit.meters.torch_private import ALLOCATION

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it reports its own starts and stops on the terminal
SCALAR_BYTES = 8
"""What a Python number becomes when it meets a tensor: one float64 or int64 on the CPU."""


class Allocation(NamedTuple):
    """One allocation, or a release if `nbytes` is negative, and the operators it happened in, outermost first."""

    nbytes: int
    address: int
    operators: tuple[tuple[int, str], ...]


class ProfiledMemory(NamedTuple):
    """The allocator's events during a call, in order, without older memory, and the call's result."""

    allocations: tuple[Allocation, ...]
    result: Any

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once, of those allocated during the call."""
        return _peak(record.nbytes for record in self.allocations)

    @property
    def kept_bytes(self) -> int:
        """Bytes allocated during the call and not released in it."""
        return sum(record.nbytes for record in self.allocations)

    def peak_bytes_outside(self, kernels: Collection[str]) -> int:
        """The peak without scratch, which one run of any of these operators allocates and releases itself.

        Left out too are the single numbers (`SCALAR_BYTES`) allocated between these operators.
        """
        return _peak(record.nbytes for record in _without_scratch(self.allocations, kernels))


def profile_memory(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ProfiledMemory:
    """Run `fn(*args, **kwargs)` and record every allocation and release on the CPU.

    Sees what no dispatch mode can, scratch inside kernels; sees nothing of meta tensors.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        result = fn(*args, **kwargs)
    roots = run.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    timed = sorted(_allocations(roots, ()), key=lambda pair: pair[0])
    return ProfiledMemory(tuple(_made_here(record for _, record in timed)), result)


def allocated_and_released(run: profile, prefix: str) -> dict[str, int]:
    """Scratch bytes of each event whose name begins with `prefix`: its peak minus what it left allocated."""
    found = {}
    for event in _events(run.profiler.kineto_results.experimental_event_tree()):  # type: ignore[union-attr]
        if event.name.startswith(prefix):
            sizes = [record.nbytes for _, record in sorted(_allocations([event], ()), key=lambda pair: pair[0])]
            found[event.name] = _peak(sizes) - max(sum(sizes), 0)
    return found


def _events(roots: Iterable[Any]) -> Iterator[Any]:
    for event in roots:
        yield event
        yield from _events(event.children)


def _allocations(events: Iterable[Any], inside: tuple[tuple[int, str], ...]) -> Iterator[tuple[int, Allocation]]:
    for event in events:
        if event.tag == ALLOCATION:
            fields = event.extra_fields
            if fields.device.type == "cpu":
                yield event.start_time_ns, Allocation(fields.alloc_size, fields.ptr, inside)
        else:
            composite = any(child.name == event.name for child in event.children)  # aten::sum calls aten::sum.dim
            yield from _allocations(event.children, inside if composite else (*inside, (event.id, event.name)))


def _made_here(records: Iterable[Allocation]) -> Iterator[Allocation]:
    """Leave out releases of older memory, which are reported only sometimes."""
    alive = set()
    for record in records:
        if record.nbytes > 0:
            alive.add(record.address)
            yield record
        elif record.address in alive:
            alive.remove(record.address)
            yield record


def _without_scratch(records: Iterable[Allocation], kernels: Collection[str]) -> list[Allocation]:
    kept: dict[int, Allocation] = {}
    open_at: dict[int, tuple[int, Allocation]] = {}
    for number, record in enumerate(records):
        kept[number] = record
        if record.nbytes > 0:
            open_at[record.address] = (number, record)
            continue
        start, made = open_at.pop(record.address, (-1, None))
        if made is not None and _is_scratch(made, record, kernels):
            del kept[number], kept[start]
    return list(kept.values())


def _is_scratch(made: Allocation, released: Allocation, kernels: Collection[str]) -> bool:
    kernel = _outermost(made, kernels)
    if kernel is None:
        return made.nbytes == SCALAR_BYTES
    return kernel == _outermost(released, kernels)


def _outermost(record: Allocation, kernels: Collection[str]) -> tuple[int, str] | None:
    return next((operator for operator in record.operators if operator[1] in kernels), None)


def _peak(sizes: Iterable[int]) -> int:
    live = peak = 0
    for size in sizes:
        live += size
        peak = max(peak, live)
    return peak
