"""Which of the arrays that crossed has changed since: marks of their contents, and changes carried over."""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labstaff.judge.framing import CodecError


class Arrays:
    """The arrays and tensors that crossed during a call, numbered alike on both sides, to see which one changed.

    Args:
        keep: let them live as long as this does. Where memory is measured they must not.
    """

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.n_crossed = 0
        self.known: dict[int, tuple[Callable[[], Any], Any]] = {}  # number → the array, its mark when last looked at

    def add(self, array: Any) -> None:
        """Number one more."""
        self.known[self.n_crossed] = ((lambda: array) if self.keep else weakref.ref(array)), _mark(array)
        self.n_crossed += 1

    def changes(self) -> list[list[Any]]:
        """Those that hold something else than when last looked at, with their numbers."""
        found = []
        for number, (reference, mark) in list(self.known.items()):
            array = reference()
            if array is None:
                del self.known[number]
            elif (now := _mark(array)) != mark:
                self.known[number] = reference, now
                found.append([number, array])
        return found

    def take_over(self, changes: Any) -> None:
        """Write what the other side has changed into what this side has."""
        for array, number, value in self.named(changes):
            _overwrite(array, value)
            self.known[number] = self.known[number][0], _mark(array)

    def named(self, changes: Any) -> Iterator[tuple[Any, int, Any]]:
        """This side's arrays that the other side says it has changed, their numbers, and what they hold there."""
        if not isinstance(changes, list):
            raise CodecError("changes are a list")
        for change in changes:
            if not isinstance(change, list) or len(change) != 2:
                raise CodecError("a change is a number and an array")
            number, value = change
            if type(number) is not int or not 0 <= number < self.n_crossed:
                raise CodecError("a change to an array that never crossed")
            reference, _ = self.known.get(number, (lambda: None, None))
            array = reference()
            if array is not None:
                yield array, number, value


def _mark(array: Any) -> Any:
    """Differs when the content does. Data that lies in one piece is not copied: this may run under a meter."""
    if isinstance(array, np.ndarray):
        if isinstance(array.base, memoryview):  # it came over the wire: the whole of its buffer
            return zlib.crc32(array.base)
        return zlib.crc32(array.view(np.uint8).data if array.flags.c_contiguous and array.ndim else array.tobytes())
    if array.device.type != "cpu":
        return array._version, array.requires_grad
    torch = sys.modules["torch"]
    with torch.utils._python_dispatch._disable_current_modes():
        data = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if array.numel() else b""
        return zlib.crc32(data), array.requires_grad


def _overwrite(array: Any, value: Any) -> None:
    if isinstance(array, np.ndarray):
        if not isinstance(value, np.ndarray) or array.shape != value.shape:
            raise CodecError("an array was changed into something else")
        array[...] = value
        return
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or array.shape != value.shape:
        raise CodecError("a tensor was changed into something else")
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        if array.device.type != "meta":
            array.detach().copy_(value.detach())
    if array.is_leaf and array.requires_grad != value.requires_grad:
        array.requires_grad_(value.requires_grad)
