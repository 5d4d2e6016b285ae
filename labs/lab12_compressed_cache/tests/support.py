"""Lab 12's cases, references and known mistakes: three kinds of attention, quantized caches, and schemes to choose."""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from labkit.testing.attention.tensor_cases import rounded
from labkit.testing.attention.tensor_mistakes import lse_mistakes
from labkit.testing.compare import (
    NAN_HINT,
    ROUNDINGS,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_tuple,
    assert_type,
    compare_each,
    require,
    require_at_most,
)

# Attention


def normal(rng, *shape, dtype=torch.float32):
    """Standard-normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def attend(scores, values):
    """Attention from its scores: o, the log-sum-exp of each row, and its largest score m."""
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    return {"o": weights @ values, "lse": lse, "m": scores.amax(-1) if scores.shape[-1] else lse}


def rotate(x, positions):
    """Rotary positions: numbers i and i + d/2 are a pair, turned by position · 10,000^(−2i/d)."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Case:
    """The inputs of one kind of attention, first the tensors in the handout's order, and how results are compared.

    `computed(dtype, **mistake)` is its results in `dtype`; `mistakes` names usual mistakes and their arguments of
    `computed`.
    """

    results = ("o", "lse")
    names = ("q", "k", "v")
    options = ()

    @property
    def arguments(self):
        """The tensors, by the handout's names; `options` follow them in a call."""
        return dict(zip(self.names, vars(self).values(), strict=False))

    def check(self, got, hint="", nan_hint=""):
        """Compare o, and lse where it is asked for, and name a usual mistake where one fits."""
        parts = (got,) if self.results == ("o",) else assert_tuple("the result", got, self.results)
        given = dict(zip(self.results, parts, strict=True))
        precise = torch.float32 if self.Q.dtype.itemsize == 2 else self.Q.dtype
        want, plain = self.computed(torch.float64), self.computed(precise)
        peaks = want["m"].numpy()

        def check(name):
            cause = f"\nUsual cause: {nan_hint}" if nan_hint else ""
            require(not given[name].isposinf().any(), f"{name} is +inf somewhere{cause}")
            dtype, roundings = precise, ROUNDINGS
            usual = {text: functools.partial(self._one, name, mistake) for text, mistake in self.mistakes.items()}
            if name == "lse":
                usual |= lse_mistakes(want["lse"].numpy(), peaks)
            else:
                dtype, roundings = self.Q.dtype, ROUNDINGS + np.abs(peaks[np.isfinite(peaks)]).max(initial=0)
            assert_close(
                name,
                given[name],
                want[name],
                plain=rounded(plain[name], dtype),
                roundings=roundings,
                mistakes=usual,
                hint=hint,
                nan_hint=nan_hint or NAN_HINT,
            )
            assert_dtype(name, given[name], dtype)

        compare_each(self.results, check)

    def _one(self, name, mistake):
        return self.computed(torch.float64, **mistake)[name]


@dataclass
class LatentCase(Case):
    """One query for each head; the reference makes the keys and values that a submission must not make."""

    Q: torch.Tensor
    q_rope: torch.Tensor
    K: torch.Tensor
    k_rope: torch.Tensor
    W_UK: torch.Tensor
    W_UV: torch.Tensor
    results = ("o",)
    names = ("q_nope", "q_rope", "c_kv", "k_rope", "W_UK", "W_UV")

    @classmethod
    def drawn(cls, rng, *, n_queries=3, n_keys=20, d=8, d_r=4, d_c=12, d_v=6, batch=(), logit_scale=1.0,
              dtype=torch.float32):  # fmt: skip
        """A case with `n_queries` heads, each with one query, and `n_keys` latent vectors."""
        q_nope, q_rope = (logit_scale * normal(rng, *batch, n_queries, width, dtype=dtype) for width in (d, d_r))
        c_kv, k_rope = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d_c, d_r))
        W_UK, W_UV = (normal(rng, n_queries, width, d_c, dtype=dtype) * d_c**-0.5 for width in (d, d_v))
        return cls(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)

    def computed(self, dtype, *, width=None, rope=1, k_rope=None):
        """With the scale of another width, a factor of the scores' part with positions, or other keys for this part."""
        q, q_rope, c_kv, own_rope, W_UK, W_UV = (x.to(dtype) for x in self.arguments.values())
        keys, values = (torch.einsum("...nc,hwc->...hnw", c_kv, W) for W in (W_UK, W_UV))
        positions = q_rope @ (own_rope if k_rope is None else k_rope.to(dtype)).mT
        scores = torch.einsum("...hw,...hnw->...hn", q, keys) + rope * positions
        scores = scores * (width or q.shape[-1] + q_rope.shape[-1]) ** -0.5
        made = attend(scores.unsqueeze(-2), values)
        return {"o": made["o"].squeeze(-2), "m": made["m"].squeeze(-1)}

    @property
    def mistakes(self):
        """See `Case`."""
        d_n, d_r, d_c = self.Q.shape[-1], self.q_rope.shape[-1], self.K.shape[-1]
        wide = "the scale is taken from d_c + d_r, what the product is wide: the keys are d_n + d_r wide"
        found = {
            "the scale leaves d_r out: a key is d_n + d_r wide": {"width": d_n},
            wide: {"width": d_c + d_r},
            "the part of the scores with positions, q_rope · k_rope, is left out": {"rope": 0},
        }
        if d_r <= d_c:
            text = "q_rope meets the latent vectors instead of k_rope: positions are not in them"
            found[text] = {"k_rope": self.K[..., :d_r]}
        return found


@dataclass
class SinkCase(Case):
    """The last queries of a text, whose cache holds the first `num_sinks` tokens and a window."""

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    window: int
    num_sinks: int

    @classmethod
    def drawn(cls, rng, *, window=50, num_sinks=2, n_queries=5, n_keys=20, d=8, d_v=5, batch=(), logit_scale=1.0,
              dtype=torch.float32):  # fmt: skip
        """A case of these sizes; an odd d is made even."""
        d += d % 2
        q = logit_scale * normal(rng, *batch, n_queries, d, dtype=dtype)
        k, v = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d, d_v))
        return cls(q, k, v, window, num_sinks)

    @property
    def options(self):
        """After the tensors."""
        return self.window, self.num_sinks

    def computed(self, dtype, *, window=None, num_sinks=None, shift=0, places="cache"):
        """Each query from its own cache: with another window, other sinks, positions moved, or other places.

        `places` are those of the "cache", those of the "text", or "none": nothing is rotated.
        """
        window = self.window if window is None else window
        num_sinks = self.num_sinks if num_sinks is None else num_sinks
        q, k, v = (x.to(dtype) for x in (self.Q, self.K, self.V))
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        rows = []
        for i in range(n_queries):
            position = i + shift + n_keys - n_queries
            last = range(max(0, position - window + 1), min(position + 1, n_keys))
            tokens = torch.tensor(sorted({*range(min(num_sinks, position + 1)), *last}), dtype=torch.int64)
            query, keys = q[..., i : i + 1, :], k[..., tokens, :]
            if places == "cache":
                query, keys = rotate(query, torch.tensor([len(tokens) - 1])), rotate(keys, torch.arange(len(tokens)))
            elif places == "text":
                query, keys = rotate(query, torch.tensor([position])), rotate(keys, tokens)
            rows.append(attend(query @ keys.mT * q.shape[-1] ** -0.5, v[..., tokens, :]))
        return {name: torch.cat([row[name] for row in rows], -2 if name == "o" else -1) for name in rows[0]}

    @property
    def mistakes(self):
        """See `Case`."""
        found = {
            "positions are those of the text: after tokens have gone, they are places in the cache": {"places": "text"},
            "nothing is turned: positions are left out": {"places": "none"},
            "a query sees one key too many: its own is one of the window": {"window": self.window + 1},
            "the diagonal is counted from the top left: here the last query sees the last key": {
                "shift": self.Q.shape[-2] - self.K.shape[-2]
            },
            "the sinks are evicted: the first tokens stay for good": {"num_sinks": 0},
        }
        if self.window > self.num_sinks:
            text = "the sinks are counted in the window: they are kept besides it"
            found[text] = {"window": self.window - self.num_sinks}
        return found


@dataclass
class LogitCase(Case):
    """Attention with one number for each head, the last of the leading axes, in the denominator."""

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    sink: torch.Tensor
    names = ("q", "k", "v", "sink")

    @classmethod
    def drawn(cls, rng, *, n_queries=5, n_keys=20, d=8, d_v=5, batch=(), logit_scale=1.0, sink=0.0,
              dtype=torch.float32):  # fmt: skip
        """A case of these sizes, with two heads where `batch` names none."""
        batch = batch or (2,)
        q = logit_scale * normal(rng, *batch, n_queries, d, dtype=dtype)
        k, v = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d, d_v))
        return cls(q, k, v, sink + normal(rng, batch[-1], dtype=dtype))

    def computed(self, dtype, *, sink=None, value=0.0, in_lse=True):
        """With other sinks (H,), with a value of the sink, or with an lse that leaves it out."""
        q, k, v = (x.to(dtype) for x in (self.Q, self.K, self.V))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        sink = (self.sink if sink is None else sink).to(dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        value = torch.as_tensor(value, dtype=dtype).expand(*v.shape[:-2], 1, v.shape[-1])
        found = attend(torch.cat([scores, sink], -1), torch.cat([v, value], -2))
        return found if in_lse else found | {"lse": scores.logsumexp(-1)}

    @property
    def mistakes(self):
        """See `Case`."""
        sink, v = self.sink.double(), self.V.double()
        return {
            "lse leaves the sink out: it is the logarithm of the whole denominator": {"in_lse": False},
            "the sink is left out": {"sink": torch.full_like(sink, -torch.inf)},
            "the sink is scaled by 1/√d: only products of q and k are": {"sink": sink * self.Q.shape[-1] ** -0.5},
            "the sink itself is added to the denominator: its exponential is": {"sink": sink.log()},
            "one head's sink is used for all": {"sink": sink[:1].expand_as(sink)},
            "the sink is in the numerator too, with the mean of the values: it has no value": {
                "value": v.mean(-2, keepdim=True)
            },
            "the sink's power is added to every number of the numerator: it has no value": {"value": 1.0},
        }


# Few bits

PARTS = (("k", -2), ("v", -1))
"""What is stored, and the axis along which a group shares a scale."""
NAMES = ("k", "k_scale", "k_zero", "v", "v_scale", "v_zero", "bits", "group")
TIE = 0.501
"""How far a number may be from its code: half a step, and what rounding in float32 explains."""


def keys_and_values(rng, *, n_tokens=16, d=8, d_v=16, batch=(2,), dtype=torch.float32, offset=0.0):
    """Keys whose channels have different means, as real ones do, and values."""
    k = rng.standard_normal((*batch, n_tokens, d)) + 4 * rng.standard_normal(d) + offset
    v = rng.standard_normal((*batch, n_tokens, d_v)) + offset
    return torch.from_numpy(k).to(dtype), torch.from_numpy(v).to(dtype)


def random_sizes(rng):
    """A random group, and sizes of k and v that it divides, with none to two leading axes."""
    group, n, d, d_v, n_axes = rng.integers((2, 2, 1, 1, 0), (7, 6, 5, 5, 3)).tolist()
    return group, {"n_tokens": group * n, "d": 4 * d, "d_v": 4 * group * d_v, "batch": (2, 3)[:n_axes]}


def quantized(k, v, bits, group):
    """The cache that the handout describes, computed in float64."""
    parts = {}
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        low, high = extremes(x, group, axis)
        scale, zero = ((high - low) / (2**bits - 1)).half(), low.half()
        codes = steps(x, scale, zero, group, axis).round().clamp(0, 2**bits - 1).long()
        parts[name] = (by_byte(codes, bits) * 2 ** torch.arange(0, 8, bits)).sum(-1).to(torch.uint8)
        parts[f"{name}_scale"], parts[f"{name}_zero"] = scale, zero
    return {**parts, "bits": bits, "group": group}


def extremes(x, group, axis):
    """The smallest and the largest number of each group."""
    groups = x.double().unflatten(axis, (-1, group))
    return groups.amin(axis), groups.amax(axis)


def steps(x, scale, zero, group, axis):
    """Where each number is, in steps of its group; 0 where the scale is."""
    scale, zero = (each.double().repeat_interleave(group, axis) for each in (scale, zero))
    return torch.where(scale == 0, 0, (x.double() - zero) / torch.where(scale == 0, 1, scale))


def by_byte(codes, bits):
    """Codes (..., d) as (..., d · bits / 8, 8 / bits): those of each byte."""
    return codes.unflatten(-1, (-1, 8 // bits))


def unpacked(packed, bits):
    """Bytes (..., w) as codes (..., w · 8 / bits)."""
    return (packed.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits).flatten(-2, -1)


def restored(cache, name, axis, dtype=torch.float64):
    """Keys or values from a cache, in `dtype`."""
    scale, zero = (cache[name + of].to(dtype).repeat_interleave(cache["group"], axis) for of in ("_scale", "_zero"))
    return unpacked(cache[name], cache["bits"]).to(dtype) * scale + zero


def restoring_mistakes(cache, name, axis):
    """Usual mistakes of `dequantize_kv`, and the numbers that each leads to."""
    bits, group = cache["bits"], cache["group"]
    codes = unpacked(cache[name], bits)
    small_scale, small_zero = (cache[name + of].double() for of in ("_scale", "_zero"))
    scale, zero = (x.repeat_interleave(group, axis) for x in (small_scale, small_zero))
    tiled_scale, tiled_zero = (torch.cat([x] * group, axis) for x in (small_scale, small_zero))
    signed = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
    turned = by_byte(codes, bits).flip(-1).flatten(-2, -1)
    tiled = "scales are repeated as a whole (repeat): a group is neighbours, each repeated (repeat_interleave)"
    return {
        "the zero is subtracted: x is code · scale + zero": codes * scale - zero,
        "the zero is left out: x is code · scale + zero": codes * scale,
        "the zero is added before scaling: it is no number of steps": (codes + zero) * scale,
        tiled: codes * tiled_scale + tiled_zero,
        "codes are read as signed numbers": signed * scale + zero,
        "the order of the codes in a byte is another: the first is in the lowest bits": turned * scale + zero,
        "code · scale + zero is computed in float16: it is computed in float32": restored(
            cache, name, axis, torch.float16
        ),
    }


def assert_restored(got, cache):
    """Compare what `dequantize_kv` made of a cache, and name a usual mistake where one fits."""
    parts = assert_tuple("dequantize_kv's result", got, ("k", "v"))
    for (name, axis), value in zip(PARTS, parts, strict=True):
        want, plain = (restored(cache, name, axis, dtype) for dtype in (torch.float64, torch.float32))
        mistakes = functools.partial(restoring_mistakes, cache, name, axis)
        assert_close(name, value, want, plain=plain, mistakes=mistakes)
        assert_dtype(name, value, torch.float32)


def assert_quantized(got, k, v, bits, group, hint=""):
    """Compare what `quantize_kv` made of k and v with what the handout says, part by part."""
    assert_keys("what quantize_kv returns", got, NAMES)
    for name, number in (("bits", bits), ("group", group)):
        assert_equal(name, got[name], number)
    want = quantized(k, v, bits, group)
    dtypes = {"": torch.uint8, "_scale": torch.float16, "_zero": torch.float16}
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        for of, dtype in dtypes.items():
            assert_part_shape(name, of, tuple(got[name + of].shape), tuple(want[name + of].shape), bits)
            assert_dtype(name + of, got[name + of], dtype)
        low, high = extremes(x, group, axis)
        largest = torch.maximum(low.abs(), high.abs()) / (2 ** (bits - 1) - 1)
        usual = {
            "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": (high - low) / 2**bits,
            "the scale is taken from the largest magnitude alone: it is (maximum − minimum) / (2^bits − 1)": largest,
        }
        for of, mistakes in (("_scale", usual), ("_zero", {})):
            plain = want[name + of]  # rounded from float32 instead of float64, it may be the next float16
            assert_close(name + of, got[name + of], plain, plain=plain, roundings=1, mistakes=mistakes, hint=hint)
        assert_codes(name, got, x, axis, hint)


def assert_part_shape(name, of, found, want, bits):
    """Fail unless codes, scales (`of` is "_scale") or zeros have the shape that the handout says."""
    message = f"{name + of} has shape {found}, expected {want}"
    if of and name == "k":
        message += "\nUsual cause: K is quantized by token: K's numbers share a scale along the tokens"
    elif of:
        message += "\nUsual cause: V is quantized by channel: V's numbers share a scale along the channels"
    elif found[-1:] == (want[-1] * 8 // bits,):
        message += f"\nUsual cause: a code takes a byte: {8 // bits} of them share one"
    require(found == want, message)


def assert_codes(name, got, x, axis, hint):
    """Fail unless every code is the nearest one under the scale and the zero that are kept with it."""
    bits = got["bits"]
    found = steps(x, got[f"{name}_scale"], got[f"{name}_zero"], got["group"], axis)
    codes, nearest = unpacked(got[name], bits), found.clamp(0, 2**bits - 1)
    wrong = (codes - nearest).abs() > TIE
    if not wrong.any():
        return
    if ((by_byte(codes, bits).flip(-1).flatten(-2, -1) - nearest).abs() <= TIE).all():
        hint = "the order of the codes in a byte is another: the first of the neighbours lies in the lowest bits"
    elif (nearest - codes > -1e-3).all() and (nearest - codes < 1 + 1e-3).all():
        hint = "the fraction is cut off: the nearest whole number is taken (round)"
    at = tuple(wrong.nonzero()[0].tolist())
    message = (
        f"the code of {name}[{', '.join(map(str, at))}] = {float(x[at]):.6g} is {int(codes[at])}; with the zero and "
        f"the scale that are kept it lies at {float(found[at]):.4f} steps; {int(wrong.sum())} of {wrong.numel()} codes "
        "are not the nearest"
    )
    require(False, message + (f"\nUsual cause: {hint}" if hint else ""))


# Schemes to choose from

NEAR = 1e-3
"""How far, as a share, the error of a quantized scheme may be off: a code between two steps may be either of them."""
SMALLEST = 2e-9
"""How far any error may be off: it is rounded to nine decimals."""


def random_model(rng, schemes, *, heads=4, n_tokens=32, n_queries=3, d=8, layers=3, dtype_bytes=2):
    """A model whose sample looks a little like real ones: heads alike, few directions, a strong first token."""
    shared = rng.standard_normal((2, n_tokens, 3)) @ rng.standard_normal((2, 3, d))
    k, v = (part + 0.4 * rng.standard_normal((heads, n_tokens, d)) for part in shared)
    q = 2 * rng.standard_normal((heads, n_queries, d))
    k[:, 0] += 0.5 * q.mean(1)
    sample = {name: torch.from_numpy(x).float() for name, x in (("q", q), ("k", k), ("v", v))}
    return {"layers": layers, "dtype_bytes": dtype_bytes, "schemes": [dict(each) for each in schemes], **sample}


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
            cache = quantized(k, v, scheme["bits"], scheme["group"])
            return [restored(cache, name, axis) for name, axis in PARTS]


def low_rank(x, rank):
    """The nearest matrix of a rank: x projected on the leading directions of its rows."""
    _, directions = torch.linalg.eigh(x.mT @ x)
    leading = directions[:, -rank:]
    return x @ leading @ leading.mT


def output(model, k, v):
    """The sample's output with other keys and values."""
    return (model["q"].double() @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v


def output_error(model, k, v):
    """‖o' − o‖ / ‖o‖ on the model's sample."""
    exact = output(model, model["k"].double(), model["v"].double())
    return float((output(model, k, v) - exact).norm() / exact.norm())


def assert_scheme(got, model, nbytes, tokens):
    """Compare what `cache_under_budget` chose with the reference: which scheme, its bytes, its error."""
    when = f"for {nbytes:,} bytes and {tokens} tokens"
    require(isinstance(got, dict), f"cache_under_budget returns {type(got).__name__} {when}, expected a dict")
    own = {name: value for name, value in got.items() if name not in ("bytes", "error")}
    require(own in model["schemes"], f"the scheme chosen {when} is {own}, which is not one of the model's")
    assert_keys(f"the scheme chosen {when}", got, (*own, "bytes", "error"))
    assert_best(own, model, nbytes, tokens, when)
    name = f"the bytes of {own} for {tokens} tokens in {model['layers']} layers"
    assert_type(name, got["bytes"], int, "an int: bytes are counted")
    assert_equal(name, got["bytes"], scheme_bytes(own, model, tokens), mistakes=byte_mistakes(own, model, tokens))
    assert_error(own, model, got["error"])


def assert_best(chosen, model, nbytes, tokens, when):
    """Fail unless no scheme that fits has a smaller error than the one chosen."""
    sizes = [scheme_bytes(scheme, model, tokens) for scheme in model["schemes"]]
    errors = [output_error(model, *kept_by(scheme, model)) for scheme in model["schemes"]]
    own = model["schemes"].index(chosen)
    require(sizes[own] <= nbytes, f"the scheme chosen {when}, {chosen}, takes more bytes")
    least, best = min((error, i) for i, error in enumerate(errors) if sizes[i] <= nbytes)
    message = f"the scheme chosen {when} is {chosen}, whose error is {errors[own]:.4g}; "
    message += f"{model['schemes'][best]} fits too, with an error of {least:.4g}"
    if sizes[own] == min(sizes):
        message += (
            "\nUsual cause: the one with the fewest bytes is taken: of those that fit, the one with the least error"
        )
    require(errors[own] <= least * (1 + 2 * NEAR) + SMALLEST, message)


def assert_error(scheme, model, got):
    """Compare the error of the scheme that was chosen, and name a usual mistake where one fits."""
    name, want = f"the error of {scheme}", output_error(model, *kept_by(scheme, model))
    assert_type(name, got, (int, float), "a float")
    message = f"{name} is {got:.6g}, expected {want:.6g}"
    usual = [text for text, value in error_mistakes(scheme, model).items() if abs(value - got) <= NEAR * value]
    allowed = max(NEAR * want, SMALLEST) if scheme["kind"] == "quantized" else SMALLEST
    require_at_most(name, abs(got - want), allowed, message, kind="tolerance", hint="; or ".join(usual))
    require(got == round(got, 9), f"{message}: it is not rounded to nine decimals")


def byte_mistakes(scheme, model, tokens):
    """Usual mistakes with the bytes of a scheme, and the number each leads to."""
    size, kind = scheme_bytes(scheme, model, tokens), scheme["kind"]
    usual = {"one layer is counted: there are as many caches as layers": size // model["layers"]}
    if kind == "quantized":
        codes = model["layers"] * tokens * 2 * model["k"][:, 0].numel() * scheme["bits"] // 8
        usual["scales and zeros are left out: they are in the cache, 32 bits a group"] = codes
    if kind == "latent":
        usual["the latent vector is counted twice: keys and values are both made from one"] = 2 * size
    if kind == "window":
        alone, whole = scheme | {"num_sinks": 0}, scheme["window"] + scheme["num_sinks"]
        usual["the sinks are left out: they are kept besides the window"] = scheme_bytes(alone, model, tokens)
        text = "the whole window is counted although there are fewer tokens"
        usual[text] = scheme_bytes({"kind": "full"}, model, whole)
    return usual


def error_mistakes(scheme, model):
    """Usual mistakes with the error of a scheme, and the number each leads to."""
    k, v = model["k"].double(), model["v"].double()
    kept_k, kept_v = kept_by(scheme, model)
    off = (output(model, kept_k, kept_v) - output(model, k, v)).norm()
    usual = {"the difference is not divided by the length of o": float(off)}
    if kept_k.shape == k.shape:
        both, changed = torch.cat([k, v]), torch.cat([kept_k, kept_v])
        text = "K and V are compared instead of attention's output"
        usual[text] = float((changed - both).norm() / both.norm())
    if scheme["kind"] == "grouped":
        first = [x[:: scheme["group"]].repeat_interleave(scheme["group"], 0) for x in (k, v)]
        usual["a group keeps its first head instead of the mean of its heads"] = output_error(model, *first)
    if scheme["kind"] == "window":
        without = kept_by(scheme | {"num_sinks": 0}, model)
        usual["the sinks are left out of what is kept"] = output_error(model, *without)
    if scheme["kind"] == "latent":
        by_head = [torch.stack([low_rank(head, scheme["rank"]) for head in x]) for x in (k, v)]
        usual["every head has a latent vector of its own: all heads share one"] = output_error(model, *by_head)
    return usual
