"""Lab 02: measure what torch allocates, to the byte, and predict what a training step of attention needs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q, k and v, (B, N, d) each: what this lab measures. Given; do not change it."""
    return softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """The softmax along the last axis, written out. Given; do not change it."""
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    row_sums = exponentials.sum(-1, keepdim=True)
    return exponentials / row_sums


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """The storages behind the tensors in nested lists, tuples and dicts: {key: storage}. Given.

    A storage is the memory behind a tensor; its views have the same one. A key identifies a storage while that is
    alive, and a later storage may get the key again. Memory is not freed while you hold its storage.
    """
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


class StorageWatch(TorchDispatchMode):
    """In a `with` block, reports each operator that torch runs, and later which of its storages are freed. Given.

    ran(operator, operands, results): called after each operator of the forward and of the backward pass, with its name
        and with the storages behind its operands and behind its results, as {key: bytes}.
    freed(key): called when the last owner of a storage that was once among the results has released it, be that a
        variable, a view or autograd. Also after the block, and also where the storage is older than the block. Python
        prints an error in it and goes on.
    """

    def __init__(
        self, ran: Callable[[str, dict[int, int], dict[int, int]], None], freed: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._ran, self._freed = ran, freed
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operator imports torch's compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = {key: storage.nbytes() for key, storage in storages((args, kwargs)).items()}
        result = func(*args, **(kwargs or {}))
        results = storages(result)
        for key, storage in results.items():
            self._report_when_freed(key, storage)
        self._ran(str(func), operands, {key: storage.nbytes() for key, storage in results.items()})
        return result

    def _report_when_freed(self, key: int, storage: torch.UntypedStorage) -> None:
        def report(_: object) -> None:
            del self._references[key]  # the key may be used again
            self._freed(key)

        if key not in self._references:
            self._references[key] = weakref.ref(storage, report)  # refers to the storage without keeping it alive


class MemoryTracker:
    """Counts the bytes allocated between entering and leaving a `with` block.

    On the CPU and on `meta` tensors a storage counts with all its bytes, unrounded, from the operator that makes it
    until its last owner releases it: Python, or autograd, which keeps what the backward pass needs. A storage counts
    once, however many tensors view it; results written into an existing storage add nothing; what existed before
    entering adds nothing, then or later. On CUDA the numbers are the allocator's own, minus what was allocated on
    entering.

    Entering starts from zero, even if the tracker was used before. Both numbers can be read inside the block at any
    moment, and after it; what is allocated after the block does not count. An exception inside the block is passed on.

    Example:
        x = torch.zeros(1000), then y = (x + 1).view(10, 100), then del x: 4000 bytes are alive, and the peak is 8000.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        """Take the device whose memory to count.

        Args:
            device: "cpu" or "meta", which a tracker treats alike: it counts the tensors of both. Or "cuda" (or
                "cuda:1"): it reads the statistics of that device's allocator.

        Raises:
            RuntimeError: for "cuda" where there is no CUDA device: its statistics would read 0.
            ValueError: for any other device, naming it.
        """
        ### BEGIN SOLUTION
        self._device = torch.device(device)
        if self._device.type not in ("cpu", "meta", "cuda"):
            raise ValueError(f"device must be cpu, meta or cuda, got {str(device)!r}")
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("no CUDA device here: its allocator's statistics would read 0")
        self._round_to = 1
        self._alive: dict[int, int] = {}
        self._peak_bytes = self._baseline_bytes = 0
        ### END SOLUTION

    def __enter__(self) -> MemoryTracker:
        """Start from zero. For "cpu" and "meta", enter a `StorageWatch(self._ran, self._freed)`."""
        ### BEGIN SOLUTION
        self._alive, self._peak_bytes = {}, 0
        self._watch = StorageWatch(self._ran, self._freed)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._baseline_bytes = torch.cuda.memory_allocated(self._device)
        else:
            self._watch.__enter__()
        return self
        ### END SOLUTION

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ### BEGIN SOLUTION
        if self._device.type != "cuda":
            self._watch.__exit__(kind, error, trace)
        ### END SOLUTION

    def _ran(self, operator: str, operands: dict[int, int], results: dict[int, int]) -> None:
        """Count the storages that `operator` made, and the peak: see `StorageWatch`."""
        ### BEGIN SOLUTION
        for key, nbytes in results.items():
            if key not in operands and key not in self._alive:
                self._alive[key] = _rounded(nbytes, self._round_to)
        self._peak_bytes = max(self._peak_bytes, self.current_allocated())
        ### END SOLUTION

    def _freed(self, key: int) -> None:
        """Count a storage no more: see `StorageWatch`."""
        ### BEGIN SOLUTION
        self._alive.pop(key, None)
        ### END SOLUTION

    def reset(self) -> None:
        """Start the peak again, from what is alive now."""
        ### BEGIN SOLUTION
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._peak_bytes = self.current_allocated()
        ### END SOLUTION

    def current_allocated(self) -> int:
        """Bytes alive now, of those allocated since entering."""
        ### BEGIN SOLUTION
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device) - self._baseline_bytes
        return sum(self._alive.values())
        ### END SOLUTION

    def peak_allocated(self) -> int:
        """The most bytes alive at one moment since entering or since the last `reset`."""
        ### BEGIN SOLUTION
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._baseline_bytes
        return self._peak_bytes
        ### END SOLUTION


def measure_memory(fn: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[int, T]:
    """Call `fn(*args, **kwargs)` once and measure its peak memory, minus what was allocated before.

    Args:
        fn: any function; what it allocates counts, its result included, its arguments not.
        args, kwargs: passed to `fn`. The device is that of the first tensor among them, even inside lists, tuples and
            dicts; the CPU when there is none.

    Returns:
        (peak_bytes, result): an int, and the object that `fn` returned. An exception of `fn` is passed on, and counting
        stops.

    Example:
        x = torch.zeros(1000): measure_memory(lambda x: (x + 1).sum(), x) is (4004, tensor(1000.)).
    """
    ### BEGIN SOLUTION
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
        return tracker.peak_allocated(), result
    ### END SOLUTION


def saved_for_backward(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that autograd saves for the backward pass while `fn(*args)` runs, besides inputs and output.

    Each storage counts once, with all its bytes, however often it is saved and whatever part of it. The storages of the
    inputs and of the output do not count, even when a view of one is saved. Inputs are the tensors among `args`, even
    inside lists, tuples and dicts, and, where `fn` is a `torch.nn.Module`, its parameters and buffers. The output is
    every tensor in what `fn` returns. A Python number as an operand is not a tensor and does not count. `fn` is called
    once; no backward pass is run, and nothing stays saved.

    Returns:
        an int, on any device, without rounding; 0 when no input requires a gradient.

    Example:
        x has 1000 float32 elements and requires a gradient. x.exp() saves its output: 0. x.exp().sum() saves the
        exponentials, which are neither input nor output: 4000. x.sin().sum() saves x: 0.
    """
    ### BEGIN SOLUTION
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.update(storages(tensor))
        return tensor.detach()  # the tensor itself would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    owned = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
    left_out = storages((args, output, owned))
    return sum(storage.nbytes() for key, storage in saved.items() if key not in left_out)
    ### END SOLUTION


def attention_training_memory(batch: int, seq_len: int, d_model: int, dtype_bytes: int = 4) -> dict[str, int]:
    """Predict the memory of a training step of `attention` on a GPU, part by part; nothing is allocated.

    The step is any but the first of `loss = attention(q, k, v).sum(); loss.backward()`, with q, k and v of shape
    (batch, seq_len, d_model), whose gradients are kept from step to step, as is the loss until the next one exists.
    Every tensor is rounded up to a multiple of 512 bytes separately, as CUDA's allocator does.

    Args:
        batch, seq_len, d_model: B, N and d.
        dtype_bytes: bytes of one element of q, k, v and all that is computed from them (float32: 4).

    Returns:
        dict, in bytes (ints). The parts: "inputs" (q, k and v together), "gradients" (theirs, together); "scores",
        "shifted", "exponentials", "weights" (the lines of `softmax`, one (B, N, N) array each); "argmax" (where `max`
        found each row's maximum, for its backward pass: (B, N, 1), int64 whatever dtype_bytes is); "row_sums"
        ((B, N, 1)); "loss" (one number); "workspace" (64 MiB that cuBLAS keeps). The totals: "saved" is what the
        forward pass leaves for the backward pass; "forward_peak" the most that is alive at one moment of the forward
        pass, "step_peak" of forward and backward, both including everything that is always alive.

    Raises:
        ValueError: naming the argument that is below 1.

    Example:
        batch 8, seq_len 256, d_model 16: inputs 393,216, scores 2,097,152, argmax 16,384, saved 4,218,880, forward_peak
        76,308,992 (72.7739 MiB).
    """
    ### BEGIN SOLUTION
    sizes = {"batch": batch, "seq_len": seq_len, "d_model": d_model, "dtype_bytes": dtype_bytes}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")

    square = _rounded(batch * seq_len**2 * dtype_bytes)
    tall = _rounded(batch * seq_len * d_model * dtype_bytes)
    scalar = _rounded(dtype_bytes)
    parts = {
        "inputs": 3 * tall,
        "gradients": 3 * tall,
        **{name: square for name in ("scores", "shifted", "exponentials", "weights")},  # noqa: C420
        "argmax": _rounded(batch * seq_len * 8),
        "row_sums": _rounded(batch * seq_len * dtype_bytes),
        "loss": scalar,
        "workspace": WORKSPACE_BYTES,
    }
    columns = parts["argmax"] + parts["row_sums"]
    saved = 2 * square + columns
    always = parts["inputs"] + parts["gradients"] + parts["loss"] + parts["workspace"]
    forward_peak = always + max(saved + 2 * square, saved + tall + scalar)
    backward_peak = always + scalar + max(saved + square + tall, columns + 6 * square, square + 2 * tall)
    return {
        **parts,
        "saved": saved,
        "forward_peak": forward_peak,
        "step_peak": max(forward_peak, backward_peak),
    }
    ### END SOLUTION


def largest_seq_len(
    capacity_bytes: int, batch: int, d_model: int, dtype_bytes: int = 4, peak: str = "forward_peak"
) -> int:
    """The longest sequence that fits a device, exactly.

    Args:
        capacity_bytes: the device's memory; any size.
        batch, d_model, dtype_bytes: as in `attention_training_memory`.
        peak: which of its totals has to fit: "forward_peak", "step_peak" or "saved".

    Returns:
        the largest seq_len for which that total is at most capacity_bytes; 0 when not even seq_len 1 fits.

    Raises:
        ValueError: for another `peak`, naming it.

    Example:
        24 GiB, batch 8, d_model 64: 14,122 tokens by the forward peak, 11,537 by the peak of the whole step.
    """
    ### BEGIN SOLUTION
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")

    def fits(seq_len: int) -> bool:
        return attention_training_memory(batch, seq_len, d_model, dtype_bytes)[peak] <= capacity_bytes

    too_long = 1
    while fits(too_long):
        too_long *= 2
    fitting = too_long // 2
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if fits(middle):
            fitting = middle
        else:
            too_long = middle
    return fitting
    ### END SOLUTION


def benchmark_attention(
    d_models: Sequence[int],
    seq_lens: Sequence[int],
    batch_size: int = 8,
    warmup_steps: int = 5,
    steps: int = 100,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Measure training steps of `attention`: one row for every d_model and, within it, every seq_len.

    A step is that of `attention_training_memory`, which also keeps gradients and the last loss, on float32 inputs of
    shape (batch_size, seq_len, d_model).

    Args:
        d_models, seq_lens: what to vary.
        batch_size: B.
        warmup_steps, steps: the number of steps before the timed ones, 0 or more; the number of timed steps, at least
            1.
        device: "cpu", "cuda", or "meta", which simulates CUDA's memory: each storage rounded up to 512 bytes
            separately, and 64 MiB of workspace. The CPU has neither.

    Returns:
        a list of dicts with the keys "d_model", "seq_len", "batch_size", "warmup_steps", "steps", "device" as asked;
        "fwd_ms" and "bwd_ms", medians over `steps` (None on "meta"); "mem_max_MB", the most memory alive up to the
        loss, with inputs, gradients and workspace; "add_mem_MB", its growth from the start of the step to the loss;
        both in a step that is not the first, in MiB despite the name, as floats, not rounded; and "status", "success".
        A row that runs out of memory has "oom" there and None for the four numbers, and the next row follows. Any other
        error is passed on.

    Raises:
        RuntimeError: for "cuda" where there is no CUDA device.
        ValueError: for a device other than these three, naming it.

    Example:
        benchmark_attention([16], [256], device="meta") has one row, with mem_max_MB 72.7739 and add_mem_MB 4.02344.
    """
    ### BEGIN SOLUTION
    MemoryTracker(device)  # says so at once where the device cannot be measured
    rows: list[dict[str, Any]] = []
    for d_model in d_models:
        for seq_len in seq_lens:
            shape = (batch_size, seq_len, d_model)
            row: dict[str, Any] = {
                "d_model": d_model,
                "seq_len": seq_len,
                "batch_size": batch_size,
                "warmup_steps": warmup_steps,
                "steps": steps,
                "device": device,
                **dict.fromkeys(("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")),
                "status": "oom",
            }
            rows.append(row)
            try:
                numbers = _memory_of_a_step(shape, device)
                if torch.device(device).type != "meta":
                    numbers |= _times_of_a_step(shape, device, warmup_steps, steps)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            else:
                row.update(numbers, status="success")
    return rows
    ### END SOLUTION


### BEGIN SOLUTION
import statistics  # noqa: E402
import time  # noqa: E402

WORKSPACE_BYTES = 64 * 2**20
ROUNDING_BYTES = 512


def _rounded(nbytes: int, round_to: int = ROUNDING_BYTES) -> int:
    return -(-nbytes // round_to) * round_to


def _memory_of_a_step(shape: tuple[int, int, int], device: str) -> dict[str, float | None]:
    """Peak and growth of the second step's forward pass, in MiB."""
    tracker, held_bytes = MemoryTracker(device), 0
    if device == "meta":
        tracker._round_to, held_bytes = ROUNDING_BYTES, WORKSPACE_BYTES
    elif torch.device(device).type == "cuda":
        held_bytes = torch.cuda.memory_allocated(device)
    with tracker:
        q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
        for _ in range(2):
            before_bytes = tracker.current_allocated()
            tracker.reset()
            loss = attention(q, k, v).sum()
            peak_bytes, after_bytes = tracker.peak_allocated(), tracker.current_allocated()
            loss.backward()
    return {"mem_max_MB": (held_bytes + peak_bytes) / 2**20, "add_mem_MB": (after_bytes - before_bytes) / 2**20}


def _times_of_a_step(
    shape: tuple[int, int, int], device: str, warmup_steps: int, steps: int
) -> dict[str, float | None]:
    """Median milliseconds of forward and backward, without a tracker."""

    def now() -> float:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    forward_ms, backward_ms = [], []
    for _ in range(warmup_steps + steps):
        start = now()
        loss = attention(q, k, v).sum()
        between = now()
        loss.backward()
        forward_ms.append(1e3 * (between - start))
        backward_ms.append(1e3 * (now() - between))
    return {
        "fwd_ms": statistics.median(forward_ms[warmup_steps:]),
        "bwd_ms": statistics.median(backward_ms[warmup_steps:]),
    }


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA has a type of error for it, the CPU only a text."""
    texts = ("can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


### END SOLUTION
