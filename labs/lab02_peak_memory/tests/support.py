"""Assertions of Lab 02: bytes read from trackers, bytes of a training step, and rows of the benchmark."""

import contextlib
import statistics

from labkit.bench.accounting import CUDA_ROUNDING_BYTES, CUDA_WORKSPACE_BYTES, MIB, attention_memory, longest_that_fits
from labkit.bench.rows import COLUMNS
from labkit.testing.compare import assert_equal, assert_keys, assert_raises, assert_tuple, assert_type, require

from .probes import left_on, readings

LENGTHS = (256, 1024, 4096, 8192, 16384)
ADD_MEM = ("4.02344", "64.0938", "1024.38", "4096.75", "16385.5")
MEM_MAX = {
    16: ("72.7739", "195.094", "2124.38", "8280.75", "32881.5"),
    32: ("73.5239", "198.094", "2136.38", "8304.75", "32929.5"),
    64: ("75.0239", "204.094", "2160.38", "8352.75", "33025.5"),
    128: ("78.0239", "216.094", "2208.38", "8448.75", "33217.5"),
}
"""The published table as printed, in MiB, for each of `LENGTHS`: add_mem_MB for any d_model, mem_max_MB by d_model."""

EXACT = {"round_to": 1, "workspace_bytes": 0}
"""How the CPU counts: nothing rounded, and no workspace."""
NOT_LEFT = "the way out is taken only when all goes well: `with`, or `try … finally`, leaves in every case"
TOTALS = ("saved", "forward_peak", "step_peak")
LEFT_OUT = {
    "gradients": "the gradients, as large as the inputs, or the inputs are left out",
    "workspace": "the workspace of 64 MiB is left out",
    "loss": "the loss is left out",
    "argmax": "the positions of the maxima are left out",
    "row_sums": "the row sums are left out",
}


def assert_bytes(name, got, want, mistakes=None, hint=""):
    """Compare a number of bytes, which must be an int."""
    assert_type(name, got, (int, float), "an int: bytes")
    in_mib = {"the value is in MiB: memory is in bytes": want / MIB}
    assert_equal(name, got, want, mistakes={**(mistakes or {}), **in_mib}, hint=hint)
    assert_type(name, got, int, "an int: bytes")


def assert_readings(steps, expected):
    """Compare what is read of each tracker that `steps` yields.

    `expected` has an entry for each: when → (current, peak), or (current, peak, hint), or (current, peak, hint, known
    mistakes), in bytes. A None is not compared.
    """
    for (when, (current, peak, *more)), reading in zip(expected.items(), readings(steps), strict=True):
        require(reading, "`with MemoryTracker() as tracker` must give the tracker itself")
        hint, mistakes = (*more, "", {})[:2] if len(more) < 2 else more
        for name, got, want in zip(("current", "peak"), reading, (current, peak), strict=True):
            if want is not None:
                assert_bytes(f"{name}_allocated() {when}", got, want, mistakes, hint)


@contextlib.contextmanager
def nothing_left_on(after):
    """Fail when a dispatch mode or a hook on saved tensors is active after the block."""
    left_on()
    yield
    found = left_on()
    require(not found, f"after {after} {' and '.join(found)} still looks on\nUsual cause: {NOT_LEFT}")


def assert_passes_on(call, when):
    """Fail unless `call` lets a KeyError pass, raised as `when` says, and leaves no mode or hook active."""
    with nothing_left_on("an exception"):
        assert_raises(KeyError, call, when=when)


def peak_and_result(got):
    """What `measure_memory` returned, checked to be (peak_bytes, result)."""
    return assert_tuple("measure_memory's result", got, ("peak_bytes", "result"))


def step_memory(shape, definition, **options):
    """Bytes of a training step of (batch, seq_len, d_model): the sum of `attention_memory`."""
    return sum(attention_memory(*shape, definition=definition, **options).values())


def assert_prediction(got, shape, itemsize=4):
    """Compare parts and totals of a training step, as `attention_training_memory` returns them."""
    want = _parts(*shape, itemsize)
    mistakes = {name: _part_mistakes(name, *shape, itemsize) for name in want}
    for total in TOTALS:
        want[total] = step_memory(shape, total, dtype_bytes=itemsize)
        parts = {name: want[total] - want[part] for part, name in LEFT_OUT.items()}
        mistakes[total] = {text: value for text, value in parts.items() if value != want[total]}
    hints = {
        "argmax": "positions are int64, 8 bytes each, whatever the dtype of the rest",
        "saved": "saved_for_backward shows which parts these are: two (B, N, N) arrays and two columns",
        "forward_peak": "the larger of two moments of the forward pass, as the handout lists them",
        "step_peak": "the largest of five moments, as the handout lists them",
    }
    assert_keys("the result", got, want)
    where = "of batch {}, seq_len {}, d_model {}, {} bytes an element,".format(*shape, itemsize)
    for name in want:
        assert_bytes(f"{name} {where}", got[name], want[name], mistakes[name], hints.get(name, ""))


def assert_longest(got, capacity, batch, d, itemsize, definition):
    """Compare the longest sequence whose `definition` fits in `capacity` bytes."""

    def longest(definition=definition, itemsize=itemsize, **changed):
        return longest_that_fits(capacity, batch, d, dtype_bytes=itemsize, definition=definition, **changed)

    mistakes = {
        "peak is ignored": lambda: longest(definition="forward_peak"),
        "dtype_bytes is ignored": lambda: longest(itemsize=4),
        "the workspace is forgotten": lambda: longest(workspace_bytes=0),
        "nothing is rounded": lambda: longest(round_to=1),
        "the first length that does not fit is returned": lambda: longest() + 1,
    }
    where = f"(batch {batch}, d_model {d}, {itemsize} bytes, {definition})"
    name = f"the longest sequence in {capacity:,} bytes {where}"
    assert_type(name, got, int, "an int")
    assert_equal(
        name, got, longest(), mistakes=mistakes, hint="the result is exact: it fits, and one more token does not"
    )


def requested(rows, d_models, seq_lens, **asked):
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


def assert_memory_columns(row, printed=None):
    """Compare "mem_max_MB" and "add_mem_MB" of a row on "cpu" or "meta": to the byte, or to the digits `printed`."""
    require(row["status"] == "success", f"status is {row['status']!r} where everything fits, expected 'success'")
    shape, device = (row["batch_size"], row["seq_len"], row["d_model"]), row["device"]
    options = {} if device == "meta" else EXACT
    where = "on {} for batch {}, seq_len {}, d_model {}".format(device, *shape)
    for number, (name, definition) in enumerate((("mem_max_MB", "forward_peak"), ("add_mem_MB", "saved"))):
        assert_type(f"{name} {where}", row[name], float, "a float: MiB")
        nbytes = step_memory(shape, definition, **options)
        mistakes = {
            "it is divided by 10⁶: the table's MB are MiB": nbytes * MIB / 10**6,
            "it is in bytes": nbytes * MIB,
            "tensors are not rounded up to 512 bytes": step_memory(shape, definition, **options | {"round_to": 1}),
        }
        if name == "mem_max_MB":
            mistakes["the workspace of 64 MiB is left out"] = nbytes - CUDA_WORKSPACE_BYTES
            mistakes["the peak is read after the backward pass"] = step_memory(shape, "step_peak", **options)
        else:
            live = step_memory(shape, "live_after_forward", **options)
            mistakes["everything alive is counted, not by how much it grew"] = live
        if printed is None:
            values = {text: value / MIB for text, value in mistakes.items()}
            assert_equal(f"{name} {where}", row[name], nbytes / MIB, mistakes=values)
        else:
            digits = {text: f"{value / MIB:.6g}" for text, value in mistakes.items()}
            assert_equal(f"{name} {where}, printed,", f"{row[name]:.6g}", printed[number], mistakes=digits)


def assert_time_columns(row, taken_ms):
    """Compare "fwd_ms" and "bwd_ms" of a row whose steps took `taken_ms`, a pair each; the last are those timed."""
    forward_ms, backward_ms = zip(*taken_ms, strict=True)
    passes, steps = {"fwd_ms": forward_ms, "bwd_ms": backward_ms}, row["steps"]
    for name, other in (("fwd_ms", "bwd_ms"), ("bwd_ms", "fwd_ms")):
        assert_type(name, row[name], float, "a float: milliseconds")
        timed, median = passes[name][-steps:], statistics.median(passes[name][-steps:])
        mistakes = {
            "the mean is taken, not the median": statistics.mean(timed),
            "the warm-up steps are timed too": statistics.median(passes[name]),
            "it is in seconds": median / 1e3,
            f"it is {other}": statistics.median(passes[other][-steps:]),
            "both passes are timed together": statistics.median(map(sum, taken_ms[-steps:])),
            "the fastest step is taken": min(timed),
            "the slowest step is taken": max(timed),
        }
        assert_equal(
            f"{name}, where forward passes take {forward_ms} ms and backward passes {backward_ms} ms,",
            float(f"{row[name]:.6g}"),
            float(median),
            mistakes={text: float(f"{value:.6g}") for text, value in mistakes.items()},
            hint="a pass is timed, and nothing else, by a clock of Python's `time` (the test puts its own there)",
        )


def assert_row_of_a_gpu(row):
    """Times above 0, and bytes as near to the simulation's as a GPU's allocator and workspaces let them be."""
    require(row["status"] == "success", f"status is {row['status']!r}, expected 'success'")
    require(row["fwd_ms"] > 0 and row["bwd_ms"] > 0, "a time is not above 0")
    shape = row["batch_size"], row["seq_len"], row["d_model"]
    saved = step_memory(shape, "saved") / MIB
    message = f"add_mem_MB is {row['add_mem_MB']:.6g} on a GPU; the allocator may add 1 MiB a block to {saved:.6g}"
    require(abs(row["add_mem_MB"] - saved) <= 2, message)
    least = step_memory(shape, "forward_peak", workspace_bytes=0) / MIB
    message = f"mem_max_MB is {row['mem_max_MB']:.6g} on a GPU, expected {least:.6g} and at most 140 for workspaces"
    require(least <= row["mem_max_MB"] <= least + 140, message)


def _rounded(nbytes, to=CUDA_ROUNDING_BYTES):
    return -(-nbytes // to) * to


def _parts(batch, n, d, itemsize=4, to=CUDA_ROUNDING_BYTES):
    """The parts of `attention_training_memory`, by the table in the handout."""
    square, tall = _rounded(batch * n * n * itemsize, to), _rounded(batch * n * d * itemsize, to)
    return {
        "inputs": 3 * tall,
        "gradients": 3 * tall,
        **dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square),
        "argmax": _rounded(8 * batch * n, to),
        "row_sums": _rounded(batch * n * itemsize, to),
        "loss": _rounded(itemsize, to),
        "workspace": CUDA_WORKSPACE_BYTES,
    }


def _part_mistakes(name, batch, n, d, itemsize):
    """Usual mistakes in one of `_parts` → the bytes that each leads to."""
    exact = _parts(batch, n, d, itemsize, to=1)[name]
    mistakes = {
        "nothing is rounded up to 512, not even one number": exact,
        "the batch is left out": _parts(1, n, d, itemsize)[name],
        "each batch entry is rounded up by itself": batch * _parts(1, n, d, itemsize)[name],
        "dtype_bytes is ignored": _parts(batch, n, d)[name],
    }
    if name in ("inputs", "gradients"):
        mistakes["the three tensors are rounded up together, not each by itself"] = _rounded(exact)
    if name == "argmax":
        mistakes["positions are given the dtype of the rest: they are int64"] = _rounded(batch * n * itemsize)
        mistakes["positions are given two elements of the rest: they are int64"] = _rounded(2 * batch * n * itemsize)
        mistakes["positions are given one byte each: they are int64"] = _rounded(batch * n)
        mistakes["positions are given four bytes each: they are int64"] = _rounded(4 * batch * n)
    if name == "workspace":
        mistakes["64 MB are counted, not 64 MiB"] = 64 * 10**6
    return mistakes
