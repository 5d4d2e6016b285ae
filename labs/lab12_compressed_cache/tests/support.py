"""Lab 12's cases, references and known mistakes: three kinds of attention, quantized caches, and schemes to choose."""

import functools
from typing import ClassVar

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import lse_mistakes
from labkit.testing.attention.cases import rounded
from labkit.testing.attention.reference import random_qkv
from labkit.testing.attention.table import attention_cases
from labkit.testing.compare import (
    NAN_HINT,
    TOLERANCE,
    Tolerance,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_tuple,
    assert_type,
    compare_each,
    require,
)
from labkit.testing.unchanged import copied

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


class Case:
    """The inputs of one kind of attention, and how results are compared.

    `names` are the tensors in the handout's order, each with its attribute; `options` follow them in a call.
    `computed(dtype, **options)` is the reference in `dtype`; `mistakes` names usual mistakes and their changed options.
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

    def check(self, got, hint="", nan_hint="", tolerance=TOLERANCE):
        """Compare o, and lse where it is asked for, and name a usual mistake where one fits."""
        parts = (got,) if self.results == ("o",) else assert_tuple("the result", got, self.results)
        given = dict(zip(self.results, parts, strict=True))
        precise = torch.float32 if self.Q.dtype.itemsize == 2 else self.Q.dtype
        dtypes = {"o": self.Q.dtype, "lse": precise}
        want, baseline = (self.computed(dtype, **self.options) for dtype in (torch.float64, precise))
        peaks = want["m"].numpy()

        def mistaken(name, changed):
            return self.computed(torch.float64, **self.options | changed)[name]

        def check(name):
            assert_type(name, given[name], torch.Tensor, "a tensor")
            if name == "lse":
                assert_dtype(name, given[name], precise, because="with half-precision inputs too")
            cause = f"\nUsual cause: {nan_hint}" if nan_hint else ""
            require(not given[name].isposinf().any(), f"{name} is +inf somewhere{cause}")
            usual = {text: functools.partial(mistaken, name, changed) for text, changed in self.mistakes.items()}
            if name == "lse":
                usual |= lse_mistakes(want["lse"].numpy(), peaks)
            assert_close(
                name,
                given[name],
                want[name],
                baseline=rounded(baseline[name], dtypes[name]),
                tolerance=tolerance.for_scores(peaks),
                reference=self.computed,
                mistakes=usual,
                hint=hint,
                nan_hint=nan_hint or NAN_HINT,
            )
            assert_dtype(name, given[name], dtypes[name])

        compare_each(self.results, check)


class LatentCase(Case):
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

    @property
    def mistakes(self):
        """See `Case`."""
        d_n, d_r, d_c = self.Q.shape[-1], self.q_rope.shape[-1], self.K.shape[-1]
        wide = "the scale is taken from d_c + d_r, what the product is wide: the keys are d_n + d_r wide"
        latent = "q_rope meets the latent vectors instead of k_rope: positions are not in them"
        n = self.K.shape[-2]
        short = {
            f"the last {n % block} of {n} tokens are left out: the last block is smaller": {"n_tokens": n - n % block}
            for block in (16, 32, 64, 100, 128, 256, 512)
            if block < n and n % block
        }
        one = {"W_UV is left out, which belongs to the sum": {"value": 1 / self.W_UV}} if self.W_UV.numel() == 1 else {}
        return {
            "the scores are not divided by √(d_n + d_r)": {"width": 1},
            "the scale leaves d_r out: a key is d_n + d_r wide": {"width": d_n},
            wide: {"width": d_c + d_r},
            "the part of the scores with positions, q_rope · k_rope, is left out": {"rope": 0},
            latent: {"k_rope": self.K[..., :d_r]},
            **short,
            **one,
        }


class SinkCase(Case):
    """The last queries of a text, whose cache holds the first `num_sinks` tokens and a window."""

    @classmethod
    def drawn(cls, rng, *, window=50, num_sinks=2, d=8, **sizes):
        """A case of these sizes; an odd d is made even."""
        return cls(*drawn_qkv(rng, d=d + d % 2, **sizes), window=window, num_sinks=num_sinks)

    def computed(self, dtype, *, window, num_sinks, first=None, places="cache", twice=False):
        """With another position of the first query, or with other places to turn queries and keys to.

        `places` are those of the "cache", those of the "text", "none" (nothing is turned), or "keys" (queries are not).
        With `twice` a sink in the window is there twice.
        """
        q, k, v = (x.to(dtype) for x in self.arguments.values())
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        token = torch.arange(n_keys)
        if twice:
            token = torch.cat([token[:num_sinks], token])
        k, v, is_sink = k[..., token, :], v[..., token, :], torch.arange(len(token)) < num_sinks
        position = torch.arange(n_queries)[:, None] + (n_keys - n_queries if first is None else first)
        seen = (token <= position) & ((token > position - window) | is_sink)
        if places in ("cache", "keys"):
            token, position = seen.cumsum(-1) - 1, (seen.sum(-1, keepdim=True) - 1) * (places == "cache")
        elif places == "none":
            token, position = 0 * token, 0 * position
        scores = (rotate(q, position[:, 0]).unsqueeze(-2) * rotate(k.unsqueeze(-3), token)).sum(-1)
        return attend((scores * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf), v)

    @property
    def mistakes(self):
        """See `Case`."""
        window, num_sinks = self.options.values()
        text = "positions are those of the text: after tokens have gone, they are places in the cache"
        return {
            text: {"places": "text"},
            "nothing is turned: positions are left out": {"places": "none"},
            "only keys are turned: the query is turned too, to its own place": {"places": "keys"},
            "a sink that is in the window too is counted twice": {"twice": True},
            "a query sees one key too many: its own is one of the window": {"window": window + 1},
            "the diagonal is counted from the top left: here the last query sees the last key": {"first": 0},
            "the sinks are evicted: the first tokens stay for good": {"num_sinks": 0},
            "the sinks are counted in the window: they are kept besides it": {"window": window - num_sinks},
        }


class LogitCase(Case):
    """Attention with one number for each head, the last of the leading axes, in the denominator."""

    names = Case.names | {"sink": "sink"}

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

    @property
    def mistakes(self):
        """See `Case`."""
        sink, mean = self.sink.double(), self.V.double().mean(-2, keepdim=True)
        return {
            "lse leaves the sink out: it is the logarithm of the whole denominator": {"in_lse": False},
            "the sink is left out": {"sink": torch.full_like(sink, -torch.inf)},
            "the sink is scaled by 1/√d: only products of q and k are": {"sink": sink * self.Q.shape[-1] ** -0.5},
            "the sink itself is added to the denominator: its exponential is": {"sink": sink.log()},
            "one head's sink is used for all": {"sink": sink[:1].expand_as(sink)},
            "the sink is in the numerator too, with the mean of the values: it has no value": {"value": mean},
            "the sink's power is added to every number of the numerator: it has no value": {"value": 1.0},
        }


# Few bits

PARTS = (("k", -2), ("v", -1))
"""What is stored, and the axis along which a group shares a scale."""
IN_A_BYTE = "the order of the codes in a byte is another: the first is in the lowest bits"
TIE = 0.501
"""How far a number may be from its code: half a step, and what rounding in float32 explains."""


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
        packed = in_bytes(steps(x, scale, zero, bits, group, axis), bits)
        parts |= {name: packed, f"{name}_scale": scale, f"{name}_zero": zero}
    return {**parts, "bits": bits, "group": group}


def in_bytes(steps, bits):
    """The nearest codes, 8 / bits of them in a byte; what a code is too large for wraps, as uint8 does."""
    codes = steps.round().long().unflatten(-1, (-1, 8 // bits))
    return (codes * 2 ** torch.arange(0, 8, bits)).sum(-1).remainder(256).to(torch.uint8)


def extremes(x, group, axis):
    """The smallest and the largest number of each group."""
    groups = x.double().unflatten(axis, (-1, group))
    return groups.amin(axis), groups.amax(axis)


def steps(x, scale, zero, bits, group, axis):
    """Where each number is, in steps of its group, from 0 to 2^bits − 1; 0 where the scale is."""
    return unclipped_steps(x, scale, zero, group, axis).clamp(0, 2**bits - 1)


def unclipped_steps(x, scale, zero, group, axis):
    """The same before it is clipped: numbers beyond a zero or a scale that float16 has rounded are outside."""
    scale, zero = (each.double().repeat_interleave(group, axis) for each in (scale, zero))
    return torch.where(scale == 0, 0, (x.double() - zero) / torch.where(scale == 0, 1, scale))


def unpacked(packed, bits):
    """Bytes (..., w) as codes (..., w · 8 / bits)."""
    return (packed.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits).flatten(-2, -1)


def turned(codes, bits):
    """Codes with those of each byte in the opposite order."""
    return codes.unflatten(-1, (-1, 8 // bits)).flip(-1).flatten(-2, -1)


def restored(cache, name, axis, dtype=torch.float64):
    """Keys or values from a cache, in `dtype`."""
    scale, zero = (cache[name + of].to(dtype).repeat_interleave(cache["group"], axis) for of in ("_scale", "_zero"))
    return unpacked(cache[name], cache["bits"]).to(dtype) * scale + zero


def restoring_mistakes(cache, name, axis):
    """Usual mistakes of `dequantize_kv`, and the numbers that each leads to."""
    bits, group = cache["bits"], cache["group"]
    codes, sizes = unpacked(cache[name], bits), (cache[f"{name}_scale"].double(), cache[f"{name}_zero"].double())
    scale, zero = (x.repeat_interleave(group, axis) for x in sizes)
    tiled_scale, tiled_zero = (torch.cat([x] * group, axis) for x in sizes)
    tiled = "scales are repeated as a whole (repeat): a group is neighbours, each repeated (repeat_interleave)"
    in_half = "code · scale + zero is computed in float16: it is computed in float32"
    return {
        "the zero is subtracted: x is code · scale + zero": codes * scale - zero,
        "the zero is left out: x is code · scale + zero": codes * scale,
        "the zero is added before scaling: it is no number of steps": (codes + zero) * scale,
        tiled: codes * tiled_scale + tiled_zero,
        "codes are read as signed numbers": (codes - 2**bits * (codes >= 2 ** (bits - 1))) * scale + zero,
        IN_A_BYTE: turned(codes, bits) * scale + zero,
        in_half: restored(cache, name, axis, torch.float16),
    }


def assert_restored(got, cache):
    """Compare what `dequantize_kv` made of a cache, and name a usual mistake where one fits."""
    parts = assert_tuple("dequantize_kv's result", got, ("k", "v"))
    for (name, axis), value in zip(PARTS, parts, strict=True):
        want, baseline = (restored(cache, name, axis, dtype) for dtype in (torch.float64, torch.float32))
        mistakes = functools.partial(restoring_mistakes, cache, name, axis)
        assert_close(name, value, want, baseline=baseline, mistakes=mistakes)
        assert_dtype(name, value, torch.float32)


def shape_causes(k, v, bits, group):
    """Usual wrong shapes of a part, and what leads to each."""
    (*lead, n, d), d_v = k.shape, v.shape[-1]
    whole, along = "a code takes a byte: 8 / bits of them share one", "codes of neighbouring tokens share a byte"
    found = {
        ("k", (n, d)): whole,
        ("v", (n, d_v)): whole,
        ("k", (n * bits // 8, d)): f"{along}: those of neighbouring channels do",
        ("v", (n * bits // 8, d_v)): f"{along}: those of neighbouring channels do",
        ("k_scale", (n, d // group)): "K is quantized by token: K's numbers share a scale along the tokens",
        ("v_scale", (n // group, d_v)): "V is quantized by channel: V's numbers share a scale along the channels",
    }
    return {(name, (*lead, *shape)): cause for (name, shape), cause in found.items()}


def assert_quantized(got, k, v, bits, group, hint=""):
    """Compare what `quantize_kv` made of k and v with what the handout says, part by part."""
    want = quantized((k, v), bits, group)
    assert_keys("what quantize_kv returns", got, want)
    for name, part in want.items():
        if isinstance(part, int):
            assert_equal(name, got[name], part)
            continue
        assert_type(name, got[name], torch.Tensor, "a tensor")
        found, expected = tuple(got[name].shape), tuple(part.shape)
        cause = shape_causes(k, v, bits, group).get((name, found), "")
        cause = cause and f"\nUsual cause: {cause}"
        require(found == expected, f"{name} has shape {found}, expected {expected}{cause}")
        assert_dtype(name, got[name], part.dtype, because="whatever the dtype of k and v")
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        low, high = extremes(x, group, axis)
        magnitude = torch.maximum(low.abs(), high.abs())
        largest = magnitude / (2 ** (bits - 1) - 1)
        usual = {
            "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": (high - low) / 2**bits,
            "the scale is taken from the largest magnitude alone: it is (maximum − minimum) / (2^bits − 1)": largest,
            "the range is taken from −max |x| to max |x|: it is from the minimum to the maximum": 2
            * magnitude
            / (2**bits - 1),
        }
        scale, zero = got[f"{name}_scale"], got[f"{name}_zero"]
        for part, found, mistakes in ((f"{name}_scale", scale, usual), (f"{name}_zero", zero, {})):
            # rounded from float32 instead of float64, it may be the next float16
            assert_close(
                part,
                found,
                want[part],
                baseline=want[part],
                tolerance=Tolerance(roundings=1),
                mistakes=mistakes,
                hint=hint,
            )
            assert_each_rounded(part, found, want[part])
        free = unclipped_steps(x, scale, zero, group, axis)
        exact = free.clamp(0, 2**bits - 1)
        unrounded = "codes are computed with other sizes than those that are kept: as they are kept, rounded to float16"
        usual = {
            unrounded: steps(x, (high - low) / (2**bits - 1), low, bits, group, axis).round(),
            IN_A_BYTE: turned(exact.round(), bits),
            "the fraction is cut off: the nearest whole number is taken (round)": exact.floor(),
            "codes are not clipped at 2^bits − 1": unpacked(in_bytes(free.clamp(min=0), bits), bits),
            "codes are not clipped at 0": unpacked(in_bytes(free.clamp(max=2**bits - 1), bits), bits),
            "codes are not clipped to 0 … 2^bits − 1, and only their last bits stay": free.round().remainder(2**bits),
            "codes are not clipped to 0 … 2^bits − 1": unpacked(in_bytes(free, bits), bits),
        }
        codes = unpacked(got[name], bits)
        # each is the nearest to where its number is, under the scale and the zero that are kept with it
        assert_close(
            f"a code of {name}",
            codes,
            exact,
            baseline=exact,
            tolerance=Tolerance(roundings=0, atol=TIE),
            mistakes=usual,
            hint=hint,
        )


def assert_each_rounded(name, got, want):
    """Compare each number on its own: `want`, or a float16 next to it."""
    off = (got.double() - want.double()).abs() > want.double().abs() * 2**-10 + 2**-24
    if off.any():
        at = tuple(off.nonzero()[0].tolist())
        require(False, f"{name}{list(at)} is {float(got[at]):.6g}, expected {float(want[at]):.6g}")


# Schemes to choose from

NEAR = 5e-3
"""How far, as a share, the error of a quantized scheme may be off: a code between two steps may be either of them."""
SMALLEST = 2e-9
"""How far any error may be off: it is rounded to nine decimals."""


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
            return [restored(cache, name, axis) for name, axis in PARTS]


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


def assert_scheme(got, model, nbytes, tokens):
    """Compare what `cache_under_budget` chose with the reference: its bytes, its error, and whether it is the best."""
    chosen = f"the scheme chosen for {nbytes:,} bytes and {tokens} tokens"
    require(isinstance(got, dict), f"{chosen} is {type(got).__name__}, expected a dict")
    own = {name: value for name, value in got.items() if name not in ("bytes", "error")}
    require(own in model["schemes"], f"{chosen} is {own}, which is not one of the model's")
    assert_keys(chosen, got, (*own, "bytes", "error"))
    name = f"the bytes of {own} for {tokens} tokens in {model['layers']} layers"
    assert_type(name, got["bytes"], int, "an int: bytes are counted")
    assert_equal(name, got["bytes"], scheme_bytes(own, model, tokens), mistakes=byte_mistakes(own, model, tokens))
    name, error = f"the error of {own}", error_of(own, model)
    assert_type(name, got["error"], (int, float), "a float")
    allowed = max(NEAR * error, SMALLEST) if own["kind"] == "quantized" else SMALLEST
    mistakes = functools.partial(error_mistakes, own, model)
    assert_close(
        name, got["error"], error, baseline=error, tolerance=Tolerance(roundings=0, atol=allowed), mistakes=mistakes
    )
    require(got["bytes"] <= nbytes, f"{chosen}, {own}, takes {got['bytes']:,} bytes")
    fitting = [scheme for scheme in model["schemes"] if scheme_bytes(scheme, model, tokens) <= nbytes]
    least, best = min((error_of(scheme, model), i) for i, scheme in enumerate(fitting))
    message = f"{chosen} is {own}, whose error is {error:.4g}; {fitting[best]} fits too, with an error of {least:.4g}"
    hint = "Of those that fit, the one with the least error is taken, not the one with the fewest bytes"
    require(error <= least * (1 + 2 * NEAR) + SMALLEST, f"{message}\n{hint}")


def byte_mistakes(scheme, model, tokens):
    """Usual mistakes with the bytes of a scheme, and the number each leads to."""
    size = scheme_bytes(scheme, model, tokens)
    usual = {
        "one layer is counted: there are as many caches as layers": size // model["layers"],
        "the sample's tokens are counted: the cache holds `tokens`": scheme_bytes(scheme, model, model["k"].shape[1]),
    }
    match scheme["kind"]:
        case "quantized":
            codes = scheme_bytes({"kind": "full"}, model | {"dtype_bytes": scheme["bits"] / 8}, tokens)
            usual["scales and zeros are left out: they are in the cache, 32 bits a group"] = codes
            if tokens % scheme["group"]:
                one = 4 * model["layers"] * model["k"].shape[0] * model["k"].shape[2]
                usual["the groups of K are rounded down: the last one is kept too, ⌈tokens / group⌉"] = size - one
        case "latent":
            usual["the latent vector is counted twice: keys and values are both made from one"] = 2 * size
        case "window":
            without, whole = scheme | {"num_sinks": 0}, scheme["window"] + scheme["num_sinks"]
            usual["the sinks are left out: they are kept besides the window"] = scheme_bytes(without, model, tokens)
            usual["the whole window is counted although there are fewer tokens"] = scheme_bytes(scheme, model, whole)
    return usual


def error_mistakes(scheme, model):
    """Usual mistakes with the error of a scheme, and the number each leads to."""
    k, v, kept = model["k"].double(), model["v"].double(), kept_by(scheme, model)
    length = float(output(model, k, v).norm())
    usual = {"the difference is not divided by the length of o": error_of(scheme, model) * length}
    match scheme["kind"]:
        case "grouped":
            first = [x[:: scheme["group"]].repeat_interleave(scheme["group"], 0) for x in (k, v)]
            usual["a group keeps its first head instead of the mean of its heads"] = output_error(model, *first)
        case "window":
            usual["the sinks are left out of what is kept"] = error_of(scheme | {"num_sinks": 0}, model)
            first = max(k.shape[1] - scheme["window"], 0)
            twice = [torch.cat([x[:, : scheme["num_sinks"]], x[:, first:]], 1) for x in (k, v)]
            usual["tokens that are sinks and in the window too are kept twice"] = output_error(model, *twice)
        case "latent":
            by_head = [low_rank(x, scheme["rank"]) for x in (k, v)]
            usual["every head has a latent vector of its own: all heads share one"] = output_error(model, *by_head)
            tokens = [low_rank(x.transpose(0, 1).flatten(1), scheme["rank"]) for x in (k, v)]
            apart = [x.unflatten(1, (len(k), -1)).transpose(0, 1) for x in tokens]
            usual["K and V have latent vectors of their own: they share one"] = output_error(model, *apart)
    if scheme["kind"] != "window":
        compared = distance(torch.cat([*kept]), torch.cat([k, v]))
        usual["K and V are compared instead of attention's output"] = compared
    return usual
