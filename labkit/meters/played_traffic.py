"""Plays the two functions that Lab 04's fit of exponents calls: they do, where the answer is, what they are told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np


@contextlib.contextmanager
def played_traffic(
    answer: ModuleType, called: Callable[[dict[str, Any]], Any], chosen: Callable[[int, int, int], Any]
) -> Iterator[None]:
    """In the block, `tiled_traffic` and `choose_blocks` of `answer` are stand-ins.

    `chosen(sram_bytes, d, dtype_bytes)` says what choose_blocks returns. `called(how)` is told how tiled_traffic was
    called and says what it then moves: (loads, stores, elements of a row of Q moved each time).
    """

    def tiled_traffic(machine: Any, Q: Any, K: Any, V: Any, block_q: int, block_k: int) -> Any:
        how = {
            "shapes": [x.shape for x in (Q, K, V)],
            "dtypes": [str(x.dtype) for x in (Q, K, V)],
            "blocks": (block_q, block_k),
            "sram_bytes": machine.sram_bytes,
            "traffic_before": machine.traffic,
        }
        n_loads, n_stores, width = called(how)
        O = machine.allocate((1, width), np.float32)
        for n in range(n_loads):
            tile = machine.load(Q, np.s_[:1, :width])
            if n < n_stores:
                machine.store(O, np.s_[:], tile)
        return machine.allocate(Q.shape, np.float32)

    def choose_blocks(sram_bytes: int, d: int, dtype_bytes: int = 4) -> Any:
        return chosen(sram_bytes, d, dtype_bytes)

    own = {name: getattr(answer, name) for name in ("tiled_traffic", "choose_blocks")}
    vars(answer).update(tiled_traffic=tiled_traffic, choose_blocks=choose_blocks)
    try:
        yield
    finally:
        vars(answer).update(own)
