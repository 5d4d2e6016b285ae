"""Lab 12's cases, references and known mistakes: three kinds of attention, quantized caches, and schemes to choose."""

from functools import cached_property, partial

import numpy as np
import torch

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


def weighted(scores, values):
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
    """The arguments of one kind of attention, and how its results are compared.

    `made(dtype, **mistake)` computes them in `dtype`, and `mistakes` names what usual mistakes are to `made`.
    """

    results = ("o", "lse")

    @property
    def precise(self):
        """The dtype of sums and of lse."""
        return torch.float32 if self.q.dtype.itemsize == 2 else self.q.dtype

    @cached_property
    def want(self):
        """The results in float64."""
        return self.made(torch.float64)

    @property
    def mistakes(self):
        """What a usual mistake is called → the arguments of `made` that lead to its results."""
        return {}

    def check(self, got, hint="", nan_hint=""):
        """Compare o, and lse where it is asked for, and name a usual mistake where one fits."""
        parts = (got,) if len(self.results) == 1 else assert_tuple("the result", got, self.results)
        given, plain = dict(zip(self.results, parts, strict=True)), self.made(self.precise)
        peaks = self.want["m"].numpy()
        largest_score = np.abs(peaks[np.isfinite(peaks)]).max(initial=0)

        def check(name):
            assert_type(name, given[name], torch.Tensor, "a tensor")
            cause = f"\nUsual cause: {nan_hint}" if nan_hint else ""
            require(not given[name].isposinf().any(), f"{name} is +inf somewhere{cause}")
            dtype = self.q.dtype if name == "o" else self.precise
            rounded = plain[name].to(dtype).float() if dtype.itemsize == 2 else plain[name]
            known = {text: partial(self._result, name, mistake) for text, mistake in self.mistakes.items()}
            if name == "lse":
                known |= lse_mistakes(self.want["lse"].numpy(), peaks)
            with np.errstate(all="ignore"):
                assert_close(
                    name,
                    given[name].detach().double(),
                    self.want[name],
                    plain=rounded,
                    roundings=ROUNDINGS + (largest_score if name == "o" else 0),
                    mistakes=known,
                    hint=hint,
                    nan_hint=nan_hint or NAN_HINT,
                )
            assert_dtype(name, given[name], dtype)

        compare_each(self.results, check)

    def _result(self, name, mistake):
        return self.made(torch.float64, **mistake)[name]


class LatentCase(Case):
    """One query a head over latent vectors; the reference makes the keys and values that a submission must not make."""

    results = ("o",)

    def __init__(self, rng, *, heads=3, n_keys=20, d_n=8, d_r=4, d_c=12, d_v=6, batch=(), logit_scale=1.0,
                 dtype=torch.float32):  # fmt: skip
        self.q = logit_scale * normal(rng, *batch, heads, d_n, dtype=dtype)
        self.q_rope = logit_scale * normal(rng, *batch, heads, d_r, dtype=dtype)
        self.c_kv, self.k_rope = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d_c, d_r))
        self.W_UK, self.W_UV = (normal(rng, heads, width, d_c, dtype=dtype) * d_c**-0.5 for width in (d_n, d_v))

    @classmethod
    def drawn(cls, rng):
        """A case of random sizes."""
        sizes = rng.integers((1, 2, 2, 2, 2, 2), (6, 90, 20, 12, 30, 20)).tolist()
        return cls(rng, **dict(zip(("heads", "n_keys", "d_n", "d_r", "d_c", "d_v"), sizes, strict=True)))

    @property
    def arguments(self):
        """By the handout's names."""
        return {
            "q_nope": self.q,
            **{name: getattr(self, name) for name in ("q_rope", "c_kv", "k_rope", "W_UK", "W_UV")},
        }

    def made(self, dtype, *, scale=None, rope=1, k_rope=None):
        """With another scale, a factor of the scores' part with positions, or other keys for this part."""
        q, q_rope, c_kv, own_rope, W_UK, W_UV = (x.to(dtype) for x in self.arguments.values())
        keys, values = (torch.einsum("...nc,hwc->...hnw", c_kv, W) for W in (W_UK, W_UV))
        turned = q_rope @ (own_rope if k_rope is None else k_rope.to(dtype)).mT
        scores = torch.einsum("...hw,...hnw->...hn", q, keys) + rope * turned
        scale = (q.shape[-1] + q_rope.shape[-1]) ** -0.5 if scale is None else scale
        found = weighted((scale * scores).unsqueeze(-2), values)
        return {name: x.squeeze(-2 if name == "o" else -1) for name, x in found.items()}

    @property
    def mistakes(self):
        """See `Case`."""
        d_n, d_r, d_c = self.q.shape[-1], self.q_rope.shape[-1], self.c_kv.shape[-1]
        found = {
            "the scale leaves d_r out: a key is d_n + d_r wide": {"scale": d_n**-0.5},
            "the scale is taken from d_c + d_r, what the product is wide: the keys are d_n + d_r wide": {
                "scale": (d_c + d_r) ** -0.5
            },
            "the part of the scores with positions, q_rope · k_rope, is left out": {"rope": 0},
        }
        if d_r <= d_c:
            text = "q_rope meets the latent vectors instead of k_rope: positions are not in them"
            found[text] = {"k_rope": self.c_kv[..., :d_r]}
        return found


class SinkCase(Case):
    """The last queries of a text, whose cache holds the first `num_sinks` tokens and a window."""

    def __init__(self, rng, *, window=4, num_sinks=2, n_queries=5, n_keys=20, d=8, d_v=5, batch=(), logit_scale=1.0,
                 dtype=torch.float32):  # fmt: skip
        self.q = logit_scale * normal(rng, *batch, n_queries, d, dtype=dtype)
        self.k, self.v = (normal(rng, *batch, n_keys, width, dtype=dtype) for width in (d, d_v))
        self.window, self.num_sinks = window, num_sinks

    @classmethod
    def drawn(cls, rng):
        """A case of random sizes."""
        window, sinks, n_queries, more, half, d_v = rng.integers((2, 1, 1, 2, 1, 2), (12, 6, 12, 30, 9, 9)).tolist()
        sizes = {"n_queries": n_queries, "n_keys": n_queries + more, "d": 2 * half, "d_v": d_v}
        return cls(rng, window=window, num_sinks=sinks, **sizes)

    @property
    def arguments(self):
        """By the handout's names."""
        return {name: getattr(self, name) for name in ("q", "k", "v", "window", "num_sinks")}

    def made(self, dtype, *, window=None, num_sinks=None, shift=0, places="cache"):
        """Each query from its own cache: with another window, other sinks, positions moved, or other places.

        `places` are those of the "cache", those of the "text", or "none": nothing is rotated.
        """
        window = self.window if window is None else window
        num_sinks = self.num_sinks if num_sinks is None else num_sinks
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        rows = []
        for i in range(q.shape[-2]):
            position = i + shift + k.shape[-2] - q.shape[-2]
            last = range(max(0, position - window + 1), min(position + 1, k.shape[-2]))
            tokens = torch.tensor(sorted({*range(min(num_sinks, position + 1)), *last}), dtype=torch.int64)
            row, keys = q[..., i : i + 1, :], k[..., tokens, :]
            if places != "none":
                at = tokens if places == "text" else torch.arange(len(tokens))
                own = torch.tensor([position]) if places == "text" else torch.tensor([len(tokens) - 1])
                row, keys = rotate(row, own), rotate(keys, at)
            rows.append(weighted(row @ keys.mT * q.shape[-1] ** -0.5, v[..., tokens, :]))
        return {name: torch.cat([row[name] for row in rows], -2 if name == "o" else -1) for name in rows[0]}

    @property
    def mistakes(self):
        """See `Case`."""
        found = {
            "positions are those of the text: after tokens have gone, they are places in the cache": {"places": "text"},
            "nothing is turned: positions are left out": {"places": "none"},
            "a query sees one key too many: its own is one of the window": {"window": self.window + 1},
            "the diagonal is counted from the top left: here the last query sees the last key": {
                "shift": self.q.shape[-2] - self.k.shape[-2]
            },
            "the sinks are evicted: the first tokens stay for good": {"num_sinks": 0},
        }
        if self.window > self.num_sinks:
            text = "the sinks are counted in the window: they are kept besides it"
            found[text] = {"window": self.window - self.num_sinks}
        return found


class LogitCase(Case):
    """Attention with one number a head in the denominator."""

    def __init__(self, rng, *, heads=3, n_queries=5, n_keys=20, d=8, d_v=5, batch=(), logit_scale=1.0, sink=0.0,
                 dtype=torch.float32):  # fmt: skip
        self.q = logit_scale * normal(rng, *batch, heads, n_queries, d, dtype=dtype)
        self.k, self.v = (normal(rng, *batch, heads, n_keys, width, dtype=dtype) for width in (d, d_v))
        self.sink = sink + normal(rng, heads, dtype=dtype)

    @classmethod
    def drawn(cls, rng):
        """A case of random sizes."""
        sizes = rng.integers((1, 1, 2, 2, 2), (5, 9, 60, 20, 20)).tolist()
        return cls(rng, **dict(zip(("heads", "n_queries", "n_keys", "d", "d_v"), sizes, strict=True)), sink=1.0)

    @property
    def arguments(self):
        """By the handout's names."""
        return {name: getattr(self, name) for name in ("q", "k", "v", "sink")}

    def made(self, dtype, *, sink=None, value=0.0, in_lse=True):
        """With other sinks (H,), with a value of the sink, or with an lse that leaves it out."""
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        sink = (self.sink if sink is None else sink).to(dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        value = torch.as_tensor(value, dtype=dtype).expand(*v.shape[:-2], 1, v.shape[-1])
        found = weighted(torch.cat([scores, sink], -1), torch.cat([v, value], -2))
        return found if in_lse else found | {"lse": scores.logsumexp(-1)}

    @property
    def mistakes(self):
        """See `Case`."""
        sink, v = self.sink.double(), self.v.double()
        return {
            "lse leaves the sink out: it is the logarithm of the whole denominator": {"in_lse": False},
            "the sink is left out": {"sink": torch.full_like(sink, -torch.inf)},
            "the sink is scaled by 1/√d: only products of q and k are": {"sink": sink * self.q.shape[-1] ** -0.5},
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
NAMES = (*(name + of for name, _ in PARTS for of in ("", "_scale", "_zero")), "bits", "group")
TIE = 0.501
"""How far a number may be from its code: half a step, and what rounding in float32 explains."""


def keys_and_values(rng, *, n_tokens=16, d=8, d_v=16, batch=(2,), dtype=torch.float32, offset=0.0):
    """Keys whose channels have different means, as real ones do, and values."""
    k = rng.standard_normal((*batch, n_tokens, d)) + 4 * rng.standard_normal(d) + offset
    v = rng.standard_normal((*batch, n_tokens, d_v)) + offset
    return torch.from_numpy(k).to(dtype), torch.from_numpy(v).to(dtype)


def drawn_sizes(rng):
    """A random group, and sizes of k and v that it divides."""
    group, n, d, wide, *batch = rng.integers((2, 2, 1, 1, 1, 1), (7, 6, 5, 5, 3, 3)).tolist()
    return group, {"n_tokens": group * n, "d": 4 * d, "d_v": 4 * group * wide, "batch": tuple(batch)}


def quantized(k, v, bits, group):
    """The cache that the handout describes, computed in float64."""
    found = {"bits": bits, "group": group}
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        low, high = _extremes(x, group, axis)
        scale, zero = ((high - low) / (2**bits - 1)).half(), low.half()
        codes = _steps(x, scale, zero, group, axis).round().clamp(0, 2**bits - 1).long()
        by_byte = codes.unflatten(-1, (codes.shape[-1] * bits // 8, 8 // bits))
        packed = (by_byte * 2 ** torch.arange(0, 8, bits)).sum(-1).to(torch.uint8)
        found |= {name: packed, f"{name}_scale": scale, f"{name}_zero": zero}
    return found


def unpacked(codes, bits):
    """Bytes (..., w) as codes (..., w · 8 / bits)."""
    return (codes.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits).flatten(-2, -1)


def turned_in_bytes(codes, bits):
    """Codes (..., d) with those of each byte in the opposite order."""
    return codes.unflatten(-1, (codes.shape[-1] * bits // 8, 8 // bits)).flip(-1).flatten(-2, -1)


def restored(cache, dtype=torch.float64, mistake=""):
    """Keys and values from a cache, in `dtype` or with a mistake of `RESTORING_MISTAKES`."""
    found = []
    for name, axis in PARTS:
        bits, codes = cache["bits"], unpacked(cache[name], cache["bits"])
        if mistake == "signed":
            codes = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
        if mistake == "turned":
            codes = turned_in_bytes(codes, bits)
        scale, zero = (cache[name + of].to(dtype) for of in ("_scale", "_zero"))
        if mistake == "tiled":
            scale, zero = (torch.cat([x] * cache["group"], axis) for x in (scale, zero))
        else:
            scale, zero = (x.repeat_interleave(cache["group"], axis) for x in (scale, zero))
        zero = {"minus": -zero, "no zero": 0 * zero, "before": zero * scale}.get(mistake, zero)
        found.append(codes.to(dtype) * scale + zero)
    return found


RESTORING_MISTAKES = {
    "the zero is subtracted: x is code · scale + zero": "minus",
    "the zero is left out: x is code · scale + zero": "no zero",
    "the zero is added before scaling: it is no number of steps": "before",
    "scales are repeated as a whole (repeat): a group is neighbours, each repeated (repeat_interleave)": "tiled",
    "codes are read as signed numbers": "signed",
    "the order of the codes in a byte is another: the first is in the lowest bits": "turned",
}


def assert_restored(got, cache):
    """Compare what `dequantize_kv` made of a cache, and name a usual mistake where one fits."""
    k, v = assert_tuple("dequantize_kv's result", got, ("k", "v"))
    want, plain = restored(cache), restored(cache, torch.float32)
    for place, (name, value) in enumerate((("k", k), ("v", v))):
        assert_type(name, value, torch.Tensor, "a tensor")
        usual = {text: restored(cache, mistake=each)[place] for text, each in RESTORING_MISTAKES.items()}
        usual["code · scale + zero is computed in float16: it is computed in float32"] = restored(cache, torch.float16)[
            place
        ]
        assert_close(name, value.double(), want[place], plain=plain[place], mistakes=usual)
        assert_dtype(name, value, torch.float32)


def assert_quantized(got, k, v, bits, group, hint=""):
    """Compare what `quantize_kv` made of k and v with what the handout says, part by part."""
    assert_keys("what quantize_kv returns", got, NAMES)
    for name, number in (("bits", bits), ("group", group)):
        assert_equal(name, got[name], number)
    want = quantized(k, v, bits, group)
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        for of, dtype in (("", torch.uint8), ("_scale", torch.float16), ("_zero", torch.float16)):
            assert_type(name + of, got[name + of], torch.Tensor, "a tensor")
            _assert_shape(name, of, tuple(got[name + of].shape), tuple(want[name + of].shape), bits)
            assert_dtype(name + of, got[name + of], dtype)
        low, high = _extremes(x, group, axis)
        usual = {
            "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": (high - low) / 2**bits,
            "the scale is taken from the largest magnitude alone: it is (maximum − minimum) / (2^bits − 1)": (
                torch.maximum(low.abs(), high.abs()) / (2 ** (bits - 1) - 1)
            ),
        }
        for of, mistakes in (("_scale", usual), ("_zero", {})):
            plain = want[name + of]  # rounded from float32 instead of float64, it may be the next float16
            assert_close(name + of, got[name + of], plain, plain=plain, roundings=1, mistakes=mistakes, hint=hint)
        _assert_codes(name, got, x, axis, hint)


def _assert_shape(name, of, found, want, bits):
    told = f"{name + of} has shape {found}, expected {want}"
    if of:
        others = {"k": "by token: K's numbers share a scale along the tokens, each channel apart",
                  "v": "by channel: V's numbers share a scale along the channels, each token apart"}  # fmt: skip
        told += f"\nUsual cause: {name.upper()} is quantized {others[name]}"
    elif found[-1:] == (want[-1] * 8 // bits,):
        told += f"\nUsual cause: a code takes a byte: {8 // bits} of them share one"
    require(found == want, told)


def _assert_codes(name, got, x, axis, hint):
    """Fail unless every code is the nearest one under the scale and the zero that are kept with it."""
    bits, levels = got["bits"], 2 ** got["bits"] - 1
    steps = _steps(x, got[f"{name}_scale"], got[f"{name}_zero"], got["group"], axis)
    codes, nearest = unpacked(got[name], bits), steps.clamp(0, levels)
    wrong = (codes - nearest).abs() > TIE
    if not wrong.any():
        return
    why = hint
    if ((turned_in_bytes(codes, bits) - nearest).abs() <= TIE).all():
        why = "the order of the codes in a byte is another: the first of the neighbours lies in the lowest bits"
    elif (nearest - codes > -1e-3).all() and (nearest - codes < 1 + 1e-3).all():
        why = "the fraction is cut off: the nearest whole number is taken (round)"
    at = tuple(wrong.nonzero()[0].tolist())
    require(
        False,
        f"the code of {name}[{', '.join(map(str, at))}] = {float(x[at]):.6g} is {int(codes[at])}; with the zero and "
        f"the scale that are kept it lies at {float(steps[at]):.4f} steps; {int(wrong.sum())} of {wrong.numel()} codes "
        "are not the nearest" + (f"\nUsual cause: {why}" if why else ""),
    )


def _extremes(x, group, axis):
    parts = x.double().unflatten(axis, (x.shape[axis] // group, group))
    return parts.amin(axis), parts.amax(axis)


def _steps(x, scale, zero, group, axis):
    """Where each number is, in steps of its group; 0 where the scale is."""
    scale, zero = (each.double().repeat_interleave(group, axis) for each in (scale, zero))
    return torch.where(scale == 0, 0, (x.double() - zero) / torch.where(scale == 0, 1, scale))


# Schemes to choose from

NEAR = 1e-3
"""How far, as a share, the error of a quantized scheme may be off: a code between two steps may be either of them."""
SMALLEST = 2e-9
"""How far any error may be off: it is rounded to nine decimals."""


def drawn_model(rng, schemes, *, heads=4, n_tokens=32, n_queries=3, d=8, layers=3, dtype_bytes=2):
    """A model whose sample looks a little like real ones: heads alike, few directions, a strong first token."""
    shared = rng.standard_normal((2, n_tokens, 3)) @ rng.standard_normal((2, 3, d))
    k, v = (part + 0.4 * rng.standard_normal((heads, n_tokens, d)) for part in shared)
    q = 2 * rng.standard_normal((heads, n_queries, d))
    k[:, 0] += 0.5 * q.mean(1)
    sample = {name: torch.from_numpy(x).float() for name, x in (("q", q), ("k", k), ("v", v))}
    return {"layers": layers, "dtype_bytes": dtype_bytes, "schemes": [dict(each) for each in schemes], **sample}


def scheme_bytes(scheme, model, tokens):
    """The bytes that a scheme keeps of `tokens` tokens, in all layers."""
    heads, _, width = model["k"].shape
    numbers = tokens * 2 * heads * width
    kept = numbers * model["dtype_bytes"]
    if scheme["kind"] == "grouped":
        kept //= scheme["group"]
    elif scheme["kind"] == "window":
        kept = kept // tokens * min(tokens, scheme["window"] + scheme["num_sinks"])
    elif scheme["kind"] == "latent":
        kept = tokens * scheme["rank"] * model["dtype_bytes"]
    elif scheme["kind"] == "quantized":
        groups = -(-tokens // scheme["group"]) * heads * width + tokens * heads * (width // scheme["group"])
        kept = numbers * scheme["bits"] // 8 + 4 * groups
    return model["layers"] * kept


def scheme_error(scheme, model):
    """‖o' − o‖ / ‖o‖ on the model's sample."""
    exact = _output(model, model["k"].double(), model["v"].double())
    return float((_output(model, *_kept(scheme, model)) - exact).norm() / exact.norm())


def assert_scheme(got, model, nbytes, tokens):
    """Compare what `cache_under_budget` chose with the reference: which scheme, its bytes, its error."""
    when = f"for {nbytes:,} bytes and {tokens} tokens"
    require(isinstance(got, dict), f"cache_under_budget returns {type(got).__name__} {when}, expected a dict")
    own = {name: value for name, value in got.items() if name not in ("bytes", "error")}
    require(own in model["schemes"], f"the scheme chosen {when} is {own}, which is not one of the model's")
    assert_keys(f"the scheme chosen {when}", got, (*own, "bytes", "error"))
    fitting = [each for each in model["schemes"] if scheme_bytes(each, model, tokens) <= nbytes]
    best, fewest = min(fitting, key=lambda each: scheme_error(each, model)), _smallest(model, tokens)
    want, least = scheme_error(own, model), scheme_error(best, model)
    told = (
        f"the scheme chosen {when} is {own}, whose error is {want:.4g}; {best} fits too, with an error of {least:.4g}"
    )
    if own == fewest:
        told += "\nUsual cause: the one with the fewest bytes is taken: of those that fit, the one with the least error"
    require(own in fitting, f"the scheme chosen {when}, {own}, takes more bytes")
    require(want <= least * (1 + 2 * NEAR) + SMALLEST, told)
    size = scheme_bytes(own, model, tokens)
    about = f"the bytes of {own} for {tokens} tokens in {model['layers']} layers"
    assert_type(about, got["bytes"], int, "an int: bytes are counted")
    assert_equal(about, got["bytes"], size, mistakes=_usual_bytes(own, model, tokens, size))
    about = f"the error of {own}"
    assert_type(about, got["error"], (int, float), "a float")
    near = NEAR if own["kind"] == "quantized" else 0
    told = f"{about} is {got['error']:.6g}, expected {want:.6g}"
    usual = [text for text, value in _usual_errors(own, model) if abs(value - got["error"]) <= NEAR * value]
    hint = usual[0] if usual else ""
    require_at_most(about, abs(got["error"] - want), max(near * want, SMALLEST), told, kind="tolerance", hint=hint)
    require(got["error"] == round(got["error"], 9), f"{told}: it is not rounded to nine decimals")


def _smallest(model, tokens):
    return min(model["schemes"], key=lambda each: scheme_bytes(each, model, tokens))


def _usual_bytes(scheme, model, tokens, size):
    usual = {"one layer is counted: there are as many caches as layers": size // model["layers"]}
    if scheme["kind"] == "quantized":
        codes = model["layers"] * tokens * 2 * model["k"][:, 0].numel() * scheme["bits"] // 8
        usual["scales and zeros are left out: they are in the cache, 32 bits a group"] = codes
    if scheme["kind"] == "latent":
        usual["the latent vector is counted twice: keys and values are both made from one"] = 2 * size
    if scheme["kind"] == "window":
        alone, kept = scheme | {"num_sinks": 0}, scheme["window"] + scheme["num_sinks"]
        usual["the sinks are left out: they are kept besides the window"] = scheme_bytes(alone, model, tokens)
        text = "the whole window is counted although there are fewer tokens"
        usual[text] = scheme_bytes({"kind": "full"}, model, kept)
    return usual


def _usual_errors(scheme, model):
    """Usual mistakes with the error of a scheme, and the value each leads to."""
    k, v = model["k"].double(), model["v"].double()
    exact, kept = _output(model, k, v), _kept(scheme, model)
    usual = [("the difference is not divided by the length of o", (_output(model, *kept) - exact).norm())]
    if kept[0].shape == k.shape:
        both, changed = torch.cat([k, v]), torch.cat(kept)
        text = "K and V are compared instead of attention's output"
        usual.append((text, (changed - both).norm() / both.norm()))
    others = {}
    if scheme["kind"] == "grouped":
        first = [x[:: scheme["group"]].repeat_interleave(scheme["group"], 0) for x in (k, v)]
        others["a group keeps its first head instead of the mean of its heads"] = first
    if scheme["kind"] == "window":
        others["the sinks are left out of what is kept"] = _kept(scheme | {"num_sinks": 0}, model)
    if scheme["kind"] == "latent":
        each = [torch.stack([_low_rank(head, scheme["rank"]) for head in x]) for x in (k, v)]
        others["every head has a latent vector of its own: all heads share one"] = each
    usual += [(text, (_output(model, *pair) - exact).norm() / exact.norm()) for text, pair in others.items()]
    return [(text, float(value)) for text, value in usual]


def _kept(scheme, model):
    """What attention uses instead of k and v (H, N, d)."""
    k, v, kind = model["k"].double(), model["v"].double(), scheme["kind"]
    if kind == "grouped":
        means = (x.unflatten(0, (-1, scheme["group"])).mean(1) for x in (k, v))
        return [x.repeat_interleave(scheme["group"], 0) for x in means]
    if kind == "window":
        tokens = torch.arange(k.shape[1])
        stays = (tokens < scheme["num_sinks"]) | (tokens >= k.shape[1] - scheme["window"])
        return [k[:, stays], v[:, stays]]
    if kind == "latent":
        near = _low_rank(torch.cat([k, v]).transpose(0, 1).flatten(1), scheme["rank"])
        return near.unflatten(1, (2 * len(k), k.shape[2])).transpose(0, 1).split(len(k))
    if kind == "quantized":
        return restored(quantized(k, v, scheme["bits"], scheme["group"]))
    return [k, v]


def _low_rank(x, rank):
    """The nearest matrix of a rank: x projected on the leading directions of its rows."""
    _, directions = torch.linalg.eigh(x.mT @ x)
    kept = directions[:, -rank:]
    return x @ kept @ kept.mT


def _output(model, k, v):
    return (model["q"].double() @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v
