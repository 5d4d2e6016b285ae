"""What forms of attention hold at their peak: the handout's steps measured, and usual mistakes in counting them."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from labkit.meters.tensors import measure_peak
from labkit.testing import margins
from labkit.testing.compare import assert_equal, assert_type

PARTS = ("inputs", "standard_peak", "linear_bidir_peak", "linear_causal_peak", "linear_chunked_peak")
NEAR = 0.02
"""The share by which a prediction may be off."""
Sizes = tuple[int, int, int, int, int]
"""batch, heads, seq_len, d, dtype_bytes"""


class Handout:
    """The handout's steps, run as they stand: what the model is about."""

    @staticmethod
    def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Scores, scaled scores in their place, weights, output."""
        scores = q @ k.mT
        scores = scores / math.sqrt(q.shape[-1])
        weights = scores.softmax(-1)
        return weights @ v

    @staticmethod
    def linear_bidir(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One state for all queries."""
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        state, k_sum = k.mT @ v, k.sum(-2)
        out, total = q @ state, q @ k_sum[..., None]
        return out / (total + 1e-6)

    @staticmethod
    def linear_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """By cumulative sums: a product and a state for each position."""
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        products = k[..., :, None] * v[..., None, :]
        states, k_sums = products.cumsum(-3), k.cumsum(-2)
        out = (q[..., None, :] @ states)[..., 0, :]
        total = (q[..., None, :] @ k_sums[..., None])[..., 0]
        return out / (total + 1e-6)


def expected_bytes(sizes: Sizes) -> dict[str, int]:
    """Bytes of each part: measured on simulated tensors where the handout gives steps, otherwise walked through."""
    batch, heads, seq_len, d, dtype_bytes = sizes
    counts = _elements(seq_len, d)
    return {name: batch * heads * count * dtype_bytes for name, count in zip(PARTS, counts, strict=True)}


@cache
def _elements(n: int, d: int) -> tuple[int, ...]:
    """Elements of one head."""
    q, k, v = (torch.empty(n, d, device="meta") for _ in range(3))
    forms = (Handout.standard, Handout.linear_bidir, Handout.linear_causal)
    return 3 * n * d, *(measure_peak(form, q, k, v)[0] // 4 for form in forms), _last_chunk_or_end(n, d)


def _last_chunk_or_end(n: int, d: int) -> int:
    c = min(64, n)
    state, rows, pieces = d * d + d, c * d, (n - c) * d
    added_up = pieces + state + 2 * rows + c * c + 3 * rows
    state_renewed = pieces + rows + state + 2 * rows + 2 * d * d
    return max(added_up, state_renewed, 2 * n * d + state)


def unit_suspects(want: int, inputs_bytes: int, batch: int, heads: int, dtype_bytes: int) -> dict[str, Any]:
    """Usual mistakes with units and factors → the value that each leads to."""
    return {
        "bits are counted in place of bytes": 8 * want,
        "the inputs are added: the peak is over them": want + inputs_bytes,
        "the value is in MB: memory is in bytes": want / 1e6,
        "the value is in MiB: memory is in bytes": want / 2**20,
        "elements are counted in place of bytes": want // dtype_bytes,
        "the batch is left out": want // batch,
        "the heads are left out": want // heads,
        "dtype_bytes is ignored and taken as 4": want // dtype_bytes * 4,
    }


def peak_suspects(name: str, N: int, d: int) -> dict[str, int]:
    """Usual mistakes in elements of one head."""
    state, c = d * d + d, min(64, N)
    found = {
        "standard_peak": {
            "one N × N array is counted: scores and weights are both alive": N * N + N * d,
            "one N × N array is counted, and nothing else": N * N,
            "the output is left out": 2 * N * N,
            "three N × N arrays are counted: the product before the division is gone": 3 * N * N + N * d,
        },
        "linear_bidir_peak": {
            "the state alone is counted: φ(q), φ(k) and the outputs are larger": d * d,
            "the state is N·d·d": N * d * d + 4 * N * d + 2 * N,
            "the state is left out": 4 * N * d + 2 * N,
            "the state is d, not d²": 4 * N * d + 2 * d + 2 * N,
            "the quotient is left out": 3 * N * d + state + 2 * N,
            "φ(q) and φ(k) are left out": 2 * N * d + state + 2 * N,
            "the sums of weights are left out": 4 * N * d + state,
        },
        "linear_causal_peak": {
            "one N·d² array is counted: the products and their cumulative sums are both alive": N * d * d
            + 5 * N * d
            + 2 * N,
            "one N·d² array is counted, and nothing else": N * d * d,
            "the arrays of N·d are left out": 2 * N * d * d,
            "d² is taken for N·d²": 2 * d * d + 5 * N * d + 2 * N,
            "three N·d² arrays are counted": 3 * N * d * d + 5 * N * d + 2 * N,
        },
        "linear_chunked_peak": {
            "the output is counted once: pieces and result are both alive at the end": N * d + state,
            "only a state and a chunk are counted, the output is left out": state + 5 * c * d + c * c,
            "the state is left out": 2 * N * d,
            "only the end is looked at: for few positions a chunk is worse": 2 * N * d + state,
            "the end is not looked at": max((N - c) * d + state + 5 * c * d + c * c, N * d + 2 * c * d + 3 * d * d + d),
            "φ(q) and φ(k) of the whole input are counted": 4 * N * d + state,
        },
    }
    return found.get(name, {"two of q, k and v are counted": 2 * N * d, "one of q, k and v is counted": N * d})


def assert_bytes(name: str, part: str, got: Any, want: int, sizes: Sizes, inputs_bytes: int) -> None:
    """Within 2 % of what was measured, and an int."""
    batch, heads, seq_len, d, dtype_bytes = sizes
    assert_type(name, got, (int, float), "an int: bytes")
    margins.note(name, abs(got - want), NEAR * want, "tolerance")
    if abs(got - want) <= NEAR * want:
        return
    usual = {text: count * batch * heads * dtype_bytes for text, count in peak_suspects(part, seq_len, d).items()}
    assert_equal(name, got, want, suspects={**usual, **unit_suspects(want, inputs_bytes, batch, heads, dtype_bytes)},
                 hint="list what is alive at the worst moment, each with its shape; 2 % are allowed")  # fmt: skip
