"""What a suite's programs do in the process of an answer: run lines of Python, and find what they left switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def run_lines(lines: str, names: Mapping[str, Any]) -> list[Any]:
    """Run lines of Python that know `names`; returns what they `note(…)`, in order."""
    noted: list[Any] = []
    namespace = {**names, "note": noted.append}
    try:
        exec(lines, namespace)
    finally:
        namespace.clear()  # its functions hold it, and it holds tensors
    return noted


def read(tracker: Any) -> tuple[int, int] | None:
    """(current, peak) of a tracker, in bytes; None where it is none."""
    if not hasattr(tracker, "current_allocated"):
        return None
    return tracker.current_allocated(), tracker.peak_allocated()


def left_on() -> list[str]:
    """What looks on at torch, of dispatch modes and of hooks on saved tensors, in words; it is taken away."""
    found: list[str] = []
    for i in reversed(range(torch._C._len_torch_dispatch_stack())):
        mode = torch._C._get_dispatch_stack_at(i)
        TorchDispatchMode.__exit__(mode, None, None, None)
        found.append("a tracker")
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("hooks are in place"):
            pass  # to disable them while some are in place is an error
    except RuntimeError:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        found.append("a hook on saved tensors")
    return found
