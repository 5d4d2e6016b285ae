"""What a step of decoding may read and hold, and the two tensors that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from labkit.testing.compare import assert_at_most, assert_tuple, require, require_own_work


def two_results(name: str, got: Any) -> dict[str, Any]:
    """`o` and `lse` of what a function called `name` returned."""
    return dict(zip(("o", "lse"), assert_tuple(f"{name}'s result", got, ("o", "lse")), strict=True))


def assert_own_products(name: str, told: Mapping[str, Any]) -> None:
    """Fail where torch's own attention does the work, or where products cannot be seen."""
    require_own_work(not told["fused"], f"{name} calls torch's own attention ({', '.join(told['fused'])}): write it")
    require(told["flops"] > 0, f"{name} makes no matrix product: write products with @, so that they can be counted")


def assert_read_once(name: str, told: Mapping[str, Any], k: torch.Tensor, v: torch.Tensor, hint: str) -> None:
    """Fail unless all of K and V was read, and no byte twice."""
    for which, x in (("K", k), ("V", v)):
        read = told["read"][which.lower()]
        assert_at_most(f"what {name} reads of {which}, which holds {x.nbytes:,} bytes,", read, x.nbytes, hint=hint)
        require(read >= x.nbytes, f"{name} reads {read:,} of {x.nbytes:,} bytes of {which}: every key counts")
