"""Lab 12's usual mistakes, and the values or the changed options that each leads to."""

from functools import partial

import torch

from labkit.testing.attention.backward_mistakes import lse_mistakes

from .reference import (
    code_positions,
    dequantize_reference,
    distance,
    error_of,
    extremes,
    in_bytes,
    joined_in_bytes,
    kept_by,
    low_rank,
    output,
    output_error,
    reverse_codes_in_bytes,
    scheme_bytes,
    shifted,
    unclipped_positions,
    unpacked,
)

# Attention: changed options of `computed`


def values(case, name, mistakes):
    """One result of a case as `mistakes`, changed options by their names, have it."""
    found = {text: partial(_value, case, name, changed) for text, changed in mistakes.items()}
    return found | (lse_mistakes(case.want["lse"], case.want["m"]) if name == "lse" else {})


def _value(case, name, changed):
    return case.results_with(**changed)[name]


USUAL_BLOCKS = (*range(2, 8), *range(8, 520, 8), 10, 20, 50, 100, 250, 500, 768, 1000, 1024)
"""Tokens that are taken at a time."""


def latent_mistakes(case):
    """Usual mistakes of `mla_decode`."""
    d_n, d_r, d_c = case.Q.shape[-1], case.q_rope.shape[-1], case.K.shape[-1]
    wide = "the scale is taken from d_c + d_r, what the product is wide: the keys are d_n + d_r wide"
    latent = "q_rope meets the latent vectors instead of k_rope: positions are not in them"
    n = case.K.shape[-2]
    short = {
        f"the last {n % block} of {n} tokens are left out: the last block is smaller": {"n_tokens": n - n % block}
        for block in USUAL_BLOCKS
        if block < n and n % block
    }
    one = {"W_UV is left out, which belongs to the sum": {"value": 1 / case.W_UV}} if case.W_UV.numel() == 1 else {}
    return {
        "the scores are not divided by √(d_n + d_r)": {"width": 1},
        "the scale leaves d_r out: a key is d_n + d_r wide": {"width": d_n},
        wide: {"width": d_c + d_r},
        "the part of the scores with positions, q_rope · k_rope, is left out": {"rope": 0},
        latent: {"k_rope": case.K[..., :d_r]},
        "the scores' part with positions is not divided by √(d_n + d_r)": {"rope": (d_n + d_r) ** 0.5},
        **short,
        **one,
    }


def sink_mistakes(case):
    """Usual mistakes of `attention_with_sinks`."""
    window, num_sinks = case.options.values()
    text = "positions are those of the text: after tokens have gone, they are places in the cache"
    return {
        text: {"places": "text"},
        "the query is turned to its position in the text, and keys to places in the cache: both belong there": {
            "places": "query in the text"
        },
        "every sink counts twice, as one and as a token of the window": {"copies": True},
        "sinks are seen by the queries before them, too": {"ahead": True},
        "nothing is turned: positions are left out": {"places": "none"},
        "the query is turned to the last place of a full cache, also while tokens are few": {"places": "full"},
        "only keys are turned: the query is turned too, to its own place": {"places": "keys"},
        "keys are turned twice, to their positions in the text and to places in the cache": {"places": "keys twice"},
        "a sink that is in the window too is counted twice": {"twice": True},
        "a query sees one key too many: its own is one of the window": {"window": window + 1},
        "the diagonal is counted from the top left: here the last query sees the last key": {"first": 0},
        "the sinks are evicted: the first tokens stay for good": {"num_sinks": 0},
        "the sinks are counted in the window: they are kept besides it": {"window": window - num_sinks},
    }


def logit_mistakes(case):
    """Usual mistakes of `attention_sink_logit`."""
    sink, mean = case.sink.double(), case.V.double().mean(-2, keepdim=True)
    return {
        "lse leaves the sink out: it is the logarithm of the whole denominator": {"in_lse": False},
        "the sink is left out": {"sink": torch.full_like(sink, -torch.inf)},
        "the sink is scaled by 1/√d: only products of q and k are": {"sink": sink * case.Q.shape[-1] ** -0.5},
        "the sink itself is added to the denominator: its exponential is": {"sink": sink.log()},
        "one head's sink is used for all": {"sink": sink[:1].expand_as(sink)},
        "the sink is in the numerator too, with the mean of the values: it has no value": {"value": mean},
        "the sink's power is added to every number of the numerator: it has no value": {"value": 1.0},
    }


# Few bits

IN_A_BYTE = "the order of the codes in a byte is another: the first is in the lowest bits"


def size_mistakes(low, high, bits):
    """Usual mistakes of a scale, and the number that each leads to for groups from `low` to `high`."""
    magnitude = torch.maximum(low.abs(), high.abs())
    largest = magnitude / (2 ** (bits - 1) - 1)
    return {
        "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": (high - low) / 2**bits,
        "the scale is taken from the largest magnitude alone: it is (maximum − minimum) / (2^bits − 1)": largest,
        "the range is taken from −max |x| to max |x|: it is from the minimum to the maximum": 2
        * magnitude
        / (2**bits - 1),
    }


def code_mistakes(x, scale, zero, bits, group, axis):
    """Usual mistakes of the codes of x, and the codes that each leads to under the kept scale and zero."""
    low, high = extremes(x, group, axis)
    free = unclipped_positions(x, scale, zero, group, axis)
    exact = free.clamp(0, 2**bits - 1)
    unrounded = "codes are computed with other sizes than those that are kept: as they are kept, rounded to float16"
    return {
        unrounded: code_positions(x, (high - low) / (2**bits - 1), low, bits, group, axis).round(),
        IN_A_BYTE: reverse_codes_in_bytes(exact.round(), bits),
        "a byte holds the codes of channels that are far apart: those of neighbours share it": (
            exact.round().unflatten(-1, (8 // bits, -1)).transpose(-2, -1).flatten(-2)
        ),
        "the fraction is cut off: the nearest whole number is taken (round)": exact.floor(),
        "codes are not clipped at 2^bits − 1": unpacked(in_bytes(free.clamp(min=0), bits), bits),
        "codes are not clipped at 0": unpacked(in_bytes(free.clamp(max=2**bits - 1), bits), bits),
        "codes are not clipped to 0 … 2^bits − 1, and only their last bits stay": free.round().remainder(2**bits),
        "codes are not clipped to 0 … 2^bits − 1": unpacked(in_bytes(free, bits), bits),
        "codes are not clipped to 0 … 2^bits − 1, and set bits of others in their byte": unpacked(
            joined_in_bytes(free, bits), bits
        ),
    }


def restoring_mistakes(cache, name, axis):
    """Usual mistakes of `dequantize_kv`, and the numbers that each leads to."""
    bits, group = cache["bits"], cache["group"]
    codes, sizes = (
        unpacked(cache[name], bits),
        (cache[f"{name}_scale"].double(), cache[f"{name}_zero"].double()),
    )
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
        IN_A_BYTE: reverse_codes_in_bytes(codes, bits) * scale + zero,
        "the codes of a byte are put far apart: they are those of neighbouring channels": (
            codes.unflatten(-1, (-1, 8 // bits)).transpose(-2, -1).flatten(-2) * scale + zero
        ),
        "what lies above a code in its byte stays: & (2^bits − 1)": shifted(cache[name], bits) * scale + zero,
        in_half: dequantize_reference(cache, name, axis, torch.float16),
    }


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


# Schemes to choose from


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
            filled = scheme | {"window": min(tokens, scheme["window"])}
            text = "sinks are counted besides a window that has them already: min(T, w + s)"
            usual[text] = scheme_bytes(filled, model, whole)
    return usual


def error_mistakes(scheme, model):
    """Usual mistakes with the error of a scheme, and the number each leads to."""
    k, v, kept = model["k"].double(), model["v"].double(), kept_by(scheme, model)
    length = float(output(model, k, v).norm())
    usual = {"the difference is not divided by the length of o": error_of(scheme, model) * length}
    exact, got = output(model, k, v), output(model, *kept)
    text = "the errors of the heads are averaged: it is one error, over all heads and queries"
    usual[text] = sum(map(distance, got, exact)) / len(exact)
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
            joint = torch.cat([k, v]).transpose(0, 1).flatten(1)
            mean = joint.mean(0)
            centred = (low_rank(joint - mean, scheme["rank"]) + mean).unflatten(1, (2 * len(k), -1)).transpose(0, 1)
            text = "the mean of the tokens is taken off first: it would have to be kept too"
            usual[text] = output_error(model, *centred.split(len(k)))
            tokens = [low_rank(x.transpose(0, 1).flatten(1), scheme["rank"]) for x in (k, v)]
            apart = [x.unflatten(1, (len(k), -1)).transpose(0, 1) for x in tokens]
            usual["K and V have latent vectors of their own: they share one"] = output_error(model, *apart)
    if scheme["kind"] != "window":
        compared = distance(torch.cat([*kept]), torch.cat([k, v]))
        usual["K and V are compared instead of attention's output"] = compared
    return usual
