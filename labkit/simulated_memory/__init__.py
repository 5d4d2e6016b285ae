"""A simulated two-level memory: unlimited HBM, an SRAM of M bytes, and a count of every byte between them.

The model is the one of FlashAttention's analysis (Dao et al. 2022, section 3.2, after Aggarwal and Vitter 1988; before
them the red-blue pebble game of Hong and Kung 1981): arithmetic happens in SRAM only and costs nothing; only the bytes
that move are counted.

    machine = Machine(sram_bytes=64 * 1024)
    Q = machine.hbm(q)                        # an opaque array in HBM: no arithmetic, no indexing
    tile = machine.load(Q, np.s_[0:16])       # counted in machine.loaded, charged to SRAM
    tile *= 0.125                             # NumPy's arithmetic; results are tiles, charged while they live
    machine.store(O, np.s_[0:16], tile)       # counted in machine.stored

SRAM holds the buffers that some tile still refers to, temporaries of an expression included. A view shares its buffer
and is free. Dropping the last reference (`del`, a new value for the name, the return of a function) gives the bytes
back at once. What a NumPy call needs inside itself is not charged, so only calls without large hidden buffers exist.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.simulated_memory._ledger import SRAMOverflow as SRAMOverflow
from labkit.simulated_memory._ledger import _Ledger
from labkit.simulated_memory._tiles import (
    _NUMBERS,
    HBMArray,
    Index,
    Scalar,
    Tile,
    _describe,
)


class Machine:
    """An SRAM of `sram_bytes` bytes, and counters of the bytes moved between it and HBM.

    Arrays in HBM are plain ndarrays or the opaque handles that `hbm` makes. A sealed machine has handles only, so
    nothing can be computed from what was not loaded; `allocate` then returns a handle, otherwise an ndarray.

    Counters (read-only): `loaded`, `stored`, `traffic` = loaded + stored, `in_use` and `high_water` of SRAM, and
    `host_read`, read from handles without `load`; all in bytes.

    Raises ValueError if `sram_bytes` is not a positive integer.
    """

    __slots__ = ("__weakref__", "_ledger")

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if isinstance(sram_bytes, bool) or not isinstance(sram_bytes, int | np.integer) or sram_bytes <= 0:
            raise ValueError(f"sram_bytes must be a positive integer, got {sram_bytes!r}")
        self._ledger = _Ledger(int(sram_bytes), sealed)

    def load(self, hbm: HBMArray | np.ndarray, index: Index) -> Tile:
        """Copy `hbm[index]` into a new tile; its bytes are counted in `loaded`.

        `index` is basic indexing: integers, slices, `...`, None, or a tuple of them; slices are cut at the edge.
        Raises SRAMOverflow when it does not fit, TypeError for anything that is not in HBM.
        """
        ledger = self._ledger
        source = ledger.content(hbm)[_basic(index)]
        ledger.require(source.nbytes, source.shape, source.dtype, "load")
        tile = ledger.adopt(np.array(source, order="C", subok=False), "load")
        ledger.count(hbm, loaded=tile.nbytes)
        return tile

    def store(self, hbm: HBMArray | np.ndarray, index: Index, tile: Tile) -> None:
        """Write `tile` to `hbm[index]`; the bytes written there are counted in `stored`.

        Raises TypeError if `tile` is not a tile of this machine, ValueError if its shape is not that of `hbm[index]`.
        """
        content, index = self._ledger.content(hbm), _basic(index)
        target = content[index]
        if not isinstance(tile, Tile):
            raise TypeError(f"store takes a tile, not {_describe(tile)}: only tiles in SRAM can be stored")
        value = self._ledger.plain(tile, "store")
        if target.shape != value.shape:
            raise ValueError(f"store: the tile has shape {value.shape}, its target in HBM has shape {target.shape}")
        content[index] = value
        self._ledger.count(hbm, stored=target.nbytes)

    def new(self, shape: int | tuple[int, ...], fill: Scalar, dtype: npt.DTypeLike) -> Tile:
        """Make a tile with every element equal to `fill`. Nothing moves; the tile is charged to SRAM."""
        if not isinstance(fill, _NUMBERS):
            raise TypeError(f"new: fill must be a number, not {_describe(fill)}")
        kind = np.dtype(dtype)
        sizes = shape if isinstance(shape, tuple) else (shape,)
        self._ledger.require(math.prod(sizes) * kind.itemsize, sizes, kind, "new")
        return self._ledger.adopt(np.full(shape, fill, kind), "new")

    def hbm(self, array: np.ndarray) -> HBMArray:
        """Put a copy of `array` into HBM and return its handle. Nothing is counted: it was there from the start."""
        return HBMArray(self, np.array(array, order="C", subok=False))

    def allocate(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """Allocate an array in HBM, filled with NaN, or the dtype's largest value if it has no NaN. Nothing is counted.

        Returns an HBMArray on a sealed machine, else an ndarray; `load` and `store` take either.
        """
        kind = np.dtype(dtype)
        if kind.kind in "fc":
            poison: Any = np.nan
        elif kind.kind == "b":
            poison = True
        else:
            poison = np.iinfo(kind).max
        content = np.full(shape, poison, kind)
        return HBMArray(self, content) if self.sealed else content

    def loaded_from(self, hbm: HBMArray | np.ndarray) -> int:
        """Bytes loaded from this array so far."""
        return self._ledger.moved_of(hbm).loaded

    @property
    def sram_bytes(self) -> int:
        """Capacity of SRAM in bytes."""
        return self._ledger.sram_bytes

    @property
    def sealed(self) -> bool:
        """True if arrays in HBM are handles only."""
        return self._ledger.sealed

    @property
    def loaded(self) -> int:
        """Bytes moved from HBM to SRAM."""
        return self._ledger.loaded

    @property
    def stored(self) -> int:
        """Bytes moved from SRAM to HBM."""
        return self._ledger.stored

    @property
    def traffic(self) -> int:
        """Bytes moved both ways: loaded + stored."""
        return self._ledger.loaded + self._ledger.stored

    @property
    def in_use(self) -> int:
        """Bytes of SRAM that live tiles hold now."""
        return self._ledger.in_use

    @property
    def high_water(self) -> int:
        """The most bytes of SRAM that were in use at once."""
        return self._ledger.high_water

    @property
    def host_read(self) -> int:
        """Bytes read from handles without `load`, by `.numpy()` or np.asarray."""
        return self._ledger.host_read


def _basic(index: Index) -> Index:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, bool | np.bool) or not (
            part is None or part is Ellipsis or isinstance(part, int | np.integer | slice)
        ):
            raise TypeError(f"an index into HBM is made of integers and slices, not {_describe(part)}")
    return index
