"""The bytes that attention moves between HBM and SRAM, as a machine counted them: those of an order of the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.simulated_memory import HBMArray, Machine
from labkit.testing.compare import assert_at_most, assert_equal, require
from labkit.testing.tiles.io_formulas import keys_outside_traffic, queries_outside_traffic

WASTE = 4
"""How many times what the best blocks move is still good use of SRAM."""
OTHER_BLOCKS = "Usual cause: the block sizes given are not the ones used"


class Run:
    """One call on a sealed machine: its output, and what the machine counted in it.

    `told` are bytes `loaded`, `stored`, loaded of `q`, `k` and `v`, `in_use` afterwards, `high_water` and `host_read`;
    `is_handle` and `kind` say what was returned, and `output` is that as an array.
    """

    def __init__(self, told: Mapping[str, Any], arrays: tuple[npt.NDArray, ...], blocks: tuple[int, int]) -> None:
        self.arrays, self.blocks = arrays, blocks
        self.loaded, self.stored, self.q, self.k, self.v = (told[name] for name in ("loaded", "stored", "q", "k", "v"))
        self.in_use, self.high_water, host_read = told["in_use"], told["high_water"], told["host_read"]
        require(
            told["is_handle"],
            f"the result is {told['kind']}, expected what machine.allocate returned: the output lies in HBM",
        )
        require(
            host_read == 0,
            f"{host_read:,} bytes were read out of HBM past the machine (np.asarray or .numpy()): data comes by "
            "machine.load alone",
        )
        require(
            self.q + self.k + self.v > 0,
            "nothing was loaded from Q, K and V: the bytes are to be moved, not calculated",
        )
        self.output = told["output"]

    def rounds(self, name: str, array: npt.NDArray) -> str:
        """How often an array was loaded, on average over its elements."""
        return f"{name} {getattr(self, name.lower()) / array.nbytes:.3g} ×"

    @property
    def told(self) -> str:
        """How often each array was loaded, in words."""
        return ", ".join(self.rounds(name, array) for name, array in zip("QKV", self.arrays, strict=True))


def moved_on_machine(
    function: Callable[..., Any],
    arrays: Sequence[npt.NDArray],
    blocks: Any,
    sram_bytes: int,
    *,
    sealed: bool = True,
    used: bool = False,
) -> dict[str, Any]:
    """Call tiled_traffic or naive_traffic on a fresh machine: what the call moved, and its output, as `Run` takes it.

    `blocks` are (block_q, block_k), or a dict to pass them by name. A sealed machine gets handles of the arrays, any
    other the arrays themselves. With `used`, the machine has counted something before.
    """
    machine = Machine(sram_bytes, sealed=sealed)
    given: list[Any] = [machine.hbm(array) for array in arrays] if sealed else list(arrays)
    positional, named = ((), blocks) if isinstance(blocks, dict) else (blocks, {})
    if used:
        machine.store(given[0], np.s_[:], machine.load(given[0], np.s_[:]))

    def counts() -> dict[str, int]:
        of_each = {name: machine.loaded_from(array) for name, array in zip("qkv", given, strict=True)}
        return {"loaded": machine.loaded, "stored": machine.stored} | of_each

    before = counts()
    result = function(machine, *given, *positional, **named)
    moved = {name: now - before[name] for name, now in counts().items()}
    is_handle = isinstance(result, HBMArray)
    state = {"in_use": machine.in_use, "high_water": machine.high_water, "host_read": machine.host_read}
    told = {"is_handle": is_handle, "kind": type(result).__name__, "stored_to_output": machine.stored_to(result)}
    return {**moved, **state, **told, "output": result.numpy() if is_handle else result}


def what_was_loaded(machines: Sequence[Machine]) -> list[tuple[tuple[int, ...], int, int]]:
    """Of each machine that was used: (shape of the first input loaded from, sram_bytes, traffic)."""
    loaded = [(machine, [each for each in machine._ledger.moved.values() if each.loaded]) for machine in machines]
    inputs = [(machine, [each.hbm for each in moved if not each.stored]) for machine, moved in loaded]
    first = [(machine, arrays[0].shape) for machine, arrays in inputs if arrays]  # type: ignore[attr-defined]
    return [(shape, machine.sram_bytes, machine.traffic) for machine, shape in first]


def assert_tiled_bytes(run: Run) -> None:
    """The bytes of each array must be those of one of the two orders of the loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    (N_q, d), (N_k, d_v), size = Q.shape, V.shape, Q.dtype.itemsize
    T_q, T_k = -(-N_q // block_q), -(-N_k // block_k)
    form = {"n_queries": N_q, "n_keys": N_k, "d": d, "d_v": d_v, "block_q": block_q, "block_k": block_k}
    queries_out, keys_out = (f(**form, dtype_bytes=size) for f in (queries_outside_traffic, keys_outside_traffic))
    if (run.k, run.v) == (K.nbytes, V.nbytes) and T_q > 1 and run.q == T_k * Q.nbytes:
        # Whether the state starts in SRAM or in HBM, and whether a last pass divides, is free; so is m and l in one.
        # That comes to twice the state and more: a state that is moved twice a visit is far above either limit.
        state, visits = N_q * (d_v + 2) * size, run.loaded - run.q - run.k - run.v
        lean = keys_out.loaded - run.q - run.k - run.v
        assert_at_most("what is loaded of the state (keys in the outer loop)", visits, lean + 6 * state)
        assert_at_most("what is stored (keys in the outer loop)", run.stored, keys_out.stored + 6 * state)
        require(
            visits >= (T_k - 1) * N_q * (d_v + 1) * size,
            f"{visits:,} bytes of the state were loaded: with keys in the outer loop the state of every query must go "
            f"to HBM and back for each of {T_k} blocks of keys",
        )
        return
    usual = ""
    if run.q > Q.nbytes and (run.k, run.v) == (T_q * K.nbytes, T_q * V.nbytes):
        usual = "\nThat is exactly what comes out when Q's tile is loaded again for every block of keys"
    elif run.k == 2 * T_q * K.nbytes:
        usual = "\nUsual cause: the keys are gone through twice, once for the maximum"
    elif (run.k, run.v) == (K.nbytes, V.nbytes):
        usual = "\nUsual cause: all of K and V is loaded at once, whatever the blocks are"
    require(
        (run.q, run.k, run.v) == (Q.nbytes, T_q * K.nbytes, T_q * V.nbytes),
        f"blocks of {block_q} × {block_k}, {T_q} of queries and {T_k} of keys: loaded {run.told}\n"
        f"Expected Q once, K and V {T_q} times (queries in the outer loop), or K and V once, Q {T_k} times{usual}",
    )
    assert_equal(
        "the bytes loaded",
        run.loaded,
        queries_out.loaded,
        hint="something besides Q, K and V is loaded: a state in HBM?",
    )
    assert_equal(
        "the bytes stored",
        run.stored,
        queries_out.stored,
        hint="with queries in the outer loop each row of the output is stored once, and nothing else",
    )


def assert_naive_bytes(run: Run) -> None:
    """S and P each stored and loaded once; the products in either order of their loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    T_q, T_k = -(-len(Q) // block_q), -(-len(K) // block_k)
    matrix, output = len(Q) * len(K) * Q.itemsize, len(Q) * V.shape[1] * Q.itemsize
    first = (run.q, run.k) in ((Q.nbytes, T_q * K.nbytes), (T_k * Q.nbytes, K.nbytes))
    again = (T_k - 1) * output if run.v == V.nbytes and T_q > 1 else 0
    require(
        first and run.v in (T_q * V.nbytes, V.nbytes),
        f"blocks of {block_q} × {block_k}, {T_q} of queries and {T_k} of keys: loaded {run.told}\n"
        f"Expected Q once, K and V {T_q} times (or, with keys outside, K or V once and Q {T_k} times)",
    )
    both = run.loaded - run.q - run.k - run.v - again
    named = "the bytes loaded of S and P"
    usual = {
        "S never went to HBM: softmax was computed from tiles in SRAM": matrix,
        "neither S nor P went to HBM: that is tiled attention, not the standard one": 0,
        "S is loaded twice: a whole row fits into SRAM, once is enough": 3 * matrix,
        "S is loaded three times: a whole row fits into SRAM, once is enough": 4 * matrix,
    }
    assert_equal(named, both, 2 * matrix, suspects=usual, hint=f"each is {matrix:,} B and is loaded once")
    usual = {
        "S never went to HBM": matrix + output + again,
        "a further N_q × N_k array is stored": 3 * matrix + output + again,
        "an array is filled in HBM before it is written": 2 * matrix + 2 * output + again,
    }
    assert_equal(
        "the bytes stored", run.stored, 2 * matrix + output + again, suspects=usual, hint="S, P and the output"
    )


def assert_a_few_tiles(run: Run) -> None:
    """Of tiled attention with float32 inputs as wide as its values: SRAM holds what a round needs, and that much."""
    (block_q, block_k), d = run.blocks, run.arrays[0].shape[-1]
    name = f"SRAM in use at once with blocks of {block_q} × {block_k}, d = {d}"
    room = 4 * (7 * block_q * d + 4 * block_k * d + 4 * block_q * block_k + 8 * block_q)
    hint = f"That is room for 7 tiles of {block_q} × {d}, 4 of {block_k} × {d}, 4 of scores and 8 columns\n"
    hint += "Usual cause: names of the last round keep its tiles alive beside this round's: del them"
    assert_at_most(name, run.high_water, room, hint=hint)
    least = 4 * (block_q * d + block_k * d + block_q * block_k)
    told = f"SRAM held {run.high_water:,} bytes at most; Q's tile of {block_q} × {d}, K's of {block_k} × {d}"
    require(run.high_water >= least, f"{told} and their product take {least:,}\n{OTHER_BLOCKS}")


def assert_fits(blocks: tuple[int, int], sram_bytes: int, d: int, dtype_bytes: int = 4) -> None:
    """Q, the output, a block of keys or values, the scores, m and l: nobody can do without these at once."""
    block_q, block_k = blocks
    least = dtype_bytes * (2 * block_q * d + block_k * d + block_q * block_k + 2 * block_q)
    scores = dtype_bytes * block_q * block_k
    assert_at_most(
        f"what blocks of {block_q} × {block_k} need at the very least, d = {d}, {dtype_bytes} B each",
        least,
        sram_bytes,
        unit="bytes of SRAM",
        hint=f"Q, the output, one block of keys, the scores ({scores:,} B), m and l. Usual cause: the scores or d are "
        "left out, or elements are taken for bytes",
    )


def assert_makes_use(blocks: tuple[int, int], sram_bytes: int, d: int, dtype_bytes: int) -> None:
    """For a long sequence, one order of the loops must move little with these blocks."""
    N = 1 << 16
    moved = min(form(N, N, d, d, *blocks).total for form in (queries_outside_traffic, keys_outside_traffic))
    assert_at_most(
        f"the traffic with blocks of {blocks[0]} × {blocks[1]}, {sram_bytes:,} B of SRAM, d = {d}, in units of what "
        "the best blocks move,",
        round(moved / least_traffic(N, sram_bytes, d, dtype_bytes), 2),
        WASTE,
        unit="",
        hint="One block size decides the traffic (block_q with queries outside): it must grow as SRAM does",
    )


def least_traffic(N: int, sram_bytes: int, d: int, dtype_bytes: int) -> float:
    """About the bytes, of 4-byte elements, that tiled attention of N tokens moves where SRAM is used well.

    Of its elements a query takes 3·d, for Q, output and product, and 19, for its scores with 16 keys and three columns.
    """
    n_queries_at_once = (sram_bytes / dtype_bytes - 16 * d) / (3 * d + 19)
    return 4 * 2 * N * d * (1 + N / n_queries_at_once)
