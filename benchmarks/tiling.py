"""Chapter 4: tiled attention in NumPy against standard attention *in place*, on one thread.

The textbook form, with a new array for every operation, loses mostly to page faults and is a weak baseline. Each "+"
row has all the steps above it. Memory is the peak of tracemalloc less the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType

import numpy as np

from benchmarks.harness import Column, Table, rows, solution_module, time_in_turn
from labkit.meters.arrays import measure_arrays

BLOCKS = (256, 512)
IN_PLACE = "standard, in place"
HEADING = "step, each on top of the one before"
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """Three tables: the steps of the tuning, causal attention, and standard attention tuned by the same steps."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, d), dtype=np.float32) for _ in range(3)]
    setting = f"N={n}, d={d}, float32, one thread, {rounds} rounds, NumPy {np.__version__}"
    for name, forms in candidates().items():
        calls = {form: partial(attention, *inputs) for form, attention in forms.items()}
        times = time_in_turn(calls, rounds)
        columns: dict[str, Column] = {"ms": times.ms, "speed, in place = 1": times.times_as_fast(IN_PLACE)}
        if name == "tiling":
            columns["gain of the step"] = times.gain
        columns["MiB besides the output"] = partial(extra_mib, calls)
        shown = ("04_tiling_and_blocking.md", setting, HEADING) if name == "tiling" else ("", setting, name)
        yield Table(name, *shown, list(columns), rows(calls, columns))


def extra_mib(calls: Mapping[str, Callable[[], np.ndarray]], name: str) -> float:
    """The peak of one call, minus its output."""
    memory = measure_arrays(calls[name], warm=False)
    return round((memory.peak_bytes - memory.result.nbytes) / 2**20, 3)


def candidates() -> dict[str, dict[str, Attention]]:
    """The forms compared, by table."""
    plain, tuned = solution_module("04"), solution_module("04", "alternatives/tuned")

    def tiled(module: ModuleType, blocks: tuple[int, int], causal: bool = False) -> Attention:
        return lambda Q, K, V: module.tiled_attention(Q, K, V, *blocks, causal=causal)

    return {
        "tiling": {
            "standard, textbook (a new array for each operation, three alive at once)": naive_textbook,
            IN_PLACE: naive_in_place,
            "tiles of 64 × 64, plain": tiled(plain, (64, 64)),
            "tiles of 256 × 512, plain": tiled(plain, BLOCKS),
            "+ results into buffers made once (`out=`), subtraction and exp in place": stepped,
            "+ rescale only when a maximum moved": partial(stepped, lazy=True),
            "+ a column of ones on $V$: the product gives the row sums": partial(stepped, lazy=True, ones=True),
            "+ no maximum where it cannot matter": partial(stepped, lazy=True, ones=True, bound=True),
            "the same, complete (masks, batches, any shape)": tiled(tuned, BLOCKS),
        },
        "tiling_causal": {
            "standard, in place, not causal": naive_in_place,
            IN_PLACE: partial(naive_in_place, causal=True),
            "tiles of 256 × 512, plain": tiled(plain, BLOCKS, causal=True),
            "alternatives/tuned.py": tiled(tuned, BLOCKS, causal=True),
        },
        "tiling_without_tiles": {
            IN_PLACE: naive_in_place,
            "standard, fewer passes": naive_fewer_passes,
            "standard, fewer passes, no maximum": partial(naive_fewer_passes, bound=True),
            "alternatives/tuned.py": tiled(tuned, BLOCKS),
        },
    }


def naive_textbook(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Standard attention, `(N, d)` each, a new N × N array for every operation."""
    S = Q @ K.T * np.float32(Q.shape[1] ** -0.5)
    powers = np.exp(S - S.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ V


def naive_in_place(Q: np.ndarray, K: np.ndarray, V: np.ndarray, causal: bool = False) -> np.ndarray:
    """Standard attention, `(N, d)` each, in one N × N array; the causal form computes all of it, then masks rows."""
    S = Q @ K.T
    S *= np.float32(Q.shape[1] ** -0.5)
    if causal:
        for i in range(len(S)):
            S[i, i + 1 :] = -np.inf
    S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    return S @ V


def naive_fewer_passes(Q: np.ndarray, K: np.ndarray, V: np.ndarray, bound: bool = False) -> np.ndarray:
    """Naive attention that scales Q, divides the output, and with `bound` subtracts no maximum."""
    S = (Q * np.float32(Q.shape[1] ** -0.5)) @ K.T
    if not bound:
        S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    O = S @ np.concatenate([V, np.ones_like(V[:, :1])], axis=1)
    return O[:, :-1] / O[:, -1:]


def stepped(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, lazy: bool = False, ones: bool = False, bound: bool = False
) -> np.ndarray:
    """Tiled attention, `(N, d)` each, tuned by the steps that are set.

    `lazy` rescales only when a maximum moved, `ones` sums the rows by a column of ones on V, `bound` leaves the
    maximum out (the caller knows that no score overflows).
    """
    block_q, block_k = BLOCKS
    (n, d), d_v = Q.shape, V.shape[1]
    width = d_v + ones
    output = np.empty((n, d_v), Q.dtype)
    scores, V_ones = np.empty((block_q, block_k), Q.dtype), np.ones((block_k, width), Q.dtype)
    total_buffer, product = np.empty((block_q, width), Q.dtype), np.empty((block_q, width), Q.dtype)
    for i in range(0, n, block_q):
        Q_tile = Q[i : i + block_q] * Q.dtype.type(d**-0.5)
        rows = len(Q_tile)
        m, l = np.full((rows, 1), -np.inf, Q.dtype), np.zeros((rows, 1), Q.dtype)
        total = total_buffer[:rows]
        total[...] = 0
        for j in range(0, n, block_k):
            keys = min(block_k, n - j)
            S = np.matmul(Q_tile, K[j : j + keys].T, out=scores.reshape(-1)[: rows * keys].reshape(rows, keys))
            if not bound:
                m_new = np.maximum(m, S.max(axis=1, keepdims=True))
                if not lazy or (m_new > m).any():
                    alpha = np.exp(m - m_new)
                    l *= alpha
                    total *= alpha
                    m = m_new
                S -= m
            np.exp(S, out=S)
            if ones:
                V_ones[:keys, :-1] = V[j : j + keys]
            else:
                l += S.sum(axis=1, keepdims=True)
            total += np.matmul(S, V_ones[:keys] if ones else V[j : j + keys], out=product[:rows])
        np.divide(total[:, :d_v], total[:, d_v:] if ones else l, out=output[i : i + rows])
    return output
