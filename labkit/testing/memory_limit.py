"""A call under a limit of memory, for sizes at which right and wrong answers are tens of megabytes apart.

In an ordinary run the meters count the bytes. When a submission is graded, the call gets a fresh process, which the
kernel lets map its arguments and so many MiB more. The limit holds from before the submission's file is loaded:
whatever the submission keeps is counted, wherever it was allocated, and so is the stack of a thread, 8 MiB.

    @pytest.mark.memory_limit(mib=16)
    def test_far_beyond_a_matrix(self, memory_limit):
        O, L = memory_limit(flash_forward, Q, K, V)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from labkit.meters.arrays import measure_arrays

SLACK_BYTES = 4 << 20
"""Besides the limit, for what is not an array: loading a file takes 0.2 MiB of it. The meters leave it too."""


class NeedsMoreMemory(AssertionError):
    """A call needs more memory than it is allowed, in MiB over its arguments; how much is known where meters saw it."""

    def __init__(self, message: str, allowed_mib: float, used_mib: float | None = None) -> None:
        super().__init__(message)
        self.allowed_mib, self.used_mib = allowed_mib, used_mib


def stays_within(task: str, mib: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` returns, if it needs at most `mib` MiB over its arguments.

    `task` is what a message says needs more: `function` may be a probe that calls it.

    Raises:
        NeedsMoreMemory: it needs more.
    """
    if hasattr(function, "__memory_limit__"):
        return function.__memory_limit__(task, mib, args, kwargs)
    torch = sys.modules.get("torch")
    if torch is None:
        measured = measure_arrays(function, *args, warm=False, **kwargs)
        n_bytes = measured.peak_bytes
    else:
        from labkit.meters.tensors import measure_peak

        measure_peak(torch.neg, torch.zeros(1))  # what its first use imports is nobody's allocation
        measured = measure_arrays(measure_peak, function, *args, warm=False, **kwargs)
        of_tensors = measured.result
        n_bytes = measured.peak_bytes + of_tensors.peak_bytes
        measured = measured._replace(result=of_tensors.result)
    if n_bytes > mib * 2**20 + SLACK_BYTES:
        raise NeedsMoreMemory(needs_more(task, mib, args), mib, n_bytes / 2**20)
    return measured.result


def needs_more(task: str, mib: float, args: Sequence[Any]) -> str:
    """What a student reads; where the first two arguments are queries and keys of a matrix beyond that, its size."""
    said = f"{task} needs more than {mib:g} MiB over its arguments"
    matrices = [x for x in args[:2] if not callable(x) and hasattr(x, "shape") and len(x.shape) >= 2]
    if len(matrices) < 2:
        return said
    n_q, n_k = (x.shape[-2] for x in matrices)
    whole = n_q * n_k * matrices[0].dtype.itemsize / 2**20
    if whole < mib:
        return said
    return f"{said} at {n_q} × {n_k}; one {n_q} × {n_k} array is {whole:g} MiB"
