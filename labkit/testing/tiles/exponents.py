"""Stand-ins for what fits exponents of the traffic, and the check that a fit is one of least squares."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.testing.compare import assert_keys, assert_type, require

Setting = tuple[int, int, int]


def assert_exponents(got: Any, counted: Mapping[Setting, int], why: str) -> None:
    """The exponents are those of least squares: what they leave of the logarithms is level along each of N, d and M.

    `counted` is {(N, d, M): bytes} for every combination, so that N, d and M vary independently.
    """
    got = assert_keys("io_exponents's result", got, ("N", "d", "M"))
    for name in "NdM":
        assert_type(f"the exponent of {name}", got[name], (float, np.floating), "a float")
    settings, moved = np.log(list(counted)), np.log(list(counted.values()))
    left = moved - settings @ [float(got[name]) for name in "NdM"]
    for name, values in zip("NdM", settings.T - settings.mean(0)[:, None], strict=True):
        slope = float(values @ left / (values @ values))
        require(
            abs(slope) < 1e-6,
            f"the exponent of {name} is {got[name]:.5f}, expected {got[name] + slope:.5f}: {why}",
        )


class StandIns:
    """A tiled_traffic that moves bytes by a rule only this object knows, and a choose_blocks that notes its blocks."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.bytes: dict[Setting, int] = {}
        self.calls: list[Setting] = []
        self.problems: list[str] = []

    def called(self, how: Mapping[str, Any]) -> Setting:
        """Note a call of tiled_traffic, and say what it moves: so many loads and stores, of so many elements."""
        N, d = (*how["shapes"][0], 1, 1)[:2]
        M = how["sram_bytes"]
        if how["traffic_before"]:
            self.problems.append("tiled_traffic was called on a machine already used: each run needs a fresh one")
        if set(how["shapes"]) != {(N, d)} or set(how["dtypes"]) != {"float32"}:
            shapes = ", ".join(map(str, how["shapes"]))
            self.problems.append(f"Q, K, V are {shapes} of {how['dtypes'][0]}: expected (N, d), float32")
        block_q, block_k = how["blocks"]
        if (block_q, block_k) != self.choose_blocks(M, d):
            self.problems.append(f"blocks of {block_q} × {block_k} are not those of choose_blocks({M}, {d})")
        n_loads, n_stores, width = self.moves(N, d, M)
        self.calls.append((N, d, M))
        self.bytes[N, d, M] = (n_loads + n_stores) * width * 4
        return n_loads, n_stores, width

    def moves(self, N: int, d: int, M: int) -> Setting:
        """Loads, stores, and the elements moved by each."""
        n_loads = int(self.rng.integers(2, 60))
        return n_loads, -(-n_loads // 3), d

    def choose_blocks(self, sram_bytes: int, d: int, dtype_bytes: int = 4) -> tuple[int, int]:
        """Blocks that mean nothing, the same each time."""
        if dtype_bytes != 4:
            self.problems.append(f"choose_blocks was asked for {dtype_bytes} bytes an element: float32 has 4")
        return sram_bytes % 7 + 1, d % 5 + 1

    def assert_ran(self, grid: Sequence[Sequence[int]]) -> None:
        """Every combination of the grid was run as the handout says."""
        require(
            self.calls,
            "tiled_traffic was never called: the exponents are to be measured on machines, not known beforehand",
        )
        require(not self.problems, self.problems[0] if self.problems else "")
        missing = set(itertools.product(*grid)) - set(self.bytes)
        require(not missing, f"{len(missing)} combinations were never run, e.g. (N, d, M) = {min(missing, default=0)}")


class PowerLaw(StandIns):
    """A tiled_traffic that moves N²·d/M elements exactly."""

    def moves(self, N: int, d: int, M: int) -> Setting:
        """One element at a time."""
        return N * N * d // M, 0, 1
