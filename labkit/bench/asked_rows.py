"""Calls of Lab 02's `benchmark_attention` where the answer is, and what must be true of their rows and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.bench.accounting import MIB
from labkit.bench.published import ADD_MEM, LENGTHS, MEM_MAX
from labkit.bench.step_assertions import as_asked, assert_memory_columns, assert_time_columns, step_memory
from labkit.testing.compare import assert_equal, require

MEASURED = ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")
Row = dict[str, Any]
Counts = dict[str, int]


class AskedRows:
    """Asks for rows by `run`, a program of the suite: see `labkit.testing.lines.Lines`.

    Lines must know `stand_ins`, which is `labkit.meters.stand_ins`.
    """

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = run

    def rows(self, d_models: Sequence[int], seq_lens: Sequence[int], *, within: str = "", **asked: Any) -> list[Row]:
        """The rows, which must be those asked for; `within` is what the call stands in, lines that end in `with …:`."""
        line = f"note(benchmark_attention({d_models}, {seq_lens}, **asked))"
        (rows,) = self.run(f"{within}\n    {line}" if within else line, asked=asked)
        return as_asked(rows, d_models, seq_lens, **asked)

    def counted(
        self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any
    ) -> tuple[list[Row], Counts, Counts]:
        """Rows, how many "exp" and "bmm" ran for them, and how many of them with no tracker looking on."""
        lines = f"""
with stand_ins.OperatorCount() as count:
    note(benchmark_attention({d_models}, {seq_lens}, **asked))
note((count.counts, count.unwatched))
"""
        rows, counts = self.run(lines, asked=asked)
        return as_asked(rows, d_models, seq_lens, **asked), *counts

    def assert_memory(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Bytes of every row, on the CPU or simulated, to the byte."""
        for row in self.rows(d_models, seq_lens, **asked):
            assert_memory_columns(row)

    def assert_published(self) -> None:
        """The published table, simulated: its bytes as they are printed there, and no times."""
        rows = self.rows(list(MEM_MAX), list(LENGTHS), device="meta")
        for number, row in enumerate(rows):
            for name in ("fwd_ms", "bwd_ms"):
                told = f"{name} of row {number} is {row[name]}, expected None: a simulation has no times"
                require(row[name] is None, told)
            n = number % len(LENGTHS)
            assert_memory_columns(row, printed=(MEM_MAX[row["d_model"]][n], ADD_MEM[n]))

    def assert_on_a_gpu(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Times above 0, and bytes as near to the simulation's as a GPU's allocator and workspaces let them be."""
        for row in self.rows(d_models, seq_lens, device="cuda", **asked):
            _assert_row_of_a_gpu(row)

    def assert_measured(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Two rows of a simulated device, for which two steps of each must run at the least."""
        _, counts, _ = self.counted(d_models, seq_lens, **asked)
        told = f"for two rows, {counts['exp']} forward passes ran on meta tensors, expected two steps of each"
        cause = "the numbers are worked out by a formula, or copied: this table is to be measured"
        require(counts["exp"] >= 4 and counts["bmm"] >= 20, f"{told}\nUsual cause: {cause}")

    def assert_steps(self) -> None:
        """Steps are those asked for, whole, and timed where no tracker slows them down.

        Three calls are compared: with two steps, with five, and with two after three to warm up.
        """
        ran: dict[tuple[int, int], Counts] = {}
        unwatched: dict[tuple[int, int], Counts] = {}
        for warmup, steps in ((0, 2), (0, 5), (3, 2)):
            asked = {"batch_size": 1, "warmup_steps": warmup, "steps": steps}
            _, ran[warmup, steps], unwatched[warmup, steps] = self.counted([4], [8], **asked)
        n_steps = {asked: counts["exp"] for asked, counts in ran.items()}
        assert_equal("the number of forward passes that three steps more bring", n_steps[0, 5] - n_steps[0, 2], 3)
        assert_equal("the number of forward passes that three warm-up steps bring", n_steps[3, 2] - n_steps[0, 2], 3)
        told = (
            "a step has 2 products in the forward pass and 4 in the backward pass; those of three steps are not there"
        )
        require(ran[0, 5]["bmm"] - ran[0, 2]["bmm"] == 18, told)
        told = f"of 5 timed steps, {unwatched[0, 5]['exp']} ran without a tracker looking on"
        why = "A tracker slows every operator down: measure memory in steps of their own, and time without it"
        require(unwatched[0, 5]["exp"] >= 5, f"{told}\n{why}")

    def assert_second_runs_out(
        self, d_models: Sequence[int], seq_lens: Sequence[int], *, within: str, **asked: Any
    ) -> None:
        """Of three rows the second, too large for its device, has no numbers, and spoils nothing of the third."""
        try:
            rows = self.rows(d_models, seq_lens, within=within, **asked)
        except RuntimeError as uncaught:
            require("memory" not in str(uncaught), f"out of memory ends the benchmark: {str(uncaught)[:60]} …")
            raise
        statuses = [row["status"] for row in rows]
        assert_equal("status of three rows, the second too large,", statuses, ["success", "oom", "success"])
        for name in MEASURED:
            require(rows[1][name] is None, f"{name} of a row that ran out of memory is {rows[1][name]}, expected None")
        assert_memory_columns(rows[2])

    def assert_times(self, rng: np.random.Generator, warmup: int, steps: int) -> None:
        """The medians of steps that take milliseconds drawn at random: see `PacedSteps`."""
        costs = {
            name: [9000, 8000, *map(int, rng.permutation([*(least + rng.permutation(30)[: steps - 1]), least + 700]))]
            for name, least in (("fwd_ms", 10), ("bwd_ms", 60))
        }
        lines = f"""
with stand_ins.PacedSteps(*costs.values(), getattr(benchmark_attention, "__globals__", {{}})) as paced:
    note(benchmark_attention([4], [16], batch_size=2, warmup_steps={warmup}, steps={steps}))
note(paced.taken_ms)
"""
        rows, taken_ms = self.run(lines, costs=costs)
        (row,) = as_asked(rows, [4], [16], batch_size=2, warmup_steps=warmup, steps=steps)
        assert_time_columns(row, taken_ms)


def _assert_row_of_a_gpu(row: Row) -> None:
    require(row["status"] == "success", f"status is {row['status']!r}, expected 'success'")
    require(row["fwd_ms"] > 0 and row["bwd_ms"] > 0, "a time is not above 0")
    shape = row["batch_size"], row["seq_len"], row["d_model"]
    saved = step_memory(shape, "saved") / MIB
    told = f"add_mem_MB is {row['add_mem_MB']:.6g} on a GPU; the allocator may add 1 MiB a block to {saved:.6g}"
    require(abs(row["add_mem_MB"] - saved) <= 2, told)
    least = step_memory(shape, "forward_peak", workspace_bytes=0) / MIB
    told = f"mem_max_MB is {row['mem_max_MB']:.6g} on a GPU, expected {least:.6g} and at most 140 for workspaces"
    require(least <= row["mem_max_MB"] <= least + 140, told)
