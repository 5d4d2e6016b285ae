"""Chapter 4: tiled attention in NumPy against standard attention *in place*, on one thread.

The textbook form, with a new array for every operation, loses mostly to page faults and is a weak baseline. Each "+"
row has all the steps above it. Memory is the peak of tracemalloc less the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from benchmarks.harness import Column, Table, made, solution_module, time_in_turn
from labkit.meters.arrays import measure_arrays

BLOCKS = (256, 512)
IN_PLACE = "standard, in place"
HEADING = "step, each on top of the one before"
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """One table: the steps of the tuning."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, d), dtype=np.float32) for _ in range(3)]
    calls = {form: partial(attention, *inputs) for form, attention in candidates().items()}
    times = time_in_turn(calls, rounds)
    columns: dict[str, Column] = {
        "ms": times.ms,
        "speed, in place = 1": times.times_as_fast(IN_PLACE),
        "gain of the step": times.gain,
        "MiB besides the output": partial(extra_mib, calls),
    }
    setting = f"N={n}, d={d}, float32, one thread, {rounds} rounds, NumPy {np.__version__}"
    yield made("tiling", "labs/lab04_tiling/README.md", setting, HEADING, calls, columns)


def extra_mib(calls: Mapping[str, Callable[[], np.ndarray]], name: str) -> float:
    """The peak of one call, minus its output."""
    memory = measure_arrays(calls[name], warm=False)
    return round((memory.peak_bytes - memory.result.nbytes) / 2**20, 3)


def candidates() -> dict[str, Attention]:
    """The forms compared."""
    plain, tuned = (solution_module("04", other).tiled_attention for other in ("", "alternatives/tuned"))
    return {
        "standard, textbook (a new array for each operation, three alive at once)": naive_textbook,
        IN_PLACE: naive_in_place,
        "tiles of 64 × 64, plain": partial(plain, block_q=64, block_k=64),
        "tiles of 256 × 512, plain": partial(plain, block_q=BLOCKS[0], block_k=BLOCKS[1]),
        "+ results into buffers made once (`out=`), subtraction and exp in place": stepped,
        "+ rescale only when a maximum moved": partial(stepped, lazy=True),
        "+ a column of ones on $V$: the product gives the row sums": partial(stepped, lazy=True, ones=True),
        "+ no maximum where it cannot matter": partial(stepped, lazy=True, ones=True, bound=True),
        "the same, complete (masks, batches, any shape)": partial(tuned, block_q=BLOCKS[0], block_k=BLOCKS[1]),
    }


def naive_textbook(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Standard attention, `(N, d)` each, a new N × N array for every operation."""
    S = Q @ K.T * np.float32(Q.shape[1] ** -0.5)
    powers = np.exp(S - S.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ V


def naive_in_place(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Standard attention, `(N, d)` each, in one N × N array."""
    S = Q @ K.T
    S *= np.float32(Q.shape[1] ** -0.5)
    S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    return S @ V


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
