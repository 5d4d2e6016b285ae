"""Tiled attention in NumPy against naive attention, step by step.

One thread; speed is a ratio to *in-place* naive attention of the same run. The textbook form, with a new array for
every operation, is shown too, but it loses mostly to page faults and proves nothing. Each "+" line is timed with all
the steps above it in place. Memory is the peak of tracemalloc less the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import numpy as np

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.arrays import measure_arrays

BLOCKS = (256, 512)
IN_PLACE = "naive, in place"
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """Three tables: the steps of the tuning, causal attention, and naive attention tuned by the same means."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, d), dtype=np.float32) for _ in range(3)]
    setting = f"N={n}, d={d}, float32, one thread, {rounds} rounds, NumPy {np.__version__}"
    for title, forms in candidates().items():
        runs = {name: partial(attention, *inputs) for name, attention in forms.items()}
        made = rows(time_in_turn(runs, rounds), (IN_PLACE,), partial(extra_mib, forms, inputs))
        yield Table("tiling", title, setting, "beside the output", made)


def extra_mib(forms: dict[str, Attention], inputs: list[np.ndarray], name: str) -> float:
    """The peak of one call of a form, less its output."""
    memory = measure_arrays(forms[name], *inputs, warm=False)
    return round((memory.peak_bytes - memory.result.nbytes) / 2**20, 3)


def candidates() -> dict[str, dict[str, Attention]]:
    """The forms compared, by table."""
    plain, tuned = answer_module("04"), answer_module("04", "right/tuned")

    def tiled(module: ModuleType, blocks: tuple[int, int], causal: bool = False) -> Attention:
        return lambda Q, K, V: module.tiled_attention(Q, K, V, *blocks, causal=causal)

    return {
        "steps of the tuning": {
            "naive, textbook": naive_textbook,
            "naive, in place": naive_in_place,
            "tiled, plain, 64 × 64": tiled(plain, (64, 64)),
            "tiled, plain, 256 × 512": tiled(plain, BLOCKS),
            "+ in place, in buffers": lambda Q, K, V: stepped(Q, K, V),
            "+ rescale when it moved": lambda Q, K, V: stepped(Q, K, V, lazy=True),
            "+ ones column on V": lambda Q, K, V: stepped(Q, K, V, lazy=True, ones=True),
            "+ no maximum when safe": lambda Q, K, V: stepped(Q, K, V, lazy=True, ones=True, bound=True),
            "right/tuned.py": tiled(tuned, BLOCKS),
        },
        "causal": {
            "naive, in place, not causal": naive_in_place,
            "naive, in place": lambda Q, K, V: naive_in_place(Q, K, V, causal=True),
            "tiled, plain, 256 × 512": tiled(plain, BLOCKS, causal=True),
            "right/tuned.py": tiled(tuned, BLOCKS, causal=True),
        },
        "the same means without tiles": {
            "naive, in place": naive_in_place,
            "naive, fewer passes": naive_fewer_passes,
            "naive, fewer passes, no maximum": lambda Q, K, V: naive_fewer_passes(Q, K, V, bound=True),
            "right/tuned.py": tiled(tuned, BLOCKS),
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
    """Tiled attention, `(N, d)` each, tuned as far as asked for.

    `lazy` rescales only when a maximum moved, `ones` lets a column of ones on V sum the rows, `bound` leaves the
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
