"""Assertions of Lab 02: bytes read from trackers, bytes of a training step, and rows of the benchmark."""

import contextlib
import math
import statistics
from typing import NamedTuple

from labkit.bench.accounting import CUDA_ROUNDING_BYTES, CUDA_WORKSPACE_BYTES, MIB, attention_memory, longest_that_fits
from labkit.bench.rows import COLUMNS
from labkit.testing.compare import assert_equal, assert_keys, assert_raises, assert_tuple, assert_type, require

from .probes import left_on

EXACT = {"round_to": 1, "workspace_bytes": 0}
"""How the CPU counts: nothing rounded, and no workspace."""
NOT_LEFT = "the way out is taken only when all goes well: `with`, or `try … finally`, leaves in every case"
TOTALS = ("saved", "forward_peak", "step_peak")


class After(NamedTuple):
    """What a tracker reads after lines of code, in bytes; None is not compared."""

    code: str
    current: int | None
    peak: int | None
    hint: str = ""
    mistakes: dict[str, int] | None = None


def assert_bytes(name, got, want, mistakes=None, hint=""):
    """Compare a number of bytes, which must be an int."""
    assert_type(name, got, int, "an int: bytes")
    assert_equal(name, got, want, mistakes=mistakes, hint=hint)


def assert_readings(steps, readings):
    """Compare (current, peak), read after each of `steps`, an `After` each."""
    require(readings, "`with MemoryTracker() as tracker` must give the tracker itself")
    for step, (current, peak) in zip(steps, readings, strict=True):
        for name, got, want in (("current", current, step.current), ("peak", peak, step.peak)):
            if want is not None:
                assert_bytes(f"{name}_allocated() after `{step.code}`", got, want, step.mistakes, step.hint)


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
        assert_raises(KeyError, call, when=when, mentions=())


def peak_and_result(got):
    """What `measure_memory` returned, checked to be (peak_bytes, result)."""
    return assert_tuple("measure_memory's result", got, ("peak_bytes", "result"))


def step_memory(shape, definition, **options):
    """Bytes of a training step of (batch, seq_len, d_model): the sum of `attention_memory`."""
    return sum(attention_memory(*shape, definition=definition, **options).values())


def assert_prediction(got, shape, itemsize=4):
    """Compare parts and totals of a training step, as `attention_training_memory` returns them."""
    batch, n, d = shape
    parts, of_one_entry = _parts(batch, n, d, itemsize), _parts(1, n, d, itemsize)
    want = parts | {total: step_memory(shape, total, dtype_bytes=itemsize) for total in TOTALS}
    assert_keys("the result", got, want)
    exact = dict.fromkeys(("scores", "shifted", "exponentials", "weights"), batch * n * n * itemsize)
    exact |= dict.fromkeys(("inputs", "gradients"), 3 * batch * n * d * itemsize)
    exact |= {"argmax": 8 * batch * n, "row_sums": batch * n * itemsize, "loss": itemsize}
    for name, nbytes in want.items():
        if name in TOTALS:
            mistakes = _left_out(name, want, _rounded(step_memory(shape, name, dtype_bytes=itemsize, round_to=1)))
        else:
            mistakes = {
                "the batch is left out": of_one_entry[name],
                "each batch entry is rounded up by itself": batch * of_one_entry[name],
            }
        if name == "argmax":
            mistakes["positions are given the dtype of the rest: they are int64"] = parts["row_sums"]
            two_elements = _rounded(2 * batch * n * itemsize)
            mistakes["positions are given two elements of the rest: they are int64"] = two_elements
        where = f"of batch {batch}, seq_len {n}, d_model {d}, {itemsize} bytes an element,"
        if name in exact:
            mistakes["it is not rounded up to a multiple of 512 bytes"] = exact[name]
            mistakes["three tensors are rounded up together, not each by itself"] = _rounded(exact[name])
        wrong = {text: value for text, value in mistakes.items() if value != nbytes}
        assert_bytes(f"{name} {where}", got[name], nbytes, wrong)


def _left_out(name, want, unrounded):
    """What a total comes to where one of its parts is left out, or counted twice, or is not rounded, `unrounded`."""
    square, argmax, sums = (want[part] for part in ("scores", "argmax", "row_sums"))
    always = sum(want[part] for part in ("inputs", "gradients", "loss", "workspace"))
    found = {}
    if name != "saved":
        found["a loss, or the gradient of the loss, is left out"] = want[name] - want["loss"]
        found["one (B, N, d) array too few is counted"] = want[name] - want["inputs"] // 3
    if name == "forward_peak":
        text = "the quotient's moment is taken, where a later one is larger"
        found[text] = always + 4 * square + argmax + sums
    if name == "step_peak":
        found["the forward peak is taken, where a moment of the backward pass is larger"] = want["forward_peak"]
        text = "the moment of the quotient's backward pass is taken, where another one is larger"
        found[text] = always + want["loss"] + 6 * square + argmax + sums
        text = "the moment of the backward pass through weights @ v is taken, where a later one is larger"
        found[text] = always + want["loss"] + 3 * square + argmax + sums + want["inputs"] // 3
    found |= {
        "one (B, N, N) array too few is counted": want[name] - square,
        "two (B, N, N) arrays too few are counted": want[name] - 2 * square,
        "one (B, N, N) array too many is counted": want[name] + square,
        "the argmax is left out": want[name] - argmax,
        "the row sums are left out": want[name] - sums,
        "the argmax and the row sums are left out": want[name] - argmax - sums,
        "the total is rounded up to 512 bytes, and not each tensor": unrounded,
    }
    if name != "saved":
        text = "the gradients, as large as the inputs, or the inputs are left out"
        found[text] = want[name] - want["inputs"]
        found["the workspace is left out"] = want[name] - want["workspace"]
    return found


def _parts(batch, n, d, itemsize):
    """The parts of `attention_training_memory`, by the table in the handout."""
    square, tall = _rounded(batch * n * n * itemsize), _rounded(batch * n * d * itemsize)
    return {
        "inputs": 3 * tall,
        "gradients": 3 * tall,
        **dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square),
        "argmax": _rounded(8 * batch * n),
        "row_sums": _rounded(batch * n * itemsize),
        "loss": _rounded(itemsize),
        "workspace": CUDA_WORKSPACE_BYTES,
    }


def _rounded(nbytes):
    return -(-nbytes // CUDA_ROUNDING_BYTES) * CUDA_ROUNDING_BYTES


def assert_longest(got, capacity, batch, d, itemsize, definition):
    """Compare the longest sequence whose `definition` fits in `capacity` bytes."""
    want = longest_that_fits(capacity, batch, d, dtype_bytes=itemsize, definition=definition)
    name = f"the longest sequence in {capacity:,} bytes (batch {batch}, d_model {d}, {itemsize} bytes, {definition})"
    mistakes = {
        "`peak` is not looked at": lambda: longest_that_fits(capacity, batch, d, dtype_bytes=itemsize),
        "dtype_bytes is ignored": lambda: longest_that_fits(capacity, batch, d, definition=definition),
        "the first length that does not fit is returned": want + 1,
        "powers of two alone are tried": 1 << max(want.bit_length() - 1, 0),
        "the batch is ignored": lambda: longest_that_fits(capacity, 1, d, dtype_bytes=itemsize, definition=definition),
        "nothing longer than 2²⁰ is tried: there is no largest length": 2**20 - 1,
    }
    if want == 0:
        mistakes = {"1 is returned where not even one token fits": 1}
    elif step_memory((batch, want, d), definition, dtype_bytes=itemsize) == capacity:
        mistakes["a total of exactly the capacity is refused: at most so much must fit"] = want - 1
    if definition == "forward_peak":
        of_squares = math.isqrt(capacity // (4 * batch * itemsize))
        mistakes["the (B, N, N) arrays alone are counted: the other parts take memory too"] = of_squares
    assert_type(name, got, int, "an int")
    if got != want and 0 <= got < 10**9:
        n = max(got, want)
        needed = step_memory((batch, n, d), definition, dtype_bytes=itemsize)
        name = f"seq_len {n:,} needs {needed:,} bytes. {name[0].upper()}{name[1:]}"
    assert_equal(name, got, want, mistakes=mistakes)


def requested(rows, d_models, seq_lens, **asked):
    """The rows that `benchmark_attention` returned, checked to be those requested, in order and with their columns."""
    assert_type("benchmark_attention's result", rows, list, "a list of rows")
    pairs = [(d, n) for d in d_models for n in seq_lens]
    assert_equal("the number of rows", len(rows), len(pairs), hint="a row for every d_model and every seq_len")
    turned = [(d, n) for n in seq_lens for d in d_models]
    for number, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
        assert_keys(f"row {number}", row, COLUMNS)
        mistakes = {"the lengths are the outer loop: for each d_model come all seq_lens": turned[number]}
        assert_equal(f"(d_model, seq_len) of row {number}", (row["d_model"], row["seq_len"]), pair, mistakes=mistakes)
        for name, value in {"batch_size": 8, "warmup_steps": 5, "steps": 100, "device": "cpu", **asked}.items():
            assert_equal(
                f"{name} of row {number}",
                row[name],
                value,
                hint="the defaults are written down: a row holds each number as asked for",
            )
    return rows


def assert_memory_columns(row):
    """Compare "mem_max_MB" and "add_mem_MB" of a row on "cpu" or "meta", to the byte."""
    require(row["status"] == "success", f"status is {row['status']!r} where everything fits, expected 'success'")
    shape, device = (row["batch_size"], row["seq_len"], row["d_model"]), row["device"]
    for column, definition in (("mem_max_MB", "forward_peak"), ("add_mem_MB", "saved")):
        name = "{} on {} for batch {}, seq_len {}, d_model {}".format(column, device, *shape)
        assert_type(name, row[column], float, "a float: MiB")
        exact, round_to = ({}, CUDA_ROUNDING_BYTES) if device == "meta" else (EXACT, 1)
        want = step_memory(shape, definition, **exact) / MIB
        tall, loss = (-(-4 * numbers // round_to) * round_to for numbers in (math.prod(shape), 1))
        mistakes = {
            "it is in MB, 10⁶ bytes, and not in MiB": want * MIB / 1e6,
            "the batch is 8, whatever is asked for": step_memory((8, *shape[1:]), definition, **exact) / MIB,
        }
        if device == "meta":
            of_cpu = step_memory(shape, definition, **EXACT) / MIB
            mistakes["the row is measured on the CPU, whatever device is asked for"] = of_cpu
        first = "the first step is read, where no gradients and no loss are there yet"
        if definition == "saved":
            mistakes |= {first: want + loss / MIB, "it is read after backward()": 0.0}
            mistakes["the workspace of 64 MiB is added to the growth"] = want + CUDA_WORKSPACE_BYTES / MIB
        else:
            of_the_step = step_memory(shape, "step_peak", **exact) / MIB
            mistakes |= {
                "the workspace of 64 MiB is left out": want - CUDA_WORKSPACE_BYTES / MIB,
                first: want - (3 * tall + loss) / MIB,
                "the inputs are made outside the tracker's block, or .grad does not stay from step to step": want
                - 3 * tall / MIB,
                "the loss is thrown away: the variable stays from step to step": want - loss / MIB,
                "the peak is reset after the forward pass, not before": step_memory(
                    shape, "live_after_forward", **exact
                )
                / MIB,
                "what is alive at the step's start is subtracted": want - (6 * tall + loss) / MIB,
                "what is alive at the step's start is subtracted, and the workspace left out": want
                - (6 * tall + loss + CUDA_WORKSPACE_BYTES) / MIB,
                "it is read after backward(): the peak is that of both passes": of_the_step,
                "the peak is not reset before the step: it is that of the first step": of_the_step - 2 * tall / MIB,
            }
        if device == "meta":
            unrounded = step_memory(shape, definition, round_to=1)
            mistakes |= {
                "storages are not rounded up to 512 bytes": unrounded / MIB,
                "the sum is rounded up to 512 bytes, and not each storage": _rounded(unrounded) / MIB,
            }
        mistakes = {text: value for text, value in mistakes.items() if value != want}
        assert_equal(name, row[column], want, mistakes=mistakes)


def assert_time_columns(row, taken_ms):
    """Compare "fwd_ms" and "bwd_ms" of a row whose steps took `taken_ms`, a pair each; the last are those timed."""
    forward_ms, backward_ms = zip(*taken_ms, strict=True)
    passes = {"fwd_ms": forward_ms, "bwd_ms": backward_ms, "both": [sum(pair) for pair in taken_ms]}
    for name, other in (("fwd_ms", "bwd_ms"), ("bwd_ms", "fwd_ms")):
        assert_type(name, row[name], float, "a float: milliseconds")
        timed = {each: taken[-row["steps"] :] for each, taken in passes.items()}
        want = statistics.median(timed[name])
        mistakes = {
            "the mean is taken, not the median": statistics.mean(timed[name]),
            "the warm-up steps are timed too": statistics.median(passes[name]),
            "it is in seconds": want / 1e3,
            f"it is {other}": statistics.median(timed[other]),
            "both passes are timed together": statistics.median(timed["both"]),
            "the fastest step is taken": min(timed[name]),
        }
        assert_equal(
            f"{name}, where forward passes take {forward_ms} ms and backward passes {backward_ms} ms,",
            float(f"{row[name]:.6g}"),
            float(want),
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
