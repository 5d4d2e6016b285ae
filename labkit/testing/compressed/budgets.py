"""Ways to keep a cache, compared by bytes and by what they do to attention, and the mistakes usual in comparing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from labkit.testing.compare import assert_equal, assert_keys, assert_type, require, require_at_most
from labkit.testing.compressed.quantized import QuantizedCase, restored

Scheme = dict[str, Any]
NEAR = 1e-3
"""How far, as a share, an error may lie from the reference's: a code that lies between two steps may be either."""
SMALLEST = 2e-9
"""The same for errors near 0: they are rounded to nine decimals."""


def drawn_model(rng: np.random.Generator, schemes: list[Scheme], *, heads: int = 4, n_tokens: int = 32,
                n_queries: int = 3, d: int = 8, layers: int = 3, dtype_bytes: int = 2,
                logit_scale: float = 2.0) -> dict[str, Any]:  # fmt: skip
    """A model whose sample looks a little like real ones: heads alike, few directions, a strong first token."""
    shared = rng.standard_normal((2, n_tokens, 3)) @ rng.standard_normal((2, 3, d))
    k, v = (part + 0.4 * rng.standard_normal((heads, n_tokens, d)) for part in shared)
    q = logit_scale * rng.standard_normal((heads, n_queries, d))
    k[:, 0] += 0.5 * q.mean(1)
    tensors = {name: torch.from_numpy(x).float() for name, x in (("q", q), ("k", k), ("v", v))}
    own = [dict(scheme) for scheme in schemes]
    return {"layers": layers, "dtype_bytes": dtype_bytes, "schemes": own, **tensors}


def scheme_bytes(scheme: Scheme, model: Mapping[str, Any], tokens: int) -> int:
    """The bytes that a scheme keeps of `tokens` tokens, in all layers."""
    heads, _, width = model["k"].shape
    kind, numbers, e = scheme["kind"], 2 * heads * width, model["dtype_bytes"]
    if kind == "grouped":
        kept = tokens * numbers * e // scheme["group"]
    elif kind == "window":
        kept = min(tokens, scheme["window"] + scheme["num_sinks"]) * numbers * e
    elif kind == "latent":
        kept = tokens * scheme["rank"] * e
    elif kind == "quantized":
        groups = -(-tokens // scheme["group"]) * heads * width + tokens * heads * (width // scheme["group"])
        kept = tokens * numbers * scheme["bits"] // 8 + 4 * groups
    else:
        kept = tokens * numbers * e
    return model["layers"] * kept


def scheme_error(scheme: Scheme, model: Mapping[str, Any]) -> float:
    """‖o' − o‖ / ‖o‖ on the model's sample."""
    return _relative(model, *_kept(scheme, model["k"].double(), model["v"].double()))


def apart(model: Mapping[str, Any]) -> bool:
    """Whether no two schemes have errors so near one another that rounding could decide between them."""
    errors = sorted(scheme_error(scheme, model) for scheme in model["schemes"])
    return all(high > low * (1 + 20 * NEAR) or high < SMALLEST for low, high in itertools.pairwise(errors))


def assert_scheme(answer: Callable[..., Any], model: Mapping[str, Any], nbytes: int, tokens: int) -> None:
    """Compare what `answer` chooses with the reference: which scheme, its bytes, its error."""
    want, got = _chosen(model, nbytes, tokens), answer(model, nbytes, tokens)
    when = f"for {nbytes:,} bytes and {tokens} tokens"
    require(isinstance(got, dict), f"cache_under_budget returns {type(got).__name__} {when}, expected a dict")
    name = _told(want)
    assert_keys(f"the scheme chosen {when}", got, want if got.get("kind") == want["kind"] else got)
    hint = f"{name} has the least error of all that fit: {want['error']:.4g} in {want['bytes']:,} bytes"
    others = lambda: _other_choices(model, nbytes, tokens)  # noqa: E731 — made where something is off
    assert_equal(f"the scheme chosen {when}", _told(got), name, suspects=others, hint=hint)
    sized = f"the bytes of {name} for {tokens} tokens in {model['layers']} layers"
    assert_equal(sized, got["bytes"], want["bytes"], suspects=lambda: _usual_bytes(want, model, tokens))
    assert_type(sized, got["bytes"], int, "an int: bytes are counted")
    assert_type(f"the error of {name}", got["error"], (int, float), "a float")
    near = NEAR if want["kind"] == "quantized" else 0  # a code may be either neighbour of a tie
    off, allowed = abs(got["error"] - want["error"]), max(near * want["error"], SMALLEST)
    told = f"the error of {name} is {got['error']:.6g}, expected {want['error']:.6g}"
    if not off <= allowed and (why := _usual_cause(got["error"], want, model)):
        told += f"\nUsual cause: {why}"
    require_at_most(f"the error of {name}", off, allowed, told)
    require(got["error"] == round(got["error"], 9), f"{told.splitlines()[0]}: it is not rounded to nine decimals")


def _chosen(model: Mapping[str, Any], nbytes: int, tokens: int) -> Scheme:
    """The scheme to choose."""
    found = [
        scheme | {"bytes": scheme_bytes(scheme, model, tokens), "error": round(scheme_error(scheme, model), 9)}
        for scheme in model["schemes"]
    ]
    return min((each for each in found if each["bytes"] <= nbytes), key=lambda each: (each["error"], each["bytes"]))


def _told(scheme: Mapping[str, Any]) -> str:
    numbers = [f"{name} {value}" for name, value in scheme.items() if name not in ("kind", "bytes", "error")]
    return " ".join([f"{scheme.get('kind')!r}", *(["with " + ", ".join(numbers)] if numbers else [])])


def _other_choices(model: Mapping[str, Any], nbytes: int, tokens: int) -> dict[str, str]:
    found = [
        (_told(scheme), scheme_bytes(scheme, model, tokens), scheme_error(scheme, model)) for scheme in model["schemes"]
    ]
    fitting = [each for each in found if each[1] <= nbytes]
    strictly = [each for each in fitting if each[1] < nbytes]
    usual = {
        "the one with the fewest bytes is taken: of those that fit, the one with the least error": min(
            found, key=lambda each: each[1]
        ),
        "the one with the most bytes that fits is taken: more bytes need not mean less error": max(
            fitting, key=lambda each: each[1]
        ),
        "the one with the least error is taken, whether it fits or not": min(found, key=lambda each: each[2]),
        "the first that fits is taken": fitting[0],
        "the one with the largest error is taken": max(fitting, key=lambda each: each[2]),
    }
    if strictly:
        usual["a scheme of exactly so many bytes is refused: it fits"] = min(strictly, key=lambda each: each[2])
    right = min(fitting, key=lambda each: each[2])[0]
    return {text: name for text, (name, *_) in usual.items() if name != right}


def _usual_bytes(scheme: Scheme, model: Mapping[str, Any], tokens: int) -> dict[str, int]:
    heads, _, width = model["k"].shape
    size, layers = scheme["bytes"], model["layers"]
    usual = {
        "one layer is counted: there are as many caches as layers": size // layers,
        "keys alone are counted, or values": size // 2,
        "the bits are counted: 8 to a byte": 8 * size,
    }
    if scheme["kind"] == "quantized":
        codes = layers * tokens * 2 * heads * width * scheme["bits"] // 8
        usual = {
            "scales and zeros are left out: they are in the cache, 32 bits a group": codes,
            "zeros are left out: a group has a scale and a zero": codes + (size - codes) // 2,
            "scales and zeros are counted in four bytes each: they are float16": 2 * size - codes,
        } | usual
    elif scheme["kind"] == "window":
        alone = scheme | {"num_sinks": 0}
        usual = {
            "the sinks are left out: they are kept besides the window": scheme_bytes(alone, model, tokens),
            "all tokens are counted: those outside of the window have gone": scheme_bytes(
                {"kind": "full"}, model, tokens
            ),
            "the whole window is counted although there are fewer tokens": layers
            * (scheme["window"] + scheme["num_sinks"])
            * 2 * heads * width * model["dtype_bytes"],
        } | usual  # fmt: skip
    elif scheme["kind"] == "latent":
        usual = {
            "the latent vector is counted twice: keys and values are both made from one": 2 * size,
            "a latent vector is counted for each head: all share one": heads * size,
        } | usual
    return usual


def _usual_cause(error: float, want: Scheme, model: Mapping[str, Any]) -> str:
    """The usual mistake that leads to this error; "" where none does."""
    usual = _usual_errors(want, model)
    return next((text for text, value in usual.items() if abs(value - error) <= max(NEAR * value, SMALLEST)), "")


def _usual_errors(scheme: Scheme, model: Mapping[str, Any]) -> dict[str, float]:
    k, v = model["k"].double(), model["v"].double()
    kept = _kept(scheme, k, v)
    o, changed = _output(model, k, v), _output(model, *kept)
    usual = {
        "the difference is not divided by the length of o": float((changed - o).norm()),
        "the difference is divided by the length of the changed o": float((changed - o).norm() / changed.norm()),
        "the mean of the absolute differences": float((changed - o).abs().mean()),
        "the square of it": float((changed - o).norm() / o.norm()) ** 2,
    }
    if kept[1].shape == v.shape:
        both = torch.cat([k, v])
        usual["K and V are compared in place of attention's output"] = float(
            (torch.cat(kept) - both).norm() / both.norm()
        )
    if scheme["kind"] == "grouped":
        first = [x[:: scheme["group"]].repeat_interleave(scheme["group"], 0) for x in (k, v)]
        usual["a group keeps its first head in place of the mean of its heads"] = _relative(model, *first)
        strided = [x.unflatten(0, (scheme["group"], -1)).mean(0).repeat(scheme["group"], 1, 1) for x in (k, v)]
        usual["a group is every so-manieth head: it is neighbours"] = _relative(model, *strided)
    if scheme["kind"] == "window":
        usual["the sinks are left out of what is kept"] = _relative(model, *_kept(scheme | {"num_sinks": 0}, k, v))
        first_tokens = [x[:, : scheme["window"] + scheme["num_sinks"]] for x in (k, v)]
        usual["the first tokens are kept in place of the last"] = _relative(model, *first_tokens)
        within = scheme | {"window": max(1, scheme["window"] - scheme["num_sinks"])}
        usual["the sinks are counted in the window"] = _relative(model, *_kept(within, k, v))
    if scheme["kind"] == "latent":
        apart = [_low_rank(x.transpose(0, 1).flatten(1), scheme["rank"]).unflatten(1, k.shape[::2]).transpose(0, 1)
                 for x in (k, v)]  # fmt: skip
        usual["K and V have a latent vector each: one serves both"] = _relative(model, *apart)
        each = [torch.stack([_low_rank(one, scheme["rank"]) for one in x]) for x in (k, v)]
        usual["every head has a latent vector of its own: all heads share one"] = _relative(model, *each)
    return usual


def _kept(scheme: Scheme, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What attention finds in place of k and v (H, N, d)."""
    kind, heads = scheme["kind"], len(k)
    if kind == "grouped":
        shared = [x.unflatten(0, (-1, scheme["group"])).mean(1) for x in (k, v)]
        return tuple(x.repeat_interleave(scheme["group"], 0) for x in shared)  # type: ignore[return-value]
    if kind == "window":
        tokens = torch.arange(k.shape[1])
        stays = (tokens < scheme["num_sinks"]) | (tokens >= k.shape[1] - scheme["window"])
        return k[:, stays], v[:, stays]
    if kind == "latent":
        near = _low_rank(torch.cat([k, v]).transpose(0, 1).flatten(1), scheme["rank"])
        both = near.unflatten(1, (2 * heads, k.shape[2])).transpose(0, 1)
        return both[:heads], both[heads:]
    if kind == "quantized":
        return restored(QuantizedCase(k, v, scheme["bits"], scheme["group"]).cache)  # type: ignore[return-value]
    return k, v


def _low_rank(x: torch.Tensor, rank: int) -> torch.Tensor:
    """The nearest matrix of a rank: x projected on the leading directions of its columns."""
    _, directions = torch.linalg.eigh(x.mT @ x)
    kept = directions[:, -rank:]
    return x @ kept @ kept.mT


def _output(model: Mapping[str, Any], k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (model["q"].double() @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v


def _relative(model: Mapping[str, Any], k: torch.Tensor, v: torch.Tensor) -> float:
    exact = _output(model, model["k"].double(), model["v"].double())
    return float((_output(model, k, v) - exact).norm() / exact.norm())
