"""Counts the bytes that torch operators read of given tensors, and those that they write anywhere."""

import math
from typing import Any

import torch

from labkit.meters.modes import OperatorMode
from labkit.meters.torch_private import qualified_name, schema_of, storage_address, tree_leaves


class MovedBytes(OperatorMode):
    """Treats every operator in its context as a machine that loads its operands and stores its results.

    `read` counts, for each of the named tensors, the bytes of its memory that operators load: an element once an
    operator, however often a view repeats it, and of what an index picks from only what is picked. `written` counts
    what they store, whether in place or in new memory. Views move nothing.
    """

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        self._names = {storage_address(x.untyped_storage()): name for name, x in tensors.items()}
        self._held = list(tensors.values())  # so that no other memory takes the place of theirs
        self.read = dict.fromkeys(tensors, 0)
        self.written = 0

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        name = qualified_name(func).removeprefix("aten::")
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema_of(func).returns):
            return out  # a view
        written_to = self._written_to(func, args, kwargs)
        if name in _INTO_PLACES:
            self.written += distinct_bytes(_tensors([args, kwargs])[-1])
        elif name not in _UNWRITTEN:
            self.written += sum(map(distinct_bytes, written_to or _tensors(out)))
        if not name.startswith("new_") and not name.endswith("_like"):
            self._note_reads(name, _tensors([args, kwargs]), {id(x) for x in written_to}, out)
        return out

    def _note_reads(self, name: str, operands: list[torch.Tensor], written_to: set[int], out: Any) -> None:
        for place, x in enumerate(operands):
            watched = self._names.get(storage_address(x.untyped_storage()))
            if watched is None or (id(x) in written_to and name in _OVERWRITING):
                continue
            picked = name in _PICKING and place == 0
            self.read[watched] += distinct_bytes(out if picked else x)

    @staticmethod
    def _written_to(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found = []
        for place, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                found += _tensors(value)
        return found


_PICKING = {"index", "index_select", "embedding", "gather", "take"}
"""Operators that read of their first operand only what comes out."""

_INTO_PLACES = {"index_put_", "_index_put_impl_", "index_copy_", "scatter_"}
"""Operators that write as much as their last operand holds, into a larger one."""

_OVERWRITING = {*_INTO_PLACES, "copy_", "fill_", "zero_", "random_", "normal_", "uniform_"}
"""Operators that do not read what they write over."""

_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators that hand out memory as it is."""


def distinct_bytes(x: torch.Tensor) -> int:
    """The bytes of the elements that a tensor shows, each once: an axis with stride 0 repeats its elements."""
    sizes = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride != 0 or size == 0]
    return math.prod(sizes) * x.itemsize


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
