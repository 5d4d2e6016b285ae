"""What Lab 02's tests share: rows of the benchmark, bytes of attention's training step, and usual mistakes in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from labkit.bench.accounting import (
    CUDA_ROUNDING_BYTES,
    CUDA_WORKSPACE_BYTES,
    MIB,
    attention_memory,
    longest_that_fits,
)
from labkit.bench.rows import COLUMNS, Row
from labkit.bench.variants import written_out
from labkit.meters.allocation import AllocationMeter
from labkit.testing.compare import assert_equal, assert_keys, assert_type, require
from labkit.testing.lines import assert_bytes

Shape = tuple[int, int, int]
Suspects = dict[str, float]
Counts = dict[str, int]

LENGTHS = (256, 1024, 4096, 8192, 16384)
ADD_MEM = ("4.02344", "64.0938", "1024.38", "4096.75", "16385.5")
MEM_MAX = {
    16: ("72.7739", "195.094", "2124.38", "8280.75", "32881.5"),
    32: ("73.5239", "198.094", "2136.38", "8304.75", "32929.5"),
    64: ("75.0239", "204.094", "2160.38", "8352.75", "33025.5"),
    128: ("78.0239", "216.094", "2208.38", "8448.75", "33217.5"),
}
"""The published table as printed, in MiB, for each of `LENGTHS`: add_mem_MB for any d_model, mem_max_MB by d_model."""

MEASURED = ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")
EXACT = {"round_to": 1, "workspace_bytes": 0}
"""How the CPU counts: nothing rounded, and no workspace."""

SQUARES = ("scores", "shifted", "exponentials", "weights")
LEFT_OUT = {
    "workspace": "the workspace of 64 MiB is left out",
    "gradients": "the gradients, as large as the inputs, or the inputs are left out",
    "loss": "the loss is left out",
    "argmax": "the positions of the maxima are left out",
    "row_sums": "the row sums are left out",
}


def step_memory(shape: Shape, definition: str, **options: Any) -> int:
    """Bytes of a training step of (batch, seq_len, d_model): the sum of `attention_memory`."""
    return sum(attention_memory(*shape, definition=definition, **options).values())


def new_bytes(shape: Shape, definition: str, **options: Any) -> int:
    """Bytes that a call of attention on the CPU takes over its inputs and over gradients that were there before."""
    parts = attention_memory(*shape, definition=definition, **EXACT | options)
    return sum(nbytes for name, nbytes in parts.items() if name not in ("inputs", "gradients"))


def saved_by(shape: Shape) -> dict[str, int]:
    """What each of three ways to call attention keeps for its backward pass on the CPU, in bytes."""
    batch, n, _ = shape
    columns_too = step_memory(shape, "saved", **EXACT)
    return {
        "examples.attention(q, k, v).sum()": columns_too,
        "examples.attention(q, k, v)": columns_too,
        "examples.attention_built_in(q, k, v).sum()": 4 * batch * n * n,
    }


def assert_prediction(got: Any, shape: Shape, itemsize: int = 4) -> None:
    """Compare parts and totals of a training step, as Lab 02's `attention_training_memory` gives them."""
    want = _parts(*shape, itemsize)
    suspects = {name: _part_suspects(name, *shape, itemsize) for name in want}
    for total in ("saved", "forward_peak", "step_peak"):
        want[total] = step_memory(shape, total, dtype_bytes=itemsize)
        suspects[total] = _total_suspects(total, shape, itemsize)
    hints = {
        "argmax": "positions are int64, 8 bytes each, whatever the dtype of the rest",
        "forward_peak": "the larger of two moments of the forward pass, as the handout lists them",
        "step_peak": "the largest of five moments, as the handout lists them",
    }
    assert_keys("the result", got, want)
    where = "of batch {}, seq_len {}, d_model {}, {} bytes an element,".format(*shape, itemsize)
    for name in want:
        assert_bytes(f"{name} {where}", got[name], want[name], suspects=suspects[name], hint=hints.get(name, ""))


def assert_longest(got: Any, capacity: int, batch: int, d: int, itemsize: int, definition: str) -> None:
    """Compare the longest sequence whose `definition` fits in `capacity` bytes."""

    def by(capacity: int = capacity, **changed: Any) -> int:
        options: dict[str, Any] = {"dtype_bytes": itemsize, "definition": definition, **changed}
        return longest_that_fits(capacity, batch, d, **options)

    squares = {"forward_peak": 4, "step_peak": 6, "saved": 2}[definition]
    room = max(capacity - (0 if definition == "saved" else CUDA_WORKSPACE_BYTES), 0)
    suspects = {
        "peak is ignored": lambda: by(definition="forward_peak"),
        "the whole step is looked at, whatever peak says": lambda: by(definition="step_peak"),
        "dtype_bytes is ignored": lambda: by(dtype_bytes=4),
        "the workspace is forgotten": lambda: by(workspace_bytes=0),
        "nothing is rounded": lambda: by(round_to=1),
        "only the N × N arrays are solved for": lambda: math.isqrt(room // (squares * batch * itemsize)),
        "the published formula is used: 2 N × N arrays and 64 MiB": lambda: math.isqrt(room // (2 * batch * 4)),
        "the first length that does not fit is returned": lambda: by() + 1,
        "capacity_bytes itself is taken for too much: up to it, a total fits": lambda: by(capacity - 1),
    }
    where = f"(batch {batch}, d_model {d}, {itemsize} bytes, {definition})"
    name = f"the longest sequence in {capacity:,} bytes {where}"
    assert_type(name, got, int, "an int")
    assert_equal(name, got, by(), suspects=suspects, hint="the answer is exact: it fits, and one token more does not")


def measured_step(shape: Shape) -> dict[str, int]:
    """What a second training step of attention takes, measured as CUDA counts: "saved", "forward_peak", "step_peak"."""
    with AllocationMeter(round_to=CUDA_ROUNDING_BYTES) as meter:
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        for _ in range(2):
            before = meter.live_bytes
            meter.reset()
            loss = written_out(q, k, v).sum()
            saved, forward_peak = meter.live_bytes - before, meter.peak_bytes
            loss.backward()
    peaks = {"forward_peak": forward_peak, "step_peak": meter.peak_bytes}
    return {"saved": saved} | {name: nbytes + CUDA_WORKSPACE_BYTES for name, nbytes in peaks.items()}


def saved_suspects(shape: Shape) -> Suspects:
    """Usual mistakes in what attention keeps for its backward pass on the CPU → the bytes that each comes to."""
    batch, n, _ = shape
    square, column = 4 * batch * n * n, batch * n
    want = step_memory(shape, "saved", **EXACT)
    return {
        "the scores and the weights are taken to be what is saved, and the columns are forgotten": 2 * square,
        "the positions of the maxima, int64, are forgotten": want - 8 * column,
        "the positions of the maxima are taken for float32": want - 4 * column,
        "each time a tensor is saved counts": want + square,
    }


def requested(rows: Any, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> list[dict[str, Any]]:
    """The rows that `benchmark_attention` returned, checked to be those requested, in order and with their columns."""
    assert_type("benchmark_attention's result", rows, list, "a list of rows")
    pairs = [(d, n) for d in d_models for n in seq_lens]
    assert_equal("the number of rows", len(rows), len(pairs), hint="a row for every d_model and every seq_len")
    for number, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
        assert_keys(f"row {number}", row, COLUMNS)
        hint = "every d_model in turn, and for each of them every seq_len"
        assert_equal(f"(d_model, seq_len) of row {number}", (row["d_model"], row["seq_len"]), pair, hint=hint)
        for name, value in {"batch_size": 8, "warmup_steps": 5, "steps": 100, "device": "cpu", **asked}.items():
            assert_equal(f"{name} of row {number}", row[name], value, hint="as asked for")
    return rows


def assert_memory_columns(row: Mapping[str, Any], printed: Sequence[str] | None = None) -> None:
    """Compare "mem_max_MB" and "add_mem_MB" of a row on "cpu" or "meta": to the byte, or to the digits `printed`."""
    require(row["status"] == "success", f"status is {row['status']!r} where everything fits, expected 'success'")
    shape, device = (row["batch_size"], row["seq_len"], row["d_model"]), row["device"]
    where = "on {} for batch {}, seq_len {}, d_model {}".format(device, *shape)
    for number, (name, definition) in enumerate((("mem_max_MB", "forward_peak"), ("add_mem_MB", "saved"))):
        assert_type(f"{name} {where}", row[name], float, "a float: MiB")
        want = step_memory(shape, definition, **({} if device == "meta" else EXACT))
        suspects = {text: nbytes / MIB for text, nbytes in _column_suspects(name, shape, device).items()}
        if printed is None:
            assert_equal(f"{name} {where}", row[name], want / MIB, suspects=suspects)
        else:
            digits = {text: f"{value:.6g}" for text, value in suspects.items()}
            assert_equal(f"{name} {where}, printed,", f"{row[name]:.6g}", printed[number], suspects=digits)


def assert_time_columns(row: Mapping[str, Any], taken_ms: Sequence[Sequence[float]]) -> None:
    """Compare "fwd_ms" and "bwd_ms" of a row, when its steps took `taken_ms`, a pair each; the last are those timed."""
    passes = dict(zip(("fwd_ms", "bwd_ms"), zip(*taken_ms, strict=True), strict=True))
    for name, other in (("fwd_ms", "bwd_ms"), ("bwd_ms", "fwd_ms")):
        assert_type(name, row[name], float, "a float: milliseconds")
        timed, median = passes[name][-row["steps"] :], statistics.median(passes[name][-row["steps"] :])
        suspects = {
            "the mean is taken, not the median": statistics.mean(timed),
            "the warm-up steps are timed too": statistics.median(passes[name]),
            "it is in seconds": median / 1e3,
            "it is in microseconds": median * 1e3,
            "it is in nanoseconds": median * 1e6,
            f"it is {other}": statistics.median(passes[other][-row["steps"] :]),
            "both passes are timed together": statistics.median(map(sum, taken_ms[-row["steps"] :])),
            "the steps are added up": sum(timed),
            "the fastest step is taken": min(timed),
            "the slowest step is taken": max(timed),
            "the last step is taken": timed[-1],
            "the first step is taken": timed[0],
        }
        assert_equal(
            f"{name}, where forward passes take {passes['fwd_ms']} ms and backward passes {passes['bwd_ms']} ms,",
            float(f"{row[name]:.6g}"),
            float(median),
            suspects={text: float(f"{value:.6g}") for text, value in suspects.items()},
            hint="a pass is timed, and nothing else, by a clock of Python's `time` (the test puts its own there)",
        )


class RequestedRows:
    """Calls the submission's `benchmark_attention` by `run`, a probe of the suite: see `labkit.testing.lines.Lines`.

    Lines must know `stand_ins`, which is `labkit.meters.stand_ins`.
    """

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = run

    def rows(self, d_models: Sequence[int], seq_lens: Sequence[int], *, within: str = "", **asked: Any) -> list[Row]:
        """The rows, checked to be those requested; `within` is lines before the call that end in `with …:`."""
        line = f"note(benchmark_attention({d_models}, {seq_lens}, **asked))"
        (rows,) = self.run(f"{within}\n    {line}" if within else line, asked=asked)
        return requested(rows, d_models, seq_lens, **asked)

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
        return requested(rows, d_models, seq_lens, **asked), *counts

    def assert_memory(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Bytes of every row, on the CPU or simulated, to the byte."""
        for row in self.rows(d_models, seq_lens, **asked):
            assert_memory_columns(row)

    def assert_published(self) -> None:
        """The published table, simulated: its bytes as they are printed there, and no times."""
        rows = self.rows(list(MEM_MAX), list(LENGTHS), device="meta")
        for number, row in enumerate(rows):
            for name in ("fwd_ms", "bwd_ms"):
                message = f"{name} of row {number} is {row[name]}, expected None: a simulation has no times"
                require(row[name] is None, message)
            n = number % len(LENGTHS)
            assert_memory_columns(row, printed=(MEM_MAX[row["d_model"]][n], ADD_MEM[n]))

    def assert_on_a_gpu(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Times above 0, and bytes as near to the simulation's as a GPU's allocator and workspaces let them be."""
        for row in self.rows(d_models, seq_lens, device="cuda", **asked):
            _assert_row_of_a_gpu(row)

    def assert_measured(self, d_models: Sequence[int], seq_lens: Sequence[int], **asked: Any) -> None:
        """Two rows of a simulated device, for which two steps of each must run at the least."""
        _, counts, _ = self.counted(d_models, seq_lens, **asked)
        message = f"for two rows, {counts['exp']} forward passes ran on meta tensors, expected two steps of each"
        cause = "the numbers are worked out by a formula, or copied: this table is to be measured"
        require(counts["exp"] >= 4 and counts["bmm"] >= 20, f"{message}\nUsual cause: {cause}")

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
        message = (
            "a step has 2 products in the forward pass and 4 in the backward pass; those of three steps are not there"
        )
        require(ran[0, 5]["bmm"] - ran[0, 2]["bmm"] == 18, message)
        message = f"of 5 timed steps, {unwatched[0, 5]['exp']} ran without a tracker looking on"
        why = "A tracker slows every operator down: measure memory in steps of their own, and time without it"
        require(unwatched[0, 5]["exp"] >= 5, f"{message}\n{why}")

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
        (row,) = requested(rows, [4], [16], batch_size=2, warmup_steps=warmup, steps=steps)
        assert_time_columns(row, taken_ms)


def _assert_row_of_a_gpu(row: Row) -> None:
    require(row["status"] == "success", f"status is {row['status']!r}, expected 'success'")
    require(row["fwd_ms"] > 0 and row["bwd_ms"] > 0, "a time is not above 0")
    shape = row["batch_size"], row["seq_len"], row["d_model"]
    saved = step_memory(shape, "saved") / MIB
    message = f"add_mem_MB is {row['add_mem_MB']:.6g} on a GPU; the allocator may add 1 MiB a block to {saved:.6g}"
    require(abs(row["add_mem_MB"] - saved) <= 2, message)
    least = step_memory(shape, "forward_peak", workspace_bytes=0) / MIB
    message = f"mem_max_MB is {row['mem_max_MB']:.6g} on a GPU, expected {least:.6g} and at most 140 for workspaces"
    require(least <= row["mem_max_MB"] <= least + 140, message)


def _rounded(nbytes: int, to: int = CUDA_ROUNDING_BYTES) -> int:
    """Up to a multiple of `to`."""
    return -(-nbytes // to) * to


def _parts(batch: int, n: int, d: int, itemsize: int = 4, to: int = CUDA_ROUNDING_BYTES) -> dict[str, int]:
    """The parts of Lab 02's `attention_training_memory`, by the table in its handout."""
    square, tall = _rounded(batch * n * n * itemsize, to), _rounded(batch * n * d * itemsize, to)
    parts = {"inputs": 3 * tall, "gradients": 3 * tall, **dict.fromkeys(SQUARES, square)}
    parts |= {"argmax": _rounded(8 * batch * n, to), "row_sums": _rounded(batch * n * itemsize, to)}
    return parts | {"loss": _rounded(itemsize, to), "workspace": CUDA_WORKSPACE_BYTES}


def _part_suspects(name: str, batch: int, n: int, d: int, itemsize: int) -> Suspects:
    """For one of `_parts`."""
    parts, exact = _parts(batch, n, d, itemsize), _parts(batch, n, d, itemsize, to=1)
    special: dict[str, Suspects] = {
        "argmax": {"positions are given the dtype of the rest: they are int64": parts["row_sums"]},
        "row_sums": {
            "row sums are taken for int64: they have the dtype of the rest": parts["argmax"],
            "each element has a row sum: each query has one": parts["weights"],
        },
        "workspace": {"64 MB are counted, not 64 MiB": 64 * 10**6, "nothing is counted": 0},
    }
    for three in ("inputs", "gradients"):
        special[three] = {
            "the three tensors are rounded up together, not each by itself": _rounded(exact[three]),
            "only one of three tensors is counted": parts[three] // 3,
        }
    return special.get(name, {}) | {
        "nothing is rounded up to 512, be it one number": exact[name],
        "the batch is left out": _parts(1, n, d, itemsize)[name],
        "each batch entry is rounded up by itself": batch * _parts(1, n, d, itemsize)[name],
        "dtype_bytes is ignored": _parts(batch, n, d)[name],
    }


def _total_suspects(total: str, shape: Shape, itemsize: int) -> Suspects:
    """For "saved", "forward_peak" or "step_peak"."""
    want, exact = (step_memory(shape, total, dtype_bytes=itemsize, round_to=to) for to in (512, 1))
    forward_peak = step_memory(shape, "forward_peak", dtype_bytes=itemsize)
    parts = _parts(*shape, itemsize)
    square, tall, scalar = parts["scores"], parts["inputs"] // 3, parts["loss"]
    columns = parts["argmax"] + parts["row_sums"]
    always = parts["inputs"] + parts["gradients"] + scalar + CUDA_WORKSPACE_BYTES
    special: dict[str, Suspects] = {
        "saved": {
            "four N × N arrays are taken to be saved": 4 * square + columns,
            "the inputs are counted as saved": want + parts["inputs"],
            "the output is counted as saved": want + tall,
            "the workspace is counted, which nobody saves": want + CUDA_WORKSPACE_BYTES,
        },
        "forward_peak": {
            "only one moment is looked at: for short sequences the output counts more than two N × N arrays": (
                always + 4 * square + columns
            ),
            "the moments are added up: the output is made when scores and shifted scores are gone": (
                always + 4 * square + columns + tall
            ),
            "only the saved arrays are counted, not scores and shifted scores": always + 2 * square + columns,
        },
        "step_peak": {
            "it is the forward pass's peak": forward_peak,
            "only the moment with six N × N arrays is looked at": always + scalar + columns + 6 * square,
            "the gradient that the backward pass starts from, one number, is forgotten": want - scalar,
            "the backward pass is taken to double the forward peak": 2 * forward_peak,
        },
    }
    suspects = special[total] | {
        "nothing is rounded up to 512": exact,
        "the sum is rounded up to 512, not each tensor by itself": _rounded(exact),
        "the workspace is counted twice": want + CUDA_WORKSPACE_BYTES,
        **{text: want - parts[name] for name, text in LEFT_OUT.items()},
        "the positions of the maxima and the row sums are left out": want - columns,
    }
    return {text: nbytes for text, nbytes in suspects.items() if nbytes != want}


def _column_suspects(column: str, shape: Shape, device: str) -> Suspects:
    """For "mem_max_MB" or "add_mem_MB" of a row of the benchmark, in bytes, on "cpu" or "meta"."""
    options: dict[str, Any] = {} if device == "meta" else EXACT
    other: dict[str, Any] = EXACT if device == "meta" else {}
    definition = {"mem_max_MB": "forward_peak", "add_mem_MB": "saved"}[column]
    want = step_memory(shape, definition, **options)
    peak_parts = attention_memory(*shape, definition="forward_peak", **options)
    inputs, gradients, loss = (peak_parts[name] for name in ("inputs", "gradients", "loss"))
    live = step_memory(shape, "live_after_forward", **options)
    workspace = peak_parts.get("workspace", 0)
    special: dict[str, Suspects] = {
        "mem_max_MB": {
            "the workspace of 64 MiB is left out": want - CUDA_WORKSPACE_BYTES,
            "tensors are not rounded up to 512 bytes": step_memory(
                shape, definition, round_to=1, workspace_bytes=workspace
            ),
            "the first step is read: neither gradients nor a loss are there yet": want - gradients - loss,
            "the inputs are made outside of the tracker, or the gradients thrown away before the forward pass": (
                want - gradients
            ),
            "the last step's loss is gone": want - loss,
            "inputs and gradients are not counted": want - inputs - gradients,
            "the peak is read after the backward pass": step_memory(shape, "step_peak", **options),
            "the peak is reset after the forward pass, not before": live,
            "the peak is read over what was there when the step began": want - workspace - inputs - gradients - loss,
        },
        "add_mem_MB": {
            "everything alive is counted, not by how much it grew": live,
            "everything alive is counted but the workspace": live - workspace,
            "it is read after the backward pass": 0,
            "the growth of the peak is taken": sum(peak_parts.values()) - live + want,
            "the first step is read, its loss is new; or the last step's loss is gone when it begins": want + loss,
            "the workspace is counted: it was there before": want + CUDA_WORKSPACE_BYTES,
            "tensors are not rounded up to 512 bytes": step_memory(shape, definition, round_to=1),
        },
    }
    elsewhere = {
        "cpu": "the CPU's bytes are rounded up to 512, and a workspace is added",
        "meta": "nothing is rounded and no workspace is added",
    }
    return special[column] | {
        "it is divided by 10⁶: the table's MB are MiB": want * MIB / 10**6,
        "it is in bytes": want * MIB,
        "it is in KiB": want * 2**10,
        "it is in GiB": want / 2**10,
        elsewhere[device]: step_memory(shape, definition, **other),
    }
