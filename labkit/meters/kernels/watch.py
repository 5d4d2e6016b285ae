"""Watches kernels in Triton's interpreter: bytes, products, and errors that only a GPU would show.

The interpreter runs one program after the other, on memory that has no walls. `Watch` therefore looks at each address:
whether it belongs to an argument, and whether another program has to do with it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from labkit.meters.kernels.adapter import watching

BAND = 64
"""Elements before and behind a guarded tensor that belong to nobody."""

NOBODY, SEVERAL = -1, -2


class Launch(NamedTuple):
    """A launched kernel: its function, its arguments by name, and its compile options."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]


def guarded(x: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """A copy of `x` with its strides, surrounded by NaN, and which elements of that memory belong to it.

    Integers are surrounded by large numbers.
    """
    once = tuple(0 if stride == 0 else slice(None) for stride in x.stride())  # an expanded axis is there once
    extent = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    nothing = float("nan") if x.is_floating_point() else torch.iinfo(x.dtype).max // 3
    storage = torch.full((BAND + extent + BAND,), nothing, dtype=x.dtype)
    own = torch.zeros(storage.shape, dtype=torch.bool)
    copy = storage.as_strided(x.shape, x.stride(), BAND)
    if x.numel():
        copy[once].copy_(x[once])
        own.as_strided(x.shape, x.stride(), BAND)[once].fill_(True)
    return copy, own.numpy()


class Region:
    """The memory of one argument of a launch, and which programs have used each element."""

    def __init__(self, name: str, tensor: torch.Tensor, own: np.ndarray | None) -> None:
        storage = tensor.untyped_storage()
        self.name, self.own = name, own
        self.start, self.n_bytes, self.itemsize = storage.data_ptr(), storage.nbytes(), tensor.itemsize
        self.forget()

    def forget(self) -> None:
        """Start a new launch: every program may use what earlier launches wrote."""
        self._users: dict[str, np.ndarray] = {}

    def elements(self, addresses: np.ndarray) -> np.ndarray:
        """The number of the element at each address."""
        return ((addresses - np.uint64(self.start)) // np.uint64(self.itemsize)).astype(np.int64)

    def within(self, addresses: np.ndarray) -> np.ndarray:
        """Which addresses are in this memory."""
        return (addresses >= self.start) & (addresses < self.start + self.n_bytes)

    def shared(self, use: str, elements: np.ndarray, program: int) -> str:
        """Record a use by `program`, and return a conflicting use by another program, if there is one."""
        against = {"load": ("store", "update"), "store": ("load", "store", "update"), "update": ("load", "store")}
        met = ""
        for other in against[use]:
            users = self._users.get(other)
            if users is not None and bool(((users[elements] != NOBODY) & (users[elements] != program)).any()):
                met = other
        users = self._users.setdefault(use, np.full(self.n_bytes // self.itemsize, NOBODY, np.int32))
        before = users[elements]
        users[elements] = np.where((before == NOBODY) | (before == program), program, SEVERAL)
        return met


class Watch:
    """Receives from the interpreter what kernels do; `problems` holds the first of each kind, as plain data.

    `loaded` and `stored` are bytes by the name of the tensor, each address counted once an operation; `products` the
    tiles multiplied, (rows, inner, columns), and how often; `readers` the programs that load from a tensor, each with
    the number of its launch. `of_arguments` are the bytes loaded from the tensors in `given` themselves: a copy of one
    may have its name in a kernel. A problem has a `kind`: "outside" (an address that belongs to no argument), "meets"
    (an address that another program of the launch uses too), and what is known of it.

    Args:
        given: guarded tensors by their names, with what `guarded` gave.
    """

    def __init__(self, given: dict[str, tuple[torch.Tensor, np.ndarray]]) -> None:
        self._given = {x.untyped_storage().data_ptr(): (name, own) for name, (x, own) in given.items()}
        self._regions: list[Region] = []
        self._grid: tuple[int, ...] = (1, 1, 1)
        self._kernel = ""
        self.launches: list[Launch] = []
        self.loaded: Counter[str] = Counter()
        self.of_arguments: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self.products: Counter[tuple[int, ...]] = Counter()
        self.readers: dict[str, set[tuple[int, ...]]] = {}
        self.problems: list[dict[str, Any]] = []

    def launched(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
        """A kernel begins."""
        names = inspect.signature(function.fn).parameters
        options = {name: value for name, value in kwargs.items() if name not in names}
        own = {name: value for name, value in kwargs.items() if name in names}
        arguments = inspect.getcallargs(function.fn, *args, **own)
        self.launches.append(Launch(function, arguments, options))
        self._kernel = function.fn.__name__
        self._regions = []
        for name, tensor in _tensors(arguments):
            start = tensor.untyped_storage().data_ptr()
            if all(region.start != start for region in self._regions):
                known = self._given.get(start, (name, None))
                self._regions.append(Region(known[0], tensor, known[1]))

    def load(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program reads."""
        return self._used("load", addresses, mask, itemsize, program)

    def store(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program writes."""
        return self._used("store", addresses, mask, itemsize, program)

    def update(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program reads and writes in one."""
        return self._used("update", addresses, mask, itemsize, program)

    def multiplied(self, left: tuple[int, ...], right: tuple[int, ...]) -> None:
        """A program multiplies two tiles."""
        batch = int(np.prod(left[:-2]))
        self.products[(left[-2], left[-1], right[-1])] += batch

    def _used(
        self, use: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]
    ) -> np.ndarray:
        mask = np.broadcast_to(mask, addresses.shape)
        found = np.unique(addresses[mask])
        if not len(found):
            return mask
        left = np.ones(found.shape, bool)
        for region in self._regions:
            inside = region.within(found) & left
            if not inside.any():
                continue
            elements = region.elements(found[inside])
            if region.own is not None and not region.own[elements].all():
                alien = found[inside][~region.own[elements]]
                inside &= ~np.isin(found, alien)
                self._outside(use, region.name, region.elements(alien) - BAND, program)
                elements = region.elements(found[inside])
            left &= ~(inside | region.within(found))
            for what, counted in (("load", self.loaded), ("store", self.stored)):
                if use in (what, "update"):
                    counted[region.name] += len(elements) * itemsize
            if use in ("load", "update") and region.own is not None:
                self.of_arguments[region.name] += len(elements) * itemsize
            if use == "load":
                self.readers.setdefault(region.name, set()).add((len(self.launches), *program))
            if met := region.shared(use, elements, _number(program)):
                self._problem(kind="meets", use=use, other=met, tensor=region.name, program=list(program))
            if region.own is not None and use != "load":
                self._problem(kind="input", use=use, tensor=region.name, program=list(program))
        if not left.any():
            return mask
        self._outside(use, self._nearest(found[left]), None, program)
        return mask & self._known(addresses)

    def _known(self, addresses: np.ndarray) -> np.ndarray:
        """Which addresses are safe to access in this process."""
        known = np.zeros(addresses.shape, bool)
        for region in self._regions:
            known |= region.within(addresses)
        return known

    def _outside(self, use: str, tensor: str, elements: np.ndarray | None, program: tuple[int, ...]) -> None:
        place = None if elements is None else int(elements[0])
        self._problem(kind="outside", use=use, tensor=tensor, element=place, program=list(program))

    def _nearest(self, addresses: np.ndarray) -> str:
        """The tensor that ends, or begins, next to the first of these addresses."""
        first = int(addresses[0])

        def distance(region: Region) -> int:
            return min(abs(first - region.start), abs(first - region.start - region.n_bytes))

        return min(self._regions, key=distance).name if self._regions else ""

    def _problem(self, **known: Any) -> None:
        same = ("kind", "use", "tensor")
        if not any(all(old[key] == known[key] for key in same) for old in self.problems):
            self.problems.append({"kernel": self._kernel, **known})


def watched(function: Callable[..., Any], given: dict[str, Any], *more: Any, garbage: bool = True) -> tuple[Any, Watch]:
    """The result of `function(*given.values(), *more)` with guarded tensors, and what its kernels did.

    Args:
        garbage: whether loads without `other` give NaN where their mask is False, instead of the interpreter's 0.
    """
    copies = {name: guarded(x) for name, x in given.items() if isinstance(x, torch.Tensor)}
    arguments = [copies[name][0] if name in copies else value for name, value in given.items()]
    watch = Watch(copies)
    with watching(watch, unwritten_is_nan=garbage):
        result = function(*arguments, *more)
    return result, watch


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in arguments.items():
        base = getattr(value, "base", None)
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(base, torch.Tensor):  # a descriptor
            yield name, base


def _number(program: tuple[int, ...]) -> int:
    x, y, z = program
    return x + (y << 10) + (z << 20)
