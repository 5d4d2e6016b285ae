"""Times tiled attention in NumPy against naive attention, step by step: `python -m benchmarks.tiling`.

One thread, rounds of all candidates in turn, medians of its CPU time (what other programs take from the core is not
counted); speed is a ratio to *in-place* naive attention of the same run. The textbook form, with a new array for every
operation, is printed too, but it loses mostly to page faults and proves nothing. Each step of the tuning is timed with
all the steps above it in place. Memory is the peak of tracemalloc less the output.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

if "numpy" not in sys.modules:
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[_variable] = "1"

import importlib.util
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np

from labkit.meters.arrays import measure_arrays

LAB = Path(__file__).parents[1] / "solutions" / "lab04_tiling"
BLOCKS = (256, 512)
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def main(arguments: list[str] | None = None) -> None:
    """Print three tables: the steps of the tuning, causal attention, and naive attention tuned by the same means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiling", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096, help="queries and keys")
    parser.add_argument("--d", type=int, default=64, help="width of Q, K and V")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((options.n, options.d), dtype=np.float32) for _ in range(3)]
    plain, tuned = load_answer(), load_answer("tuned")

    def tiled(module: ModuleType, blocks: tuple[int, int], causal: bool = False) -> Attention:
        return lambda Q, K, V: module.tiled_attention(Q, K, V, *blocks, causal=causal)

    print(f"N={options.n}, d={options.d}, float32, one thread, medians of {options.rounds} interleaved rounds")
    _table(
        {
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
        inputs,
        options.rounds,
    )
    print("\ncausal")
    _table(
        {
            "naive, in place, not causal": naive_in_place,
            "naive, in place": lambda Q, K, V: naive_in_place(Q, K, V, causal=True),
            "tiled, plain, 256 × 512": tiled(plain, BLOCKS, causal=True),
            "right/tuned.py": tiled(tuned, BLOCKS, causal=True),
        },
        inputs,
        options.rounds,
    )
    print("\nthe same means without tiles")
    _table(
        {
            "naive, in place": naive_in_place,
            "naive, fewer passes": naive_fewer_passes,
            "naive, fewer passes, no maximum": lambda Q, K, V: naive_fewer_passes(Q, K, V, bound=True),
            "right/tuned.py": tiled(tuned, BLOCKS),
        },
        inputs,
        options.rounds,
    )


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


def load_answer(right: str | None = None) -> ModuleType:
    """The lab's solution as a module, with the functions of `right/<right>.py` in place of its own."""
    files = [LAB / "src" / "tiling.py"] + ([LAB / "right" / f"{right}.py"] if right else [])
    spec = importlib.util.spec_from_file_location(f"tiling_{right or 'solution'}", files[0])
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    for file in files:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def _table(candidates: dict[str, Attention], inputs: list[np.ndarray], rounds: int) -> None:
    """Time the candidates in turn and print them; each "+" line says its gain over the line above it."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for lap in range(rounds + 1):
        for name, attention in candidates.items():
            started = time.process_time()
            attention(*inputs)
            if lap:  # the first one warms up
                seconds[name].append(time.process_time() - started)
    typical = {name: median(times) for name, times in seconds.items()}
    baseline = typical["naive, in place"]
    print(f"  {'':32s} {'ms':>7} {'× naive':>8} {'gain':>6} {'extra MiB':>10}")
    before = None
    for name, attention in candidates.items():
        memory = measure_arrays(attention, *inputs, warm=False)
        extra = (memory.peak_bytes - memory.result.nbytes) / 2**20
        gain = f"{before / typical[name]:.2f}" if before and name.startswith("+") else ""
        before = typical[name]
        print(f"  {name:32s} {1e3 * before:7.1f} {baseline / before:8.2f} {gain:>6} {extra:10.2f}", flush=True)


if __name__ == "__main__":
    main()
