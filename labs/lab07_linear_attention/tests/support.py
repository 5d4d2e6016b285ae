"""Lab 07's cases, references and known mistakes: linear attention, its memory model, and the rows of a profile."""

import math
from functools import cached_property, partial

import numpy as np
import torch

from labkit.testing.attention.reference import random_qkv
from labkit.testing.attention.table import attention_cases
from labkit.testing.compare import (
    TOLERANCE,
    Tolerance,
    assert_close,
    assert_equal,
    assert_keys,
    assert_type,
    record_margin,
    require,
    require_at_most,
)
from labkit.testing.unchanged import copied

from .probes import gradients_of, measured_call

AGREEMENT = 1e-10
"""How far two routes may be apart in float64."""
NOT_POSITIVE = "0/0: the weights are above 0 when φ is, and eps belongs in the divisor"


# Linear attention


def features(*tensors):
    """φ of each, without overflow in the exponential or in its gradient."""
    return [torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in tensors]


OTHER_FEATURES = {
    "the + 1 is missing: φ(x) = elu(x) + 1": torch.nn.functional.elu,
    "φ is exp: above 0, φ(x) = elu(x) + 1 is x + 1": torch.exp,
    "φ is relu(x) + 1, flat below 0": lambda x: x.relu() + 1,
    "φ is softplus": torch.nn.functional.softplus,
    "φ is selu(x) + 1, which goes below 0": lambda x: torch.nn.functional.selu(x) + 1,
}
"""What is taken for φ, and the function."""


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
    def drawn(cls, rng, *, n=None, n_queries=None, n_keys=None, dtype=torch.float32, causal=True, eps=1e-6, **sizes):
        """A case of drawn inputs; sizes are those of `random_qkv`, with as many keys as queries if causal.

        The first number of each query is above 0, and so φ of it above 1: elu(x) + 1 is rounded to 6e-8, and where all
        of φ(q) is as small, so is what it is divided by.
        """
        n_queries = n or n_queries
        n_keys = n_queries if causal else n or n_keys
        arrays = random_qkv(rng, dtype=np.float64, n_queries=n_queries, n_keys=n_keys, **sizes)
        np.abs(arrays[0][..., 0], out=arrays[0][..., 0])
        return cls(*(torch.from_numpy(x).to(dtype) for x in arrays), causal, eps)

    @classmethod
    def worked(cls, causal=True):
        """The stub's example: all φ(q) are 1 and the φ(k) are 1 and 2."""
        return cls(*(torch.tensor(x) for x in ([[0.0], [0.0]], [[0.0], [1.0]], [[3.0], [0.0]])), causal)

    @property
    def given(self):
        """Copies of the inputs, by the handout's names."""
        return dict(zip("qkv", self.inputs, strict=True))

    @property
    def inputs(self):
        """Copies of Q, K and V."""
        return copied(self.Q, self.K, self.V)

    def output(self, q, k, v, cut=""):
        """What is right for such q, k and v, in their precision and with a graph, which is `cut` at a part."""
        phi_q, phi_k = features(q, k)
        seen = self.seen.to(q.dtype)
        summed, state_of, values = phi_k, phi_k, v
        if cut == "Σφ(k)":
            summed = phi_k.detach()
        elif cut == "the state":
            state_of, values = phi_k.detach(), v.detach()
        return attend(phi_q @ state_of.mT * seen, values, self.eps, divisor=phi_q @ summed.mT * seen)

    @cached_property
    def want(self):
        """What is right, in float64."""
        return self.output(*(x.double() for x in self.inputs))

    def check(self, name, got, *, chunk=None, hint="", nan_hint=NOT_POSITIVE):
        """Compare an output with the reference, and name a usual mistake where one fits."""
        assert_type(name, got, torch.Tensor, "a tensor")
        if chunk and got.ndim == self.V.ndim and self.V.shape[-2] % chunk:
            n, rest = self.V.shape[-2], self.V.shape[-2] % chunk
            lengths = {
                n - rest: "the last chunk, which is shorter, is left out",
                n - rest + chunk: "padding is not cut off",
            }
            told = f"{name} has shape {tuple(got.shape)}, expected {tuple(self.want.shape)}"
            length = got.shape[-2]
            require(length not in lengths, f"{told}\nUsual cause: {lengths.get(length)}")
        in_float64 = self.Q.dtype == torch.float64
        baseline = self.want if in_float64 else self.output(*self.inputs)
        tolerance = Tolerance(atol=AGREEMENT) if in_float64 else TOLERANCE
        known = partial(self.mistakes, chunk)
        with np.errstate(all="ignore"):
            options = {"dtype": self.Q.dtype, "mistakes": known, "hint": hint, "nan_hint": nan_hint}
            options |= {"tolerance": tolerance, "reference": self.output}
            assert_close(name, got.detach(), self.want, baseline=baseline, **options)

    def mistakes(self, chunk=None):
        """Usual mistakes and the outputs that they lead to; with those of a route that takes chunks.

        None for d = 1, the worked example's: there too many lead to the same numbers.
        """
        q, k, v = (x.double() for x in self.inputs)
        root = q.shape[-1] ** 0.5
        if root == 1:
            return {}
        phi_q, phi_k, phi_q_scaled, phi_k_scaled = features(q, k, q / root, k / root)
        every = phi_q @ phi_k.mT
        weights, eps = every * self.seen, self.eps
        sums, keys_seen = weights.sum(-1, keepdim=True), self.seen.sum(-1, keepdim=True)
        found = {
            "φ is not applied to k": attend(phi_q @ k.mT * self.seen, v, eps),
            "φ is applied neither to q nor to k": attend(q @ k.mT * self.seen, v, eps),
            "φ is not applied to k in the divisor": attend(weights, v, eps, divisor=phi_q @ k.mT * self.seen),
            "q is divided by √d before φ": attend(phi_q_scaled @ phi_k.mT * self.seen, v, eps),
            "k is divided by √d before φ": attend(phi_q @ phi_k_scaled.mT * self.seen, v, eps),
            "the weights are divided by √d, which linear attention does not do: beside them eps is √d times as large": (
                attend(weights, v, eps * root)
            ),
            "the output is divided by √d, which linear attention does not do": attend(weights, v, eps) / root,
            "the softmax is still there": (q @ k.mT / q.shape[-1] ** 0.5 + self.seen.log()).softmax(-1) @ v,
            "the output is not divided by the sum of the weights": weights @ v,
            "the output is divided by the number of keys, and not by the sum of the weights": weights @ v / keys_seen,
            "eps is left out, or is 1e-6 whatever is asked for": attend(weights, v, 0.0),
            "eps is a floor of the divisor, not added to it": weights @ v / sums.clamp(min=eps),
            "eps is added to each number of Σφ(k), so that it is multiplied by φ(q)": weights
            @ v
            / (sums + eps * phi_q.sum(-1, keepdim=True)),
            "eps is added once for each key": weights @ v / (sums + eps * keys_seen),
            "eps is added to each number of φ(k), so that Σφ(k) has it once for each key": weights
            @ v
            / (sums + eps * keys_seen * phi_q.sum(-1, keepdim=True)),
        }
        for text, feature in OTHER_FEATURES.items():
            found[text] = attend(feature(q) @ feature(k).mT * self.seen, v, eps)
        if not self.causal and len(self.all) == len(self.all.mT):
            earlier = every * self.all.tril()
            found["a query sees the keys up to its own position alone: that is the causal form"] = attend(
                earlier, v, eps
            )
        if q.shape[-1] == v.shape[-1]:
            turned = attend(phi_q @ v.mT * self.seen, phi_k, eps, divisor=weights)
            found["the state is v φ(k)ᵀ, and not φ(k) vᵀ"] = turned
        if k.shape[-2] > q.shape[-2]:
            first = every * (torch.arange(k.shape[-2]) < q.shape[-2])
            found["the divisor has as many keys as there are queries"] = attend(weights, v, eps, divisor=first)
        if self.causal:
            own_missing = every * self.all.tril(-1)
            own_only = every * torch.eye(len(self.all), dtype=torch.float64)
            along_d = (phi_q[..., None, :] @ (phi_k[..., None] * v[..., None, :]).cumsum(-2)).squeeze(-2)
            found |= {
                "eps is added twice, to each of two parts of the divisor": weights @ v / (sums + 2 * eps),
                "eps is added to Σφ(k) at each step, and to the divisor once more": weights
                @ v
                / (sums + eps + eps * keys_seen * phi_q.sum(-1, keepdim=True)),
                "every query sees every key: that is the bidirectional form": attend(every, v, eps),
                "the sum of the weights is over all keys: the divisor must be causal too": attend(
                    weights, v, eps, divisor=every
                ),
                "a query does not see the key of its own position: j ≤ i": attend(own_missing, v, eps),
                "the key of a query's own position is in the divisor, and not in the state that it reads": attend(
                    own_missing, v, eps, divisor=weights
                ),
                "the state is that of a query's own position, and not a sum": attend(own_only, v, eps, divisor=weights),
                "the divisor has the key of a query's own position alone: Σφ(k) is not carried on": attend(
                    weights, v, eps, divisor=own_only
                ),
                "the products φ(k) vᵀ are added up along d, and not along the positions": along_d / (sums + eps),
            }
        if chunk:
            block = torch.arange(len(self.all)) // chunk
            later, seen = block[:, None] - block, self.seen
            missing = -len(self.all) % min(chunk, len(self.all))
            padded = missing * phi_q.sum(-1, keepdim=True)
            last = block == block.max()
            found |= {
                "the divisor has the keys of a query's own chunk only": attend(
                    weights, v, eps, divisor=weights * (later == 0)
                ),
                "the divisor lacks the chunks before the last one: Σφ(k) is replaced, not added to": attend(
                    weights, v, eps, divisor=weights * (later < 2)
                ),
                "both parts, of the own chunk and of those before, are divided by a sum of their own": sum(
                    attend(weights * part, v, eps) for part in (later == 0, later > 0)
                ),
                "there is padding in front, where φ(0) = 1": weights @ v / (sums + padded + eps),
                "there is padding in front, and it is cut off at the end: each row is that of an earlier position": (
                    torch.nn.functional.pad(attend(weights, v, eps), (0, 0, missing, -missing))
                ),
            }
            factors = {
                "the chunk just before is missing from the state: the state lags by one chunk": seen * (later != 1),
                "the chunk's own keys are in the state already, and so count twice": seen + (later == 0),
                "within a chunk nothing is masked": (later >= 0).double(),
                "each chunk stands by itself: the chunks before it are missing": seen * (later == 0),
                "a query does not see the keys of its own chunk": seen * (later > 0),
                "the last key of each chunk is missing from the state": seen
                * ((later == 0) | (torch.arange(len(self.all)) % chunk != chunk - 1)),
                "the last of an odd number of chunks starts from an empty state": seen
                * ((later == 0) | ~last[:, None] | (block.max() % 2 == 1)),
            }
            found |= {text: attend(every * factor, v, eps) for text, factor in factors.items()}
            found |= {
                f"{text}; the divisor is right": attend(every * factor, v, eps, divisor=weights)
                for text, factor in factors.items()
            }
        return found


def rows(*names):
    """The rows of `attention_cases` with these names."""
    return [row for row in attention_cases("full") if row.id in names]


RANDOM = ("random_sizes1", "random_sizes2", "random_sizes3")
SHAPES = rows("N63", "N129", "N2", *RANDOM, "d_v5", "B2x1x2", "every_axis_16", "not_contiguous")
"""Not those whose logits are large: φ of −100 is 0, and so are all weights."""
LENGTHS_DIFFER = rows("N5x129", "N129x7", "N20x65", "N65x20")


def assert_gradients(task, route, case, *chunk):
    """Fail unless output and gradients of a route agree with the reference in float64 to 1e-10."""
    leaves = [x.clone().requires_grad_() for x in case.inputs]
    got = route(*leaves, *chunk)
    near = isinstance(got, torch.Tensor) and got.shape == case.want.shape
    near = near and torch.allclose(got.double(), case.want, 1e-4, 1e-4)
    hint = "something is computed in float32, or eps is not in its place" if near else ""
    case.check("out in float64", got, chunk=chunk[0] if chunk else None, hint=hint)
    cut = "the output requires no grad though q, k and v do\nUsual cause: a detach, a .data, or no_grad on the way"
    require(got.requires_grad, cut)
    factors = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).reshape(got.shape)
    gradients = gradients_of(task, case.inputs, factors, *chunk)

    def right_gradients(cut=""):
        """The reference's, where no gradient flows through the part of that name; 0 where none arrives."""
        total = (case.output(*leaves, cut) * factors).sum()
        return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)

    wanted = right_gradients()
    cuts = {f"no gradient flows through {part}": right_gradients(part) for part in ("Σφ(k)", "the state")}
    hint = "part of the way back is cut by a detach or no_grad, often around the state"
    for i, (name, gradient, want) in enumerate(zip("qkv", gradients, wanted, strict=True)):
        require(gradient is not None, f"the gradient of {name} is None: it was detached on the way")
        known = {text: each[i] for text, each in cuts.items()}
        limits = {"baseline": want, "tolerance": Tolerance(atol=AGREEMENT)}
        assert_close(f"the gradient of {name}", gradient, want, **limits, mistakes=known, hint=hint)


def counts_of(task, case, *options):
    """What one call allocates, computes and runs. Its result must be right, or another function was counted."""
    got, counts = measured_call(task, *case.inputs, *options)
    right = isinstance(got, torch.Tensor) and got.shape == case.want.shape
    right = right and torch.allclose(got.double(), case.want, 1e-3, 1e-3)
    (n, d), d_v = case.Q.shape[-2:], case.V.shape[-1]
    told = f"memory and work are counted for N = {n}, d = {d}, d_v = {d_v}, and there the output is wrong"
    require(right, f"{told}\nWhat is wrong with it, the tests of lengths or of chunks say")
    return counts


def peak_of(task, case, *options):
    """The peak over the inputs, in elements of float32."""
    return counts_of(task, case, *options)["peak_bytes"] // 4


def assert_grows_by_the_output_only(task, name, rng, d, d_v, lengths, *options):
    """Fail if more than the output is held for each further position; what is held at two lengths, in elements."""
    short, long = lengths
    peaks = [peak_of(task, LinearCase.drawn(rng, n=n, d=d, d_v=d_v), *options) for n in lengths]
    rate = (peaks[1] - peaks[0]) / (long - short)
    usual = f"φ(q), φ(k) (d = {d}) or padded copies are made of the whole input: take a piece at a time"
    if rate < 2 * d_v + d:
        usual = "the output exists three times: its pieces, joined, and once more"
    elif 0.9 <= rate / (short + long) <= 2.1:
        usual = "weights of N × N are made"
    elif rate >= d * d_v:
        usual = f"a state of d × d_v = {d * d_v} is kept for every position"
    told = f"what {name} holds at its peak grows by {rate:,.0f} elements for each position (d = {d}, d_v = {d_v})"
    told += f"; the output and its pieces explain {2 * d_v}"
    held = f"what {name} holds for each further position"
    require_at_most(held, rate, 8 / 3 * d_v, told, unit="elements", hint=usual)
    return peaks


def assert_within(memory_limit, route, rng, n, d, *options, causal=True):
    """Within the bound of the test's mark, the last queries' output is right: they see most keys."""
    q, k, v = (torch.from_numpy(rng.standard_normal((n, d), dtype=np.float32)) for _ in range(3))
    got = memory_limit(route, q, k, v, *options)
    seen = torch.ones(8, n, dtype=torch.float64).tril(n - 8 if causal else n)
    phi_q, phi_k = features(q[-8:].double(), k.double())
    want = attend(phi_q @ phi_k.mT * seen, v.double(), 1e-6)
    right = isinstance(got, torch.Tensor) and got.shape == v.shape
    right = right and torch.allclose(got[-8:].double(), want, 1e-3, 1e-3)
    require(right, f"memory stayed within the limit, but the output is wrong, at N = {n}, d = {d}")


# The memory model

PARTS = ("inputs", "standard_peak", "linear_bidir_peak", "linear_causal_peak", "linear_chunked_peak")
NEAR = 0.02
"""The share by which a prediction may be off."""


def expected_bytes(shape, dtype_bytes):
    """Bytes of each part for q of a shape, by what the handout's steps hold at their worst moment."""
    batch, heads, n, d = shape
    bidir, chunked = 4 * n * d + d * d + d + 2 * n, max(chunked_moments(n, d))
    counts = (3 * n * d, 2 * n * n + n * d, bidir, (2 * d * d + 5 * d + 2) * n, chunked)
    return {name: batch * heads * count * dtype_bytes for name, count in zip(PARTS, counts, strict=True)}


def chunked_moments(n, d, c=None):
    """The elements alive at the handout's three moments of the chunked route, whose last chunk has c positions."""
    state, c = d * d + d, c or min(64, n)
    return (n - c) * d + state + 5 * c * d + c * c, n * d + state + 2 * c * d + 2 * d * d, 2 * n * d + state


def assert_prediction(part, got, sizes):
    """Fail unless a part of `linear_attention_memory(*sizes)` is an int within 2 % of what is expected."""
    batch, heads, n, d, dtype_bytes = sizes
    name, want = f"{part} of linear_attention_memory{sizes}", expected_bytes(sizes[:4], dtype_bytes)
    assert_type(name, got, (int, float), "an int: bytes")
    record_margin(name, abs(got - want[part]), NEAR * want[part], "tolerance")
    if abs(got - want[part]) > NEAR * want[part]:
        usual = {
            "bits are counted instead of bytes": 8 * want[part],
            "the inputs are added: the peak is over them": want[part] + want["inputs"],
        }
        output, state_added, end = chunked_moments(n, d)
        elements = {
            "inputs": {"one of q, k and v is counted": n * d},
            "standard_peak": {"one N × N array is counted: scores and weights are both alive": n * n + n * d},
            "linear_bidir_peak": {
                "the state alone is counted: φ(q), φ(k) and the output are alive too": d * d,
                "state and Σφ(k) alone are counted: φ(q), φ(k) and the output are alive too": d * d + d,
                "z is counted, and z + eps is not": 4 * n * d + d * d + d + n,
                "Σφ(k) is not counted": 4 * n * d + d * d + 2 * n,
                "state and Σφ(k) are counted for d = 64, whatever d is": 4 * n * d + 64 * 64 + 64 + 2 * n,
            },
            "linear_causal_peak": {
                "one N·d² array is counted: the products and their cumulative sums are both alive": (
                    (d * d + 5 * d + 2) * n
                ),
                "the states alone are counted": n * d * d,
                "the cumulative φ(k) is not counted": (2 * d * d + 4 * d + 2) * n,
                "Σφ(k) is counted without its axis of N positions": (2 * d * d + 4 * d + 2) * n + d,
            },
            "linear_chunked_peak": {
                "only the end is looked at: for few positions a chunk is worse": end,
                "chunks of 64 are counted where there are fewer positions": max(chunked_moments(n, d, 64)),
                "the moment after the state has been added is left out": max(output, end),
                "Σφ(k) is not counted": max(output, state_added, end) - d,
                "the sum of both parts is not counted where they are added": max(
                    output - min(64, n) * d, state_added, end
                ),
            },
        }
        if part == "linear_bidir_peak":
            once = (d * d + d) * (batch * heads - 1) * dtype_bytes
            usual["one state is counted, and not one for each head of each sequence"] = want[part] - once
        usual["batch and heads are left out"] = want[part] // (batch * heads)
        for text, count in elements[part].items():
            usual[text] = count * batch * heads * dtype_bytes
        hint = "what is counted is not what is alive at the worst moment; 2 % are allowed"
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
    want, n = expected_bytes(shape, dtype.itemsize), shape[2]
    inputs = want["inputs"]
    of_float16 = {"every number is counted with 2 bytes, whatever dtype is": inputs * 2 / dtype.itemsize / 1e6}
    assert_mb(f"input_memory_mb for N = {n}", row["input_memory_mb"], inputs, of_float16)
    for name, peak in peaks.items():
        counted = {"the inputs are counted: the peak is over them": (peak + inputs) / 1e6}
        hint = "another form is measured, or inputs that require grad, for which autograd keeps more"
        assert_mb(f"{name}_memory_mb for N = {n}", row[f"{name}_memory_mb"], peak, counted, hint)
        theory, predicted = want[f"{name}_peak"], row[f"{name}_theoretical_mb"]
        if not abs(predicted - theory / 1e6) <= NEAR * theory / 1e6:
            added = {"the inputs are added: both sides are over the inputs": (theory + inputs) / 1e6}
            assert_mb(f"{name}_theoretical_mb for N = {n}", predicted, theory, added)
    quotient = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    told = f"savings_bidir is {row['savings_bidir']:.6g}, expected measured standard over measured bidirectional, "
    off, turned = abs(row["savings_bidir"] - quotient), abs(row["savings_bidir"] * quotient - 1) <= 1e-6
    hint = "the quotient is turned round" if turned else ""
    require_at_most("savings_bidir's error", off, 1e-6 * quotient, f"{told}{quotient:.6g}", unit="tolerance", hint=hint)


def assert_mb(name, got, want_bytes, mistakes=None, hint=""):
    """Fail unless a number of MB is that of `want_bytes`, to a thousandth; `mistakes` lead to numbers of MB."""
    assert_type(name, got, (int, float), "a number: MB")
    want = want_bytes / 1e6
    told = f"{name} is {got:.6g}, expected {want:.6g}"
    usual = {"bytes are given: MB are 10⁶ of them": want_bytes, **(mistakes or {})}
    for text, value in {**usual, "the unit is MiB: MB are 10⁶ bytes": want_bytes / 2**20}.items():
        found = math.isfinite(got) and abs(got - value) <= 1e-6 * abs(value)
        require(not found or abs(value - want) <= 1e-3 * want, f"{told}\nThat is exactly what comes out when {text}")
    require_at_most(f"{name}'s error", abs(got - want), 1e-3 * want, told, unit="tolerance", hint=hint)
