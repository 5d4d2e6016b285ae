"""Lab 12's inputs and references: three kinds of attention, quantized caches, and schemes to choose from."""

from functools import cached_property, reduce
from typing import ClassVar

import numpy as np
import torch

from labkit.testing.attention.cases import Case, rounded
from labkit.testing.attention.reference import random_qkv
from labkit.testing.attention.table import attention_cases
from labkit.testing.compare import TOLERANCE
from labkit.testing.unchanged import copied
from labkit.testing.wording import sizes_of

# Attention


def normal(rng, *shape, dtype="float32"):
    """Standard-normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, dtype))


def drawn_qkv(rng, *, n=None, n_queries=5, n_keys=20, d=8, d_v=5, dtype="float32", **sizes):
    """q, k and v of these sizes, which are those of `random_qkv`, with `n` for N_q = N_k."""
    n_queries, n_keys = (n, n) if n else (n_queries, n_keys)
    arrays = random_qkv(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, dtype=np.float64, **sizes)
    return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in arrays]


def rows(*without):
    """The rows of `attention_cases`, except those whose names begin so."""
    return [row for row in attention_cases("full") if not row.id.startswith(without)]


def attend(scores, values):
    """Attention from its scores: o, the log-sum-exp of each row, and its largest score m."""
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    return {"o": weights @ values, "lse": lse, "m": scores.amax(-1) if scores.shape[-1] else lse}


def rotate(x, positions):
    """Rotary positions: numbers i and i + d/2 are a pair, turned by position · 10,000^(−2i/d)."""
    half = x.shape[-1] // 2
    angles = positions.double()[..., None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class GivenCase(Case):
    """The tensors and options of one kind of attention.

    `names` are the tensors in the handout's order, each with its attribute; `options` follow them in a call.
    `computed(dtype, **options)` is the reference in `dtype`.
    """

    names: ClassVar = {"q": "Q", "k": "K", "v": "V"}
    results = ("o", "lse")

    def __init__(self, *tensors, **options):
        vars(self).update(zip(self.names.values(), tensors, strict=True))
        self.options = options

    @property
    def arguments(self):
        """Copies of the tensors, by the handout's names."""
        return dict(zip(self.names, copied(*map(vars(self).get, self.names.values())), strict=True))

    def sizes(self):
        """As `Case.sizes`."""
        return sizes_of(self.arguments | self.options)

    def reference_of(self, name):
        """As `Case.reference_of`."""
        return self.computed

    def results_with(self, **changed):
        """The results in float64 with changed options."""
        return {name: x.numpy() for name, x in self.computed(torch.float64, **self.options | changed).items()}

    @cached_property
    def want(self):
        """As `Case.want`, with the largest score m of each row."""
        return self.results_with()

    @cached_property
    def baseline(self):
        """As `Case.baseline`."""
        found = self.computed(self.precise, **self.options)
        return {name: x.numpy() for name, x in (found | {"o": rounded(found["o"], self.Q.dtype)}).items()}

    @cached_property
    def tolerance(self):
        """As `Case.tolerance`."""
        return TOLERANCE.for_scores(self.want["m"])


class LatentCase(GivenCase):
    """One query for each head; the reference makes the keys and values that a submission must not make."""

    names: ClassVar = {
        "q_nope": "Q",
        "q_rope": "q_rope",
        "c_kv": "K",
        "k_rope": "k_rope",
        "W_UK": "W_UK",
        "W_UV": "W_UV",
    }
    results = ("o",)

    @classmethod
    def drawn(cls, rng, *, n=None, n_queries=3, n_keys=20, d=8, d_r=4, d_c=12, d_v=6, batch=(), logit_scale=1.0,
              dtype="float32"):  # fmt: skip
        """A case with `n_queries` heads, each with one query, and `n_keys` latent vectors; `n` of both."""
        n_queries, n_keys = (n, n) if n else (n_queries, n_keys)
        q_nope, q_rope = (logit_scale * normal(rng, *batch, n_queries, width, dtype=dtype) for width in (d, d_r))
        c_kv, k_rope = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d_c, d_r))
        W_UK, W_UV = (normal(rng, n_queries, width, d_c, dtype=dtype) * d_c**-0.5 for width in (d, d_v))
        return cls(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)

    def computed(self, dtype, *, width=None, rope=1, k_rope=None, n_tokens=None, value=1):
        """With the scale of another width, a factor of the scores' part with positions, or other keys for this part.

        Or only with the first `n_tokens`, or with another factor of all values.
        """
        q, q_rope, c_kv, own_rope, W_UK, W_UV = (x.to(dtype) for x in self.arguments.values())
        k_rope = (own_rope if k_rope is None else k_rope.to(dtype))[..., :n_tokens, :]
        keys, values = (torch.einsum("...nc,hwc->...hnw", c_kv[..., :n_tokens, :], W) for W in (W_UK, value * W_UV))
        positions = q_rope @ k_rope.mT
        scores = torch.einsum("...hw,...hnw->...hn", q, keys) + rope * positions
        scores = scores * (width or q.shape[-1] + q_rope.shape[-1]) ** -0.5
        made = attend(scores.unsqueeze(-2), values)
        return {"o": made["o"].squeeze(-2), "m": made["m"].squeeze(-1)}


class SinkCase(GivenCase):
    """The last queries of a text, whose cache holds the first `num_sinks` tokens and a window."""

    @classmethod
    def drawn(cls, rng, *, window=50, num_sinks=2, d=8, **sizes):
        """A case of these sizes; an odd d is made even."""
        return cls(*drawn_qkv(rng, d=d + d % 2, **sizes), window=window, num_sinks=num_sinks)

    def computed(self, dtype, *, window, num_sinks, first=None, places="cache", twice=False, ahead=False, copies=False):
        """With another position of the first query, or with other places to turn queries and keys to.

        `places` are those of the "cache", those of the "text", "none" (nothing is turned), "keys" (queries are not),
        "query in the text", "keys twice" (in the text and in the cache), or "full" (queries to a full cache's last
        place). With `twice` a sink in the window is there twice, with `copies` every sink. With `ahead` sinks are seen
        by the queries before them, too.
        """
        q, k, v = (x.to(dtype) for x in self.arguments.values())
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        token = torch.arange(n_keys)
        if twice:
            token = torch.cat([token[:num_sinks], token])
        k, v, is_sink = k[..., token, :], v[..., token, :], torch.arange(len(token)) < num_sinks
        position = torch.arange(n_queries)[:, None] + (n_keys - n_queries if first is None else first)
        seen = (token <= position) & ((token > position - window) | is_sink)
        in_text, own_place = position, seen.sum(-1, keepdim=True) - 1
        seen = seen | is_sink if ahead else seen
        if places in ("cache", "keys", "query in the text", "keys twice", "full"):
            token = seen.cumsum(-1) - 1 + (token if places == "keys twice" else 0)
            position = own_place * (places in ("cache", "keys twice"))
            position = in_text if places == "query in the text" else position
            position = torch.full_like(position, window + num_sinks - 1) if places == "full" else position
        elif places == "none":
            token, position = 0 * token, 0 * position
        scores = (rotate(q, position[:, 0]).unsqueeze(-2) * rotate(k.unsqueeze(-3), token)).sum(-1)
        scores = (scores * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
        if copies:
            scores, v = (torch.cat(pair, axis) for pair, axis in (
                ((scores[..., :num_sinks], scores), -1), ((v[..., :num_sinks, :], v), -2),
            ))  # fmt: skip
        return attend(scores, v)


class LogitCase(GivenCase):
    """Attention with one number for each head, the last of the leading axes, in the denominator."""

    names: ClassVar = GivenCase.names | {"sink": "sink"}

    @classmethod
    def drawn(cls, rng, *, sink=0.0, batch=(2,), dtype="float32", **sizes):
        """A case of these sizes, with two heads unless `batch` names others, and sinks around `sink`."""
        return cls(*drawn_qkv(rng, batch=batch, dtype=dtype, **sizes), sink + normal(rng, batch[-1], dtype=dtype))

    def computed(self, dtype, *, sink=None, value=0.0, in_lse=True):
        """With other sinks (H,), with a value of the sink, or with an lse that leaves it out."""
        q, k, v, own = (x.to(dtype) for x in self.arguments.values())
        scores = q @ k.mT * q.shape[-1] ** -0.5
        sink = (own if sink is None else sink.to(dtype))[:, None, None].expand(*scores.shape[:-1], 1)
        value = torch.as_tensor(value, dtype=dtype).expand(*v.shape[:-2], 1, v.shape[-1])
        found = attend(torch.cat([scores, sink], -1), torch.cat([v, value], -2))
        return found if in_lse else found | {"lse": scores.logsumexp(-1)}


# Few bits

PARTS = (("k", -2), ("v", -1))
"""What is stored, and the axis along which a group shares a scale."""


def keys_and_values(rng, *, n_tokens=16, d=8, d_v=16, batch=(2,), dtype="float32", offset=0.0):
    """Keys whose channels have different means, as real ones do, and values."""
    dtype = getattr(torch, dtype)
    k = rng.standard_normal((*batch, n_tokens, d)) + 4 * rng.standard_normal(d) + offset
    v = rng.standard_normal((*batch, n_tokens, d_v)) + offset
    return torch.from_numpy(k).to(dtype), torch.from_numpy(v).to(dtype)


def random_sizes(rng):
    """A random group, and sizes of k and v that it divides, with none to two leading axes."""
    group, n, d, d_v, n_axes = rng.integers((2, 2, 1, 1, 0), (7, 6, 5, 5, 3)).tolist()
    return group, {"n_tokens": group * n, "d": 4 * d, "d_v": 4 * group * d_v, "batch": (2, 3)[:n_axes]}


def quantized(keys_and_values, bits, group):
    """The cache that the handout describes of (k, v), computed in float64."""
    parts = {}
    for (name, axis), x in zip(PARTS, keys_and_values, strict=True):
        low, high = extremes(x, group, axis)
        scale, zero = ((high - low) / (2**bits - 1)).half(), low.half()
        packed = in_bytes(code_positions(x, scale, zero, bits, group, axis), bits)
        parts |= {name: packed, f"{name}_scale": scale, f"{name}_zero": zero}
    return {**parts, "bits": bits, "group": group}


def in_bytes(code_positions, bits):
    """The nearest codes, 8 / bits of them in a byte; what a code is too large for wraps, as uint8 does."""
    codes = code_positions.round().long().unflatten(-1, (-1, 8 // bits))
    return (codes * 2 ** torch.arange(0, 8, bits)).sum(-1).remainder(256).to(torch.uint8)


def joined_in_bytes(code_positions, bits):
    """The same where codes are joined by |, each of them a uint8 that is not clipped before it is shifted."""
    codes = code_positions.round().long().remainder(256).unflatten(-1, (-1, 8 // bits))
    shifted = (codes * 2 ** torch.arange(0, 8, bits)).remainder(256).to(torch.uint8).unbind(-1)
    return reduce(torch.bitwise_or, shifted)


def extremes(x, group, axis):
    """The smallest and the largest number of each group."""
    groups = x.double().unflatten(axis, (-1, group))
    return groups.amin(axis), groups.amax(axis)


def code_positions(x, scale, zero, bits, group, axis):
    """Where each number is, in steps of its group, from 0 to 2^bits − 1; 0 where the scale is."""
    return unclipped_positions(x, scale, zero, group, axis).clamp(0, 2**bits - 1)


def unclipped_positions(x, scale, zero, group, axis):
    """The same before it is clipped: numbers beyond a zero or a scale that float16 has rounded are outside."""
    scale, zero = (each.double().repeat_interleave(group, axis) for each in (scale, zero))
    return torch.where(scale == 0, 0, (x.double() - zero) / torch.where(scale == 0, 1, scale))


def unpacked(packed, bits):
    """Bytes (..., w) as codes (..., w · 8 / bits)."""
    return (packed.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits).flatten(-2, -1)


def shifted(packed, bits):
    """Bytes shifted down by each code's place, and what lies above it left there."""
    return (packed.long()[..., None] // 2 ** torch.arange(0, 8, bits)).flatten(-2, -1)


def reverse_codes_in_bytes(codes, bits):
    """Codes with those of each byte in the opposite order."""
    return codes.unflatten(-1, (-1, 8 // bits)).flip(-1).flatten(-2, -1)


def dequantize_reference(cache, name, axis, dtype=torch.float64):
    """Keys or values from a cache, in `dtype`."""
    scale, zero = (cache[name + of].to(dtype).repeat_interleave(cache["group"], axis) for of in ("_scale", "_zero"))
    return unpacked(cache[name], cache["bits"]).to(dtype) * scale + zero


# Schemes to choose from


def random_model(rng, schemes, *, heads=4, n_tokens=32, n_queries=3, d=8, layers=3, dtype_bytes=2):
    """A model with a random sample."""
    q, k, v = (normal(rng, heads, n, d) for n in (n_queries, n_tokens, n_tokens))
    schemes = [dict(scheme) for scheme in schemes]
    return {"layers": layers, "dtype_bytes": dtype_bytes, "schemes": schemes, "q": 2 * q, "k": k, "v": v}


def scheme_bytes(scheme, model, tokens):
    """The bytes that a scheme keeps of `tokens` tokens, in all layers."""
    heads, _, d = model["k"].shape
    size, numbers = model["dtype_bytes"], 2 * heads * d
    match scheme["kind"]:
        case "full":
            kept = tokens * numbers * size
        case "grouped":
            kept = tokens * numbers // scheme["group"] * size
        case "window":
            kept = min(tokens, scheme["window"] + scheme["num_sinks"]) * numbers * size
        case "latent":
            kept = tokens * scheme["rank"] * size
        case "quantized":
            groups = -(-tokens // scheme["group"]) * heads * d + tokens * heads * (d // scheme["group"])
            kept = tokens * numbers * scheme["bits"] // 8 + 4 * groups
    return model["layers"] * kept


def kept_by(scheme, model):
    """What attention uses instead of the sample's k and v (H, N, d), in float64."""
    k, v = model["k"].double(), model["v"].double()
    match scheme["kind"]:
        case "full":
            return k, v
        case "grouped":
            return [x.unflatten(0, (-1, scheme["group"])).mean(1).repeat_interleave(scheme["group"], 0) for x in (k, v)]
        case "window":
            tokens = torch.arange(k.shape[1])
            stays = (tokens < scheme["num_sinks"]) | (tokens >= k.shape[1] - scheme["window"])
            return k[:, stays], v[:, stays]
        case "latent":
            rows = low_rank(torch.cat([k, v]).transpose(0, 1).flatten(1), scheme["rank"])
            return rows.unflatten(1, (2 * len(k), -1)).transpose(0, 1).split(len(k))
        case "quantized":
            cache = quantized((k, v), scheme["bits"], scheme["group"])
            return [dequantize_reference(cache, name, axis) for name, axis in PARTS]


def low_rank(x, rank):
    """The nearest matrix of a rank: x projected on the leading directions of its rows."""
    _, directions = torch.linalg.eigh(x.mT @ x)
    leading = directions[..., -rank:]
    return x @ leading @ leading.mT


def output(model, k, v):
    """The sample's output with these keys and values."""
    return (model["q"].double() @ k.double().mT * k.shape[-1] ** -0.5).softmax(-1) @ v.double()


def error_of(scheme, model):
    """‖o' − o‖ / ‖o‖ on the model's sample."""
    return output_error(model, *kept_by(scheme, model))


def output_error(model, k, v):
    """The same, where attention uses these keys and values."""
    return distance(output(model, k, v), output(model, model["k"], model["v"]))


def distance(x, exact):
    """‖x − exact‖ / ‖exact‖."""
    return float((x - exact).norm() / exact.norm())
