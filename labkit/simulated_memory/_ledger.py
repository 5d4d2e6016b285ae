"""Counters of a machine: bytes moved between HBM and SRAM, and buffers alive in SRAM."""

from __future__ import annotations

import weakref
from types import EllipsisType
from typing import Any

import numpy as np

from labkit.simulated_memory._tiles import _NUMBERS, HBMArray, Tile, _describe

_ARGUMENTS = (*_NUMBERS, str, slice, type, np.dtype, EllipsisType, type(None))


class SRAMOverflow(MemoryError):
    """More bytes were alive in SRAM than it holds."""

    __module__ = "labkit.simulated_memory"  # the public module, which messages show


class _Moved:
    """Bytes moved to and from one array; it holds the array, so that its id is not used again."""

    def __init__(self, hbm: object) -> None:
        self.hbm = hbm
        self.loaded = self.stored = 0


class _Ledger:
    """Counters of a machine. The source check shows a submission that uses them."""

    def __init__(self, sram_bytes: int, sealed: bool) -> None:
        self.sram_bytes = sram_bytes
        self.sealed = sealed
        self.loaded = self.stored = self.in_use = self.high_water = self.host_read = 0
        self.moved: dict[int, _Moved] = {}  # by the id of the array in HBM
        self.charges: dict[int, weakref.ref[_LedgerCharge]] = {}  # by the id of the buffer's owner

    def content(self, hbm: object) -> np.ndarray:
        """The array that a handle stands for."""
        if isinstance(hbm, HBMArray):
            if hbm._ledger is not self:
                raise TypeError(f"{hbm!r} belongs to another machine")
            return hbm._ledger_content
        if isinstance(hbm, np.ndarray) and not self.sealed:
            return hbm
        raise TypeError(
            f"{_describe(hbm)} is not in this machine's HBM: use the arrays passed to your function, or allocate"
        )

    def count(self, hbm: object, loaded: int = 0, stored: int = 0) -> None:
        """Count bytes that moved."""
        self.loaded += loaded
        self.stored += stored
        entry = self.moved.setdefault(id(hbm), _Moved(hbm))
        entry.loaded += loaded
        entry.stored += stored

    def moved_of(self, hbm: object) -> _Moved:
        """Bytes moved to and from this array."""
        return self.moved.get(id(hbm)) or _Moved(hbm)

    def adopt(self, result: Any, operation: str) -> Any:
        """Wrap NumPy's result, and charge buffers that no live tile owns yet."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.adopt(part, operation) for part in result)
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            raise TypeError(f"{operation}: SRAM holds numbers, not Python objects")
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        known = self.charges.get(id(owner))
        charge = known() if known else None
        if charge is None:
            self.require(owner.nbytes, owner.shape, owner.dtype, operation)
            charge = _LedgerCharge(self, owner)
        return Tile(array, charge)

    def require(self, n_bytes: int, shape: tuple[int, ...], dtype: np.dtype, operation: str) -> None:
        """Raise SRAMOverflow unless so many bytes are free."""
        if self.in_use + n_bytes > self.sram_bytes:
            raise SRAMOverflow(
                f"{operation} needs {n_bytes:,} B for a {shape} array of {dtype}, but {self.in_use:,} B of "
                f"{self.sram_bytes:,} B are in use: {self.inventory()}"
            )

    def alive(self) -> list[np.ndarray]:
        """The buffers in SRAM."""
        return [charge.owner for known in self.charges.values() if (charge := known())]

    def inventory(self, most: int = 6) -> str:
        """The largest buffers in SRAM, in words."""
        owners = sorted(self.alive(), key=lambda owner: -owner.nbytes)
        rest = [f"{len(owners) - most} more"] if len(owners) > most else []
        return ", ".join([f"{owner.shape} {owner.dtype}" for owner in owners[:most]] + rest) or "nothing"

    def plain(self, value: Any, operation: str) -> Any:
        """Unwrap the tiles inside an argument, and refuse data outside this machine's SRAM."""
        if isinstance(value, Tile):
            if value._ledger_charge.ledger is not self:
                raise TypeError(f"{operation}: the tile {value.shape} belongs to another machine")
            return value._ledger_array
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(part, operation) for part in value)
        if isinstance(value, _ARGUMENTS):
            return value
        raise TypeError(f"{operation}: {_describe(value)} is not in SRAM: load it first, or make it with new")


class _LedgerCharge:
    """The bytes of one buffer in SRAM, released with the last tile that uses it."""

    __slots__ = ("__weakref__", "ledger", "owner")

    def __init__(self, ledger: _Ledger, owner: np.ndarray) -> None:
        self.ledger = ledger
        self.owner = owner  # alive as long as the charge, so its id stays its own
        ledger.charges[id(owner)] = weakref.ref(self)
        ledger.in_use += owner.nbytes
        ledger.high_water = max(ledger.high_water, ledger.in_use)

    def __del__(self) -> None:
        del self.ledger.charges[id(self.owner)]
        self.ledger.in_use -= self.owner.nbytes
