"""What the user chose for a chat, and what every adapter shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from labkit.model.llama import Sizes


@dataclass(frozen=True)
class Setting:
    """The model's sizes, the most tokens of the text, and the options of `lab chat`; None where not given."""

    sizes: Sizes
    max_tokens: int
    bits: int | None = None
    window: int | None = None
    sinks: int | None = None
    paged: bool = False


def checked(found: Any, like: torch.Tensor, name: str) -> torch.Tensor:
    """A result of the student's function `name`, as a tensor of the shape and dtype of `like`.

    Raises:
        AssertionError: it is something else, or holds NaN or infinite numbers; the message is for the student.
    """
    from labkit.testing.compare import require
    from labkit.testing.wording import none_hint, type_name

    if not isinstance(found, torch.Tensor):
        import numpy as np

        require(
            isinstance(found, np.ndarray), f"{name} returns {type_name(found)}, expected an array{none_hint(found)}"
        )
        found = torch.from_numpy(found)
    expected = tuple(like.shape)
    require(tuple(found.shape) == expected, f"{name} returns shape {tuple(found.shape)}, expected {expected}")
    require(found.dtype == like.dtype, f"{name} returns {found.dtype}, expected {like.dtype}, the dtype of its inputs")
    if not math.isfinite(found.sum()):
        n_bad = int((~found.isfinite()).sum())
        require(n_bad == 0, f"{name} returns {n_bad:,} numbers of {found.numel():,} that are NaN or infinite")
    return found
