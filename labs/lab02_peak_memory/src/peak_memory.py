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
        # YOUR CODE HERE
        raise NotImplementedError()

    def __enter__(self) -> MemoryTracker:
        """Start from zero. For "cpu" and "meta", enter a `StorageWatch(self._ran, self._freed)`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # YOUR CODE HERE
        raise NotImplementedError()

    def _ran(self, operator: str, operands: dict[int, int], results: dict[int, int]) -> None:
        """Count the storages that `operator` made, and the peak: see `StorageWatch`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def _freed(self, key: int) -> None:
        """Count a storage no more: see `StorageWatch`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def reset(self) -> None:
        """Start the peak again, from what is alive now."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def current_allocated(self) -> int:
        """Bytes alive now, of those allocated since entering."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def peak_allocated(self) -> int:
        """The most bytes alive at one moment since entering or since the last `reset`."""
        # YOUR CODE HERE
        raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()
