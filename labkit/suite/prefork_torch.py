"""Importing this imports torch and its lazy parts: meta tensors, the backward pass, FlexAttention.

It computes nothing on the CPU: a parent that is to fork must not have started torch's threads. Triton's interpreter is
switched on first, since FlexAttention imports Triton, and from then on it is too late.

`torch.compile` returns what it is given: compiling needs programs and files that a sandbox does not have.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch

for _module in (
    "labkit.meters.kernels.interpreted",
    "torch.fx.experimental.symbolic_shapes",
    "functorch.compile",
    "torch.nn.attention.flex_attention",
):
    importlib.import_module(_module)


def _eager(model: Callable[..., Any] | None = None, **_options: Any) -> Callable[..., Any]:
    """Stands for `torch.compile`, also as a decorator with options, and compiles nothing."""
    return _eager if model is None else model


torch.compile = _eager  # type: ignore[assignment]
_ = (torch.ones(1, 1, device="meta") @ torch.ones(1, 1, device="meta")).exp()
