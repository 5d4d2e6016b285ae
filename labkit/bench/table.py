"""The benchmark table: one row for each model width and sequence length, measured and, on real devices, timed."""

import gc
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit.bench.accounting import CUDA_ROUNDING_BYTES, CUDA_WORKSPACE_BYTES, MIB
from labkit.bench.rows import COLUMNS, EXTRA_COLUMNS, Row
from labkit.bench.variants import Attention, attention_form
from labkit.meters.allocation import AllocationMeter
from labkit.meters.tensors import CudaMeter

SAME_OPERATORS_ON_META = ("written_out", "built_in")
"""The forms that run the same operators on meta tensors and on the CPU: a simulated step shows what fits."""


def benchmark_rows(
    d_models: Sequence[int],
    seq_lens: Sequence[int],
    batch_size: int = 8,
    warmup_steps: int = 5,
    steps: int = 100,
    device: str = "meta",
    impl: str | Attention = "written_out",
) -> list[Row]:
    """Rows for every d_model and, within it, every seq_len: `requested_rows`, each measured by `measured_row`."""
    form = attention_form(impl)
    name = impl if isinstance(impl, str) else form.__name__
    rows = requested_rows(d_models, seq_lens, batch_size, warmup_steps, steps, device, name)
    return [measured_row(row, form) for row in rows]


def requested_rows(
    d_models: Sequence[int],
    seq_lens: Sequence[int],
    batch_size: int,
    warmup_steps: int,
    steps: int,
    device: str,
    impl: str,
) -> list[Row]:
    """Rows with the columns COLUMNS and EXTRA_COLUMNS before any measurement: values None, status "oom".

    Raises ValueError for an unknown device and for counts below 1 (`warmup_steps`: below 0), RuntimeError for `cuda`
    without a GPU.
    """
    _check(d_models, seq_lens, batch_size, warmup_steps, steps, device)
    request = {"batch_size": batch_size, "warmup_steps": warmup_steps, "steps": steps, "device": device, "impl": impl}
    empty: Row = dict.fromkeys((*COLUMNS, *EXTRA_COLUMNS)) | {"status": "oom"} | request
    return [empty | {"d_model": d_model, "seq_len": seq_len} for d_model in d_models for seq_len in seq_lens]


def measured_row(row: Row, form: Attention) -> Row:
    """The row with memory and times of `form`.

    A step is `loss = attention(q, k, v).sum(); loss.backward()` on float32 inputs (batch_size, seq_len, d_model) that
    keep their gradients. `mem_max_MB` is the peak of the forward pass and `add_mem_MB` what it leaves alive for the
    backward pass, both in MiB and read in a step that is not the first. `fwd_ms` and `bwd_ms` are medians over `steps`
    after `warmup_steps`, with the device synchronised around each, and None on `meta`, where two steps are simulated
    however many are requested.

    On `meta` CUDA is simulated: storages rounded up to 512 B and 64 MiB of workspace. A row that needs more memory than
    the device has (on the CPU: than is free) keeps status `oom` and has no numbers.
    """
    try:
        numbers = _measured(row, form)
    except torch.OutOfMemoryError:
        return row
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # the message of the CPU's allocator
            raise
        return row
    finally:
        if row["device"].startswith("cuda"):
            gc.collect()
            torch.cuda.empty_cache()
    return row | numbers | {"status": "success"}


def _inputs(row: Row, device: str) -> list[torch.Tensor]:
    shape = (row["batch_size"], row["seq_len"], row["d_model"])
    return [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]


def _measured(row: Row, form: Attention) -> Row:
    device = row["device"]
    if device == "meta":
        return _memory(form, row, device, AllocationMeter(CUDA_ROUNDING_BYTES), CUDA_WORKSPACE_BYTES)
    if device == "cpu":
        free_bytes = available_bytes()
        if row["impl"] in SAME_OPERATORS_ON_META:
            _memory(form, row, "meta", AllocationMeter(capacity_bytes=free_bytes), 0)
        numbers = _memory(form, row, device, AllocationMeter(capacity_bytes=free_bytes), 0)
    else:  # bytes that earlier rows left allocated, a workspace for instance, count too
        numbers = _memory(form, row, device, CudaMeter(device), torch.cuda.memory_allocated(device))
    return numbers | _times(form, row)


def _memory(form: Attention, row: Row, device: str, meter: AllocationMeter | CudaMeter, held_bytes: int) -> Row:
    """Peak and growth of the second step's forward pass, `held_bytes` added to the peak; runs both steps to the end."""
    numbers: Row = {}
    with meter:
        q, k, v = _inputs(row, device)
        for measured in (False, True):
            if measured:
                before_bytes = meter.live_bytes
                meter.reset()
            loss = form(q, k, v).sum()  # while the last step's loss is alive, as in any training loop
            if measured:
                numbers["mem_max_MB"] = (held_bytes + meter.peak_bytes) / MIB
                numbers["add_mem_MB"] = (meter.live_bytes - before_bytes) / MIB
            loss.backward()
    return numbers


def _times(form: Attention, row: Row) -> Row:
    device, warmup_steps = row["device"], row["warmup_steps"]
    q, k, v = _inputs(row, device)
    forward_ms, backward_ms = [], []
    for _ in range(warmup_steps + row["steps"]):
        start = _now(device)
        loss = form(q, k, v).sum()
        between = _now(device)
        loss.backward()
        forward_ms.append(1e3 * (between - start))
        backward_ms.append(1e3 * (_now(device) - between))
    return {
        "fwd_ms": statistics.median(forward_ms[warmup_steps:]),
        "bwd_ms": statistics.median(backward_ms[warmup_steps:]),
        "fwd_ms_iqr": _interquartile_range(forward_ms[warmup_steps:]),
        "bwd_ms_iqr": _interquartile_range(backward_ms[warmup_steps:]),
    }


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _interquartile_range(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


def _check(
    d_models: Sequence[int], seq_lens: Sequence[int], batch_size: int, warmup_steps: int, steps: int, device: str
) -> None:
    if torch.device(device).type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"device must be cpu, cuda or meta, got {device!r}")
    counts = {"d_models": d_models, "seq_lens": seq_lens, "batch_size": [batch_size], "steps": [steps]}
    for name, values in counts.items():
        if any(value < 1 for value in values):
            raise ValueError(f"{name} must be at least 1, got {min(values)}")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be at least 0, got {warmup_steps}")
    if torch.device(device).type == "cuda":
        CudaMeter(device)  # raises RuntimeError without a GPU


def available_bytes() -> int | None:
    """Main memory available: the kernel's estimate, else all of the machine's memory, else None."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
