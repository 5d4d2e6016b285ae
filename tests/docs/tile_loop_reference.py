"""The tile loop on labkit's machine, causal or not, in both orders, with each of its moments written down."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import answer_module
from labkit.simulated_memory import HBMArray, Machine, SRAMOverflow, Tile
from labkit.simulated_memory._ledger import _Ledger

ARRAYS = {"Q": 0, "K": 1, "V": 2}


@dataclass(frozen=True)
class Setting:
    """One setting of the page, in Python's words."""

    order: str
    n_queries: int
    n_keys: int
    d: int
    d_v: int
    block_q: int
    block_k: int
    causal: bool = False
    sram_bytes: int = 10**9

    def as_javascript(self) -> dict[str, Any]:
        """The settings of counts.js."""
        names = ("order", "nQueries", "nKeys", "d", "dV", "blockQ", "blockK", "causal", "sramBytes")
        return dict(zip(names, astuple(self), strict=True))


@dataclass(frozen=True)
class Moment:
    """The machine right after an array came to lie in SRAM, or was stored."""

    in_use: int
    loaded: int
    stored: int
    shapes: tuple[tuple[int, ...], ...]


class TracedMachine(Machine):
    """A machine that writes down each moment."""

    def __init__(self, sram_bytes: int) -> None:
        super().__init__(sram_bytes, sealed=True)
        self.moments: list[Moment] = []
        self._ledger = _TracedLedger(self)

    def load(self, hbm: HBMArray | np.ndarray, index: Any) -> Tile:
        tile = super().load(hbm, index)
        self.moments[-1] = self.now()  # with its bytes, which are counted after it has come
        return tile

    def store(self, hbm: HBMArray | np.ndarray, index: Any, tile: Tile) -> None:
        super().store(hbm, index, tile)
        self.moments.append(self.now())

    def now(self) -> Moment:
        alive = tuple(sorted(owner.shape for owner in self._ledger.alive()))
        return Moment(self.in_use, self.loaded, self.stored, alive)


class _TracedLedger(_Ledger):
    """Has its machine write down when something new lies in SRAM."""

    def __init__(self, machine: TracedMachine) -> None:
        super().__init__(machine.sram_bytes, machine.sealed)
        self.machine = machine

    def adopt(self, result: Any, operation: str) -> Any:
        before = self.in_use
        tile = super().adopt(result, operation)
        if self.in_use > before:
            self.machine.moments.append(self.machine.now())
        return tile


@dataclass(frozen=True)
class Run:
    """What a run on a machine left behind; `overflow` is what the machine said, empty when all fitted."""

    machine: TracedMachine
    inputs: dict[str, HBMArray]
    output: HBMArray | None
    overflow: str


def run(setting: Setting, loop: Any = None, dtype: Any = np.float32) -> Run:
    """Run the loop below, or another one of the form `loop(machine, Q, K, V, block_q, block_k)`, on the example."""
    machine = TracedMachine(setting.sram_bytes)
    inputs = {name: machine.hbm(values.astype(dtype)) for name, values in example(setting).items()}
    causal = {} if loop else {"causal": setting.causal}
    loop = loop or {"queries": queries_outside, "keys": keys_outside}[setting.order]
    try:
        output = loop(machine, *inputs.values(), setting.block_q, setting.block_k, **causal)
    except SRAMOverflow as overflow:
        return Run(machine, inputs, None, str(overflow))
    return Run(machine, inputs, output, "")


def answer_of(order: str) -> Any:
    """Lab 04's `tiled_traffic` in this order of the loops; it knows no mask."""
    return _answer({"queries": None, "keys": "flash1_order"}[order]).tiled_traffic


def naive(machine: Machine, *arguments: Any) -> Any:
    """Lab 04's `naive_traffic`."""
    return _answer(None).naive_traffic(machine, *arguments)


@cache
def _answer(name: str | None) -> ModuleType:
    return answer_module("04", name and f"right/{name}")


def queries_outside(machine: Machine, Q: Any, K: Any, V: Any, block_q: int, block_k: int, causal: bool) -> Any:
    """FlashAttention-2's order; tiles above the diagonal are neither loaded nor computed."""
    O = machine.allocate((len(Q), V.shape[1]), Q.dtype)
    for rows in _blocks(len(Q), block_q):
        machine.store(O, rows, _rows_of_output(machine, Q, K, V, rows, block_k, causal))
    return O


def _rows_of_output(machine: Machine, Q: Any, K: Any, V: Any, rows: slice, block_k: int, causal: bool) -> Tile:
    Q_tile = machine.load(Q, rows)
    Q_tile *= Q.shape[1] ** -0.5
    state = [
        machine.new((len(Q_tile), width), fill, Q.dtype) for width, fill in ((1, -np.inf), (1, 0), (V.shape[1], 0))
    ]
    for cols in _blocks(len(K), block_k):
        if causal and cols.start >= rows.stop:
            continue
        S = Q_tile @ machine.load(K, cols).T
        _hide(S, rows, cols, causal)
        P, alpha, state[0] = _weights(S, *state[:2])
        _weigh(state[2], alpha, P, lambda cols=cols: machine.load(V, cols))
        del S, P, alpha
    state[2] /= state[1]
    return state[2]


def keys_outside(machine: Machine, Q: Any, K: Any, V: Any, block_q: int, block_k: int, causal: bool) -> Any:
    """FlashAttention-1's order, with the state started in SRAM by the first visit of a row, the output stored last."""
    state = [machine.allocate((len(Q), width), Q.dtype) for width in (1, 1, V.shape[1])]
    for cols in _blocks(len(K), block_k):
        visited = [rows for rows in _blocks(len(Q), block_q) if not causal or cols.start < rows.stop]
        if visited:
            _column(machine, Q, K, V, state, cols, visited, causal)
    return state[2]


def _column(machine: Machine, Q: Any, K: Any, V: Any, state: list, cols: slice, visited: list, causal: bool) -> None:
    K_tile, V_tile = machine.load(K, cols), machine.load(V, cols)
    for rows in visited:
        last = cols.stop == len(K) or (causal and cols.stop >= rows.stop)
        _visit(machine, Q, K_tile, V_tile, state, rows, cols, causal, last)


def _visit(
    machine: Machine,
    Q: Any,
    K_tile: Tile,
    V_tile: Tile,
    state: list,
    rows: slice,
    cols: slice,
    causal: bool,
    last: bool,
) -> None:
    Q_tile = machine.load(Q, rows)
    Q_tile *= Q.shape[1] ** -0.5
    if cols.start == 0:
        fills = zip(state, (-np.inf, 0, 0), strict=True)
        tiles = [machine.new((len(Q_tile), part.shape[1]), fill, Q.dtype) for part, fill in fills]
    else:
        tiles = [machine.load(part, rows) for part in state]
    S = Q_tile @ K_tile.T
    _hide(S, rows, cols, causal)
    P, alpha, tiles[0] = _weights(S, *tiles[:2])
    _weigh(tiles[2], alpha, P, lambda: V_tile)
    if last:
        tiles[2] /= tiles[1]
        machine.store(state[2], rows, tiles[2])
        return
    for part, tile in zip(state, tiles, strict=True):
        machine.store(part, rows, tile)


def _hide(S: Tile, rows: slice, cols: slice, causal: bool) -> None:
    """Set what the mask hides to −inf, in place, row by row: no byte of SRAM for the mask."""
    for at, query in enumerate(range(rows.start, rows.stop) if causal else ()):
        S[at, max(query + 1 - cols.start, 0) :] = -np.inf


def _weights(S: Tile, m: Tile, l: Tile) -> tuple[Tile, Tile, Tile]:
    """P in the place of S, alpha in the place of m, and the new m; l is brought up to date."""
    m_new = np.maximum(m, S.max(axis=1, keepdims=True))
    for tile in (m, S):
        tile -= m_new
        np.exp(tile, out=tile)
    l *= m
    l += S.sum(axis=1, keepdims=True)
    return S, m, m_new


def _weigh(O: Tile, alpha: Tile, P: Tile, values: Any) -> None:
    O *= alpha
    O += P @ values()


def example(setting: Setting) -> dict[str, np.ndarray]:
    """Q, K and V of the page's example in float64: multiples of 1/8 from a rule."""
    sizes = {"Q": (setting.n_queries, setting.d), "K": (setting.n_keys, setting.d), "V": (setting.n_keys, setting.d_v)}
    return {
        name: np.array([[_element(name, r, c) for c in range(w)] for r in range(n)]) for name, (n, w) in sizes.items()
    }


def row_states(setting: Setting, row: int) -> list[tuple[float, float, np.ndarray]]:
    """The state (m, l, O) of one row in float64, from the definition, after each tile of keys that it visits."""
    Q, K, V = example(setting).values()
    stop = min((row // setting.block_q + 1) * setting.block_q, setting.n_queries)
    reach = min(stop, setting.n_keys) if setting.causal else setting.n_keys
    states = []
    for end in range(setting.block_k, reach + setting.block_k, setting.block_k):
        seen = min(end, row + 1 if setting.causal else end, setting.n_keys)
        s = K[:seen] @ Q[row] / np.sqrt(setting.d)
        p = np.exp(s - s.max())
        states.append((float(s.max()), float(p.sum()), p @ V[:seen]))
    return states


def _element(name: str, row: int, column: int) -> float:
    bits = ((ARRAYS[name] + 1) * 0x9E3779B1 + (row + 1) * 0x85EBCA77 + (column + 1) * 0xC2B2AE3D) & 0xFFFFFFFF
    bits = (bits ^ bits >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    bits = (bits ^ bits >> 12) * 0x297A2D39 & 0xFFFFFFFF
    return (((bits ^ bits >> 15) & 31) - 16) / 8


def _blocks(length: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]
