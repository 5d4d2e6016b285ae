"""Softmax of the rows of a tensor, exactly and plainly, and the mistakes usual in a kernel of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.compare import HALF_SLACK, NAN_HINT, SLACK, assert_close, assert_dtype, assert_type

Rows = npt.NDArray[np.floating]


def assert_softmax(got: Any, x: torch.Tensor, *, hint: str = "", nan_hint: str = NAN_HINT) -> None:
    """Fail unless `got` is the softmax of each row of `x`, in its dtype; a row of −inf alone gives zeros."""
    assert_type("the result", got, torch.Tensor, "a tensor")
    exact = x.double().numpy()
    half = x.itemsize == 2
    with np.errstate(all="ignore"):
        plain = _softmax(exact.astype(np.float32)).astype(np.float16 if half else np.float32)
        assert_close(
            "the result",
            got.double(),
            _softmax(exact),
            plain=plain,
            slack=HALF_SLACK if half else SLACK,
            suspects=lambda: _suspects(exact),
            hint=hint,
            nan_hint=nan_hint,
        )
    assert_dtype("the result", got, x.dtype)


def _softmax(x: Rows, behind: int = 0, score: float = 0.0) -> Rows:
    """Softmax of each row in x's precision, as if `behind` more elements stood there with that score."""
    longer = np.concatenate([x, np.full((len(x), behind), score, x.dtype)], 1)
    if not longer.shape[1]:
        return x
    top = longer.max(1, keepdims=True)
    powers = np.exp(longer - np.where(np.isneginf(top), 0, top))
    total = powers.sum(1, keepdims=True)
    return (powers / np.where(total == 0, 1, total))[:, : x.shape[1]]


def _suspects(x: Rows) -> dict[str, Rows]:
    if not x.size:
        return {}
    behind = (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]
    powers = np.exp(x - x.max(1, keepdims=True))
    found = {
        "the powers are not divided by their sum": powers,
        "the sum is taken over all rows, or over columns": powers / powers.sum(0, keepdims=True),
        "the logarithm of the softmax": np.log(_softmax(x)),
    }
    if behind:
        found["the lanes behind a row's end score 0 and weigh something: other=-inf"] = _softmax(x, behind)
    return found
