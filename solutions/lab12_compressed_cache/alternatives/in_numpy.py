"""Codes in NumPy, and attention by running sums to base 2, the scale in other places."""

import math

import numpy as np
import torch

LOG2E = math.log2(math.e)


def mla_decode(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV):
    _check_latent(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)
    precise = torch.float64 if q_nope.dtype == torch.float64 else torch.float32
    latent = c_kv.shape[-1]
    absorbed = (q_nope.to(precise).unsqueeze(-3) * W_UK.to(precise).mT.transpose(0, 1)).sum(-1).transpose(-1, -2)
    rows = torch.cat([absorbed, q_rope.to(precise)], -1) * (LOG2E / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1]))
    top = torch.full(rows.shape[:-1], -torch.inf, dtype=precise)
    sums = rows.new_zeros(*rows.shape[:-1], latent + 1)
    for c, rope in zip(c_kv.split(128, -2), k_rope.split(128, -2), strict=True):
        if not c.shape[-2]:
            break
        block = torch.cat([c, rope], -1).to(precise)
        scores = rows @ block.mT
        block[..., latent] = 1  # so that the sum of the powers is one more column
        new = scores.amax(-1).maximum(top)
        sums = sums * torch.exp2(top - new)[..., None] + torch.exp2(scores - new[..., None]) @ block[..., : latent + 1]
        top = new
    total = sums[..., latent:]
    mean = sums[..., :latent] / torch.where(total > 0, total, 1)
    return (W_UV.to(precise) @ mean[..., None])[..., 0].to(q_nope.dtype)


def quantize_kv(k, v, bits, group):
    _check_quantized(k, v, bits, group)
    cache = {"bits": bits, "group": group}
    levels = 2**bits - 1
    for name, x in (("k", k), ("v", v)):
        numbers = x.double().numpy()
        by_group = np.swapaxes(numbers, -1, -2) if name == "k" else numbers
        shape = by_group.shape
        by_group = by_group.reshape(*shape[:-1], shape[-1] // group, group)
        low, high = by_group.min(-1, keepdims=True), by_group.max(-1, keepdims=True)
        with np.errstate(all="ignore"):
            zero, scale = low.astype(np.float16), ((high - low) / levels).astype(np.float16)
        if not (np.isfinite(zero).all() and np.isfinite(scale).all()):
            raise ValueError(f"{name} does not fit into float16")
        step = np.where(scale == 0, 1, scale.astype(float))
        codes = np.rint((by_group - zero) / step) * (scale != 0)
        codes = np.clip(codes, 0, levels).astype(np.uint8).reshape(shape)
        zero, scale = zero[..., 0], scale[..., 0]
        if name == "k":
            codes, zero, scale = (np.swapaxes(each, -1, -2) for each in (codes, zero, scale))
        pairs = codes.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 8, 8 // bits)
        places = np.arange(0, 8, bits, dtype=np.uint8)
        cache[name] = torch.from_numpy(np.bitwise_or.reduce(pairs << places, axis=-1))
        cache[f"{name}_scale"] = torch.from_numpy(np.ascontiguousarray(scale))
        cache[f"{name}_zero"] = torch.from_numpy(np.ascontiguousarray(zero))
    return cache


def dequantize_kv(cache):
    table = torch.arange(256)[:, None] // 2 ** torch.arange(0, 8, cache["bits"]) % 2 ** cache["bits"]
    found = {}
    for name in "kv":
        codes = table[cache[name].long()].flatten(-2, -1).float()
        rows, columns = (torch.arange(n) for n in codes.shape[-2:])
        rows, columns = (rows // cache["group"], columns) if name == "k" else (rows, columns // cache["group"])
        scale, zero = (cache[name + of][..., rows, :][..., columns].float() for of in ("_scale", "_zero"))
        found[name] = torch.addcmul(zero, codes, scale)
    return found["k"], found["v"]


def attention_with_sinks(q, k, v, window, num_sinks):
    _check_sinks(q, k, v, window, num_sinks)
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    precise = torch.float64 if q.dtype == torch.float64 else torch.float32
    last = min(n_keys, max(0, n_keys - num_sinks), window + n_queries - 1)  # tokens after the sinks that any query sees
    tokens = torch.cat([torch.arange(min(num_sinks, n_keys)), torch.arange(n_keys - last, n_keys)])
    keys, values = (
        torch.cat([x.narrow(-2, 0, min(num_sinks, n_keys)), x.narrow(-2, n_keys - last, last)], -2).to(precise)
        for x in (k, v)
    )
    position = torch.arange(n_keys - n_queries, n_keys)[:, None]
    gone = (position - (num_sinks + window - 1)).clamp_min(0)  # tokens between the sinks and the window
    scores = _by_distance(q.to(precise), keys, position - tokens - gone * (tokens < num_sinks))
    seen = (tokens <= position) & ((tokens < num_sinks) | (tokens > position - window))
    scores = torch.where(seen, scores * (LOG2E / math.sqrt(q.shape[-1])), -torch.inf)
    if not len(tokens):
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), scores.new_full(q.shape[:-1], -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(precise).min)
    powers = torch.exp2(scores - top)
    total = powers.sum(-1, keepdim=True)
    o = powers @ values / torch.where(total > 0, total, 1)
    return o.to(q.dtype), ((top + total.log2()) / LOG2E)[..., 0]


def _by_distance(q, k, distance):
    """The products of queries and keys that are so far apart: pair by pair, the real part of q k* e^(iφ)."""
    half = q.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    scores = 0
    for i, speed in enumerate(speeds):
        angle = distance * speed
        a, b, c, d = q[..., :, i, None], q[..., :, i + half, None], k[..., None, :, i], k[..., None, :, i + half]
        scores = scores + (a * c + b * d) * angle.cos().to(q.dtype) + (a * d - b * c) * angle.sin().to(q.dtype)
    return scores


def attention_sink_logit(q, k, v, sink):
    _check_shapes(q, k, v)
    if sink.shape != (q.shape[-3],):
        raise ValueError(f"sink {tuple(sink.shape)}: {q.shape[-3]} heads")
    precise = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(precise) / math.sqrt(q.shape[-1])) @ k.to(precise).mT
    logit = sink.to(precise).view(-1, 1, 1)
    top = logit.expand(*scores.shape[:-1], 1)
    if k.shape[-2]:
        top = torch.maximum(top, scores.amax(-1, keepdim=True))
    top = torch.where(top.isinf(), 0, top)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True) + torch.exp(logit - top)
    o = powers @ v.to(precise) / torch.where(total > 0, total, 1)
    return o.to(q.dtype), (top + total.log())[..., 0]
