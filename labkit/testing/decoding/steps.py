"""The two tensors that a step of decoding returns, and whether its products are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.testing.compare import assert_tuple, require, require_own_work


def two_results(name: str, got: Any) -> dict[str, Any]:
    """`o` and `lse` of what a function called `name` returned."""
    return dict(zip(("o", "lse"), assert_tuple(f"{name}'s result", got, ("o", "lse")), strict=True))


def assert_own_products(name: str, told: Mapping[str, Any]) -> None:
    """Fail where torch's own attention does the work, or where products cannot be seen."""
    require_own_work(not told["fused"], f"{name} calls torch's own attention ({', '.join(told['fused'])}): write it")
    require(told["flops"] > 0, f"{name} makes no matrix product: write products with @, so that they can be counted")
