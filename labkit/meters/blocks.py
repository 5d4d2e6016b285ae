"""Blocks that come once: iterators that are made beside the function they are given to."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def passing(blocks: Iterable[npt.NDArray]) -> Iterator[npt.NDArray]:
    """Copies of `blocks`, each filled with NaN as soon as the next one is asked for."""
    last = None
    for block in blocks:
        if last is not None:
            last.fill(np.nan)
        last = block.copy()
        yield last
    if last is not None:
        last.fill(np.nan)


def fresh(rng: np.random.Generator, n_blocks: int, shape: Any, made: list[Any]) -> Iterator[npt.NDArray]:
    """`n_blocks` random float32 blocks; `made` grows by one with each."""
    for _ in range(n_blocks):
        made.append(shape)
        yield rng.standard_normal(shape, dtype=np.float32)


def drawn(shape: tuple[int, ...], seeds: Iterable[int]) -> Iterator[npt.NDArray]:
    """A random float32 block for each seed, made when it is asked for."""
    return (np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) for seed in seeds)
