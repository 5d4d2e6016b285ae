"""Drives a block manager at random and checks nothing: the same calls, in order, as a suite's checks make."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.meters.sessions import CallLog

RANDOM_SIZES = 8, 2
"""Blocks, and tokens in a block, of a manager that is driven at random: few, so that blocks run out."""


def record_random_operations(make: Callable[[int, int], Any], seed: int) -> list[tuple[str, Any, str | None]]:
    """The record of a new manager's calls; it ends early before one that raises what no manager should."""
    recorder = CallLog(None)
    with contextlib.suppress(Exception):
        recorder.thing = make(*RANDOM_SIZES)
        random_operations(_Unchecked(recorder), np.random.default_rng(seed))
    return recorder.record


def random_operations(managed: Any, rng: np.random.Generator) -> None:
    """Sequences come, grow, fork and go; tokens are few, so that prefixes meet.

    Args:
        managed: has `allocate`, `append`, `fork` and `free`, and `texts`, the tokens of each living sequence.
    """
    earlier = [[0]]
    for step in range(40):
        living = sorted(managed.texts)
        seq_id = living[rng.integers(len(living))] if living else None
        kind = rng.choice(["allocate", "append", "fork", "free"], p=[0.4, 0.3, 0.1, 0.2])
        if kind == "allocate" or seq_id is None:
            text = earlier[rng.integers(len(earlier))]
            text = text[: rng.integers(len(text) + 1)] + rng.integers(0, 2, rng.integers(1, 6)).tolist()
            managed.allocate(step, text)
            earlier.append(text)
        elif kind == "append":
            for token_id in rng.integers(0, 2, rng.integers(1, 4)).tolist():
                managed.append(seq_id, token_id)
        elif kind == "fork":
            managed.fork(seq_id, step)
            for writer in rng.permutation([seq_id, step]).tolist():
                managed.append(writer, int(rng.integers(2)))
        else:
            earlier.append(managed.texts[seq_id])
            managed.free(seq_id)


class _Unchecked:
    """Makes the calls of `labkit.testing.decoding.managed.Managed`."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.texts: dict[int, list[int]] = {}

    def allocate(self, seq_id: int, token_ids: list[int]) -> None:
        self.manager.can_allocate(token_ids)
        with contextlib.suppress(RuntimeError):
            self.manager.allocate(seq_id, token_ids)
            self.manager.num_cached_tokens(seq_id)
            self.texts[seq_id] = list(token_ids)
        self._look()

    def append(self, seq_id: int, token_id: int) -> None:
        self.manager.block_table(seq_id)
        try:
            self.manager.append(seq_id, token_id)
        except RuntimeError:
            self.manager.num_free_blocks()
            self.manager.block_table(seq_id)
            return
        self.texts[seq_id].append(token_id)
        self.manager.block_table(seq_id)
        self._look()

    def fork(self, parent: int, child: int) -> None:
        self.manager.fork(parent, child)
        self.texts[child] = list(self.texts[parent])
        self.manager.num_cached_tokens(child)
        self._look()

    def free(self, seq_id: int) -> None:
        self.manager.free(seq_id)
        del self.texts[seq_id]
        self._look()

    def _look(self) -> None:
        for seq_id in self.texts:
            self.manager.block_table(seq_id)
        self.manager.num_free_blocks()
