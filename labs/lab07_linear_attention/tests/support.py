"""Lab 07's cases, references and known mistakes: linear attention, its memory model, and the rows of a profile."""

import math
from functools import cached_property, partial

import numpy as np
import torch

from labkit.testing.attention.reference import random_qkv
from labkit.testing.compare import (
    SLACK,
    assert_close,
    assert_equal,
    assert_keys,
    assert_type,
    record_margin,
    require,
    require_at_most,
)
from labkit.testing.unchanged import copied

AGREEMENT = 1e-10
"""How far two routes may be apart in float64."""
NOT_POSITIVE = "0/0: the weights are above 0 when φ is, and eps belongs in the divisor"


# Linear attention


def phi(x):
    """The feature map, without overflow in the exponential or in its gradient."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def attend(weights, v, eps, divisor=None):
    """Linear attention from its weights, 0 where a key is not seen; with other weights in the divisor where given."""
    return weights @ v / ((weights if divisor is None else divisor).sum(-1, keepdim=True) + eps)


class LinearCase:
    """Inputs of linear attention, its output in float64, and those of usual mistakes."""

    def __init__(self, Q, K, V, causal=True, eps=1e-6):
        self.Q, self.K, self.V, self.eps, self.causal = Q, K, V, eps, causal
        self.all = torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.float64)
        self.seen = self.all.tril() if causal else self.all

    @classmethod
    def drawn(cls, rng, *, dtype=torch.float32, causal=True, eps=1e-6, **sizes):
        """A case with standard-normal inputs; sizes are those of `random_qkv`."""
        arrays = random_qkv(rng, dtype=np.float64, **sizes)
        return cls(*(torch.from_numpy(x).to(dtype) for x in arrays), causal, eps)

    @property
    def inputs(self):
        """Copies of Q, K and V."""
        return copied(self.Q, self.K, self.V)

    def output(self, q, k, v):
        """What is right for such q, k and v, in their precision and with a graph."""
        return attend(phi(q) @ phi(k).mT * self.seen.to(q.dtype), v, self.eps)

    @cached_property
    def want(self):
        """What is right, in float64."""
        return self.output(*(x.double() for x in self.inputs))

    def check(self, name, got, *, chunk=None, hint="", nan_hint=NOT_POSITIVE):
        """Compare an output with the reference, and name a usual mistake where one fits."""
        assert_type(name, got, torch.Tensor, "a tensor")
        plain = self.want + AGREEMENT / SLACK if self.Q.dtype == torch.float64 else self.output(*self.inputs)
        known = partial(self.mistakes, chunk)
        with np.errstate(all="ignore"):
            options = {"dtype": self.Q.dtype, "mistakes": known, "hint": hint, "nan_hint": nan_hint}
            assert_close(name, got.detach(), self.want, plain=plain, **options)

    def mistakes(self, chunk=None):
        """Usual mistakes and the outputs that they lead to; with those of a route that takes chunks."""
        q, k, v = (x.double() for x in self.inputs)
        every = phi(q) @ phi(k).mT
        weights, eps = every * self.seen, self.eps
        sums = weights.sum(-1, keepdim=True)
        found = {
            "φ is not applied to k": attend(phi(q) @ k.mT * self.seen, v, eps),
            "the output is not divided by the sum of the weights": weights @ v,
            "eps is left out, or is 1e-6 whatever is asked for": attend(weights, v, 0.0),
            "eps is a floor of the divisor, not added to it": weights @ v / sums.clamp(min=eps),
            "eps is added to each number of Σφ(k), so that it is multiplied by φ(q)": weights
            @ v
            / (sums + eps * phi(q).sum(-1, keepdim=True)),
        }
        if self.causal:
            own_missing = every * self.all.tril(-1)
            found |= {
                "every query sees every key: that is the bidirectional form": attend(every, v, eps),
                "the sum of the weights is over all keys: the divisor must be causal too": attend(
                    weights, v, eps, divisor=every
                ),
                "a query does not see the key of its own position: j ≤ i": attend(own_missing, v, eps),
            }
        if chunk:
            block = torch.arange(len(self.all)) // chunk
            later, seen = block[:, None] - block, self.seen
            factors = {
                "the chunk just before is missing from the state: the state lags by one chunk": seen * (later != 1),
                "the chunk's own keys are in the state already, and so count twice": seen + (later == 0),
                "within a chunk nothing is masked": (later >= 0).double(),
            }
            found |= {text: attend(every * factor, v, eps) for text, factor in factors.items()}
        return found


# The memory model

PARTS = ("inputs", "standard_peak", "linear_bidir_peak", "linear_causal_peak", "linear_chunked_peak")
NEAR = 0.02
"""The share by which a prediction may be off."""


def expected_bytes(batch, heads, n, d, dtype_bytes):
    """Bytes of each part, by what the handout's steps hold at their worst moment."""
    state, c = d * d + d, min(64, n)
    moments = ((n - c) * d + state + 5 * c * d + c * c, n * d + state + 2 * c * d + 2 * d * d, 2 * n * d + state)
    counts = (3 * n * d, 2 * n * n + n * d, 4 * n * d + state + 2 * n, (2 * d * d + 5 * d + 2) * n, max(moments))
    return {name: batch * heads * count * dtype_bytes for name, count in zip(PARTS, counts, strict=True)}


def assert_prediction(part, got, sizes):
    """Fail unless a part of `linear_attention_memory(*sizes)` is an int within 2 % of what is expected."""
    batch, heads, n, d, dtype_bytes = sizes
    name, want = f"{part} of linear_attention_memory{sizes}", expected_bytes(*sizes)
    assert_type(name, got, (int, float), "an int: bytes")
    record_margin(name, abs(got - want[part]), NEAR * want[part], "tolerance")
    if abs(got - want[part]) > NEAR * want[part]:
        usual = {
            "bits are counted instead of bytes": 8 * want[part],
            "the inputs are added: the peak is over them": want[part] + want["inputs"],
        }
        elements = {
            "standard_peak": ("one N × N array is counted: scores and weights are both alive", n * n + n * d),
            "linear_causal_peak": (
                "one N·d² array is counted: the products and their cumulative sums are both alive",
                (d * d + 5 * d + 2) * n,
            ),
            "linear_chunked_peak": (
                "only the end is looked at: for few positions a chunk is worse",
                2 * n * d + d * d + d,
            ),
        }
        if part in elements:
            text, count = elements[part]
            usual[text] = count * batch * heads * dtype_bytes
        hint = "list what is alive at the worst moment, each with its shape; 2 % are allowed"
        assert_equal(name, got, want[part], mistakes=usual, hint=hint)
    assert_type(name, got, int, "an int: bytes are whole")


# The profile

ROUTES = ("standard", "linear_bidir", "linear_causal", "linear_chunked")
COLUMNS = (
    "seq_len",
    "input_memory_mb",
    *(f"{name}_memory_mb" for name in ROUTES),
    *(f"{name}_theoretical_mb" for name in ROUTES),
    "savings_bidir",
)


def standard_attention(q, k, v):
    """The handout's steps: scores, scaled scores in their place, weights, output."""
    scores = q @ k.mT
    scores = scores / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights @ v


def rows_of(got, seq_lens):
    """What `profile_attention_memory` gave, its form checked: a row for each of `seq_lens`."""
    assert_type("profile_attention_memory's result", got, list, "a list of dicts, one a length")
    assert_equal("the number of rows", len(got), len(seq_lens))
    for row in got:
        assert_keys("a row", row, COLUMNS)
    assert_equal("seq_len of the rows", [row["seq_len"] for row in got], list(seq_lens))
    return got


def assert_row(row, peaks, shape, dtype):
    """Fail unless all columns of a row are right, where nothing is out of memory.

    `peaks` are the bytes that the routes need over their inputs, by the names in `ROUTES`; `shape` is that of q, k
    and v, (batch, heads, seq_len, d).
    """
    want, n = expected_bytes(*shape, dtype.itemsize), shape[2]
    inputs = want["inputs"]
    assert_mb(f"input_memory_mb for N = {n}", row["input_memory_mb"], inputs)
    for name, peak in peaks.items():
        counted = {"the inputs are counted: the peak is over them": (peak + inputs) / 1e6}
        hint = "the peak of one call over its inputs, as measure_peak gives it"
        assert_mb(f"{name}_memory_mb for N = {n}", row[f"{name}_memory_mb"], peak, counted, hint)
        theory, predicted = want[f"{name}_peak"], row[f"{name}_theoretical_mb"]
        if not abs(predicted - theory / 1e6) <= NEAR * theory / 1e6:
            added = {"the inputs are added: both sides are over the inputs": (theory + inputs) / 1e6}
            assert_mb(f"{name}_theoretical_mb for N = {n}", predicted, theory, added)
    quotient = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    told = f"savings_bidir is {row['savings_bidir']:.6g}, expected measured standard over measured bidirectional, "
    off = abs(row["savings_bidir"] - quotient)
    require_at_most("savings_bidir's error", off, 1e-6 * quotient, f"{told}{quotient:.6g}", kind="tolerance")


def assert_mb(name, got, want_bytes, mistakes=None, hint=""):
    """Fail unless a number of MB is that of `want_bytes`, to a thousandth; `mistakes` lead to numbers of MB."""
    assert_type(name, got, (int, float), "a number: MB")
    want = want_bytes / 1e6
    told = f"{name} is {got:.6g}, expected {want:.6g}"
    for text, value in {**(mistakes or {}), "the unit is MiB: MB are 10⁶ bytes": want_bytes / 2**20}.items():
        found = math.isfinite(got) and abs(got - value) <= 1e-6 * abs(value)
        require(not found or abs(value - want) <= 1e-3 * want, f"{told}\nThat is exactly what comes out when {text}")
    require_at_most(f"{name}'s error", abs(got - want), 1e-3 * want, told, kind="tolerance", hint=hint)
