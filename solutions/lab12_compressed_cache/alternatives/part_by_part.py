"""Everything in parts: log-sum-exps that are merged, heads and queries in loops, one axis for all groups."""

import torch

KINDS = ("full", "grouped", "window", "latent", "quantized")


def mla_decode(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV):
    heads, n_tokens, latent = q_nope.shape[-2], c_kv.shape[-2], c_kv.shape[-1]
    expected = {
        "q_rope": (q_rope.shape[-2:], (heads, q_rope.shape[-1])),
        "k_rope": (k_rope.shape[-2:], (n_tokens, q_rope.shape[-1])),
        "W_UK": (W_UK.shape, (heads, q_nope.shape[-1], latent)),
        "W_UV": (W_UV.shape, (heads, *W_UV.shape[1:-1], latent)),
    }
    for name, (got, want) in expected.items():
        if tuple(got) != want:
            raise ValueError(f"{name} is {tuple(got)} and should be {want}")
    precise = _precise_of(q_nope)
    rows = torch.stack([q_nope[..., h, :].to(precise) @ W_UK[h].to(precise) for h in range(heads)], -2)
    rows = torch.cat([rows, q_rope.to(precise)], -1)
    root = (q_nope.shape[-1] + q_rope.shape[-1]) ** 0.5
    o, lse = torch.zeros_like(rows[..., :latent]), torch.full_like(rows[..., 0], -torch.inf)
    for start in range(0, n_tokens, 384):
        block = torch.cat([x[..., start : start + 384, :] for x in (c_kv, k_rope)], -1).to(precise)
        scores = rows @ block.mT / root
        more = scores.logsumexp(-1)
        both = torch.logaddexp(lse, more)
        part = scores.softmax(-1) @ block[..., :latent]
        o = o * torch.exp(lse - both)[..., None] + part * torch.exp(more - both)[..., None]
        lse = both
    found = [o[..., h, :] @ W_UV[h].to(precise).mT for h in range(heads)]
    return torch.stack(found, -2).to(q_nope.dtype)


def _precise_of(x):
    return torch.float32 if x.dtype.itemsize == 2 else x.dtype


def quantize_kv(k, v, bits, group):
    if bits not in (2, 4, 8):
        raise ValueError(f"bits={bits}")
    if group < 1 or k.shape[-2] % group or v.shape[-1] % group:
        raise ValueError(f"group={group} does not divide")
    if k.shape[-2] != v.shape[-2] or k.shape[-1] * bits % 8 or v.shape[-1] * bits % 8:
        raise ValueError(f"k is {tuple(k.shape)} and v {tuple(v.shape)}")
    codes, scale, zero = _along_the_last(k.mT, bits, group, "k")
    cache = {"k": _in_bytes(codes.mT, bits), "k_scale": scale.mT.contiguous(), "k_zero": zero.mT.contiguous()}
    codes, scale, zero = _along_the_last(v, bits, group, "v")
    return cache | {"v": _in_bytes(codes, bits), "v_scale": scale, "v_zero": zero, "bits": bits, "group": group}


def _along_the_last(x, bits, group, name):
    parts = x.double().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    low, high = parts.min(-1).values, parts.max(-1).values
    scale, zero = ((high - low) / (2**bits - 1)).half(), low.half()
    if scale.isinf().any() or scale.isnan().any() or zero.isinf().any():
        raise ValueError(f"{name} is beyond float16")
    size = torch.where(scale == 0, torch.inf, scale.double())
    codes = torch.floor((parts - zero[..., None]) / size[..., None] + 0.5)
    return codes.clamp_min(0).clamp_max(2**bits - 1).byte().reshape(x.shape), scale, zero


def _in_bytes(codes, bits):
    found = codes[..., :: 8 // bits].clone()
    for place in range(1, 8 // bits):
        found |= codes[..., place :: 8 // bits] << (bits * place)
    return found


def dequantize_kv(cache):
    bits, group = cache["bits"], cache["group"]
    k, v = (_from_bytes(cache[name], bits) for name in "kv")
    k = k.unflatten(-2, (cache["k_scale"].shape[-2], group)) * cache["k_scale"].float()[..., None, :]
    v = v.unflatten(-1, (cache["v_scale"].shape[-1], group)) * cache["v_scale"].float()[..., None]
    k, v = k + cache["k_zero"].float()[..., None, :], v + cache["v_zero"].float()[..., None]
    return k.flatten(-3, -2), v.flatten(-2, -1)


def _from_bytes(packed, bits):
    found = torch.zeros(*packed.shape[:-1], packed.shape[-1] * 8 // bits)
    for place in range(8 // bits):
        found[..., place :: 8 // bits] = (packed >> (bits * place)) & (2**bits - 1)
    return found


def attention_with_sinks(q, k, v, window, num_sinks):
    if window < 1:
        raise ValueError(f"window={window}")
    if num_sinks < 0:
        raise ValueError(f"num_sinks={num_sinks}")
    if q.shape[-1] % 2:
        raise ValueError(f"d={q.shape[-1]} is odd")
    if k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    precise, n_queries, n_keys = _precise_of(q), q.shape[-2], k.shape[-2]
    o = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=precise)
    for i in range(n_queries):
        position = i + n_keys - n_queries
        sinks, start = min(num_sinks, max(position + 1, 0)), max(num_sinks, position - window + 1)
        parts = [slice(0, sinks), slice(start, max(start, position + 1))]  # views: each query reads its own again
        places = torch.arange(sinks + parts[1].stop - start).tensor_split([sinks])
        if not sum(map(len, places)):
            continue
        row = rotate(q[..., i : i + 1, :].to(precise), torch.tensor([sum(map(len, places)) - 1]))
        keys = [rotate(k[..., part, :].to(precise), at) for part, at in zip(parts, places, strict=True)]
        scores = torch.cat([row @ x.mT for x in keys], -1)[..., 0, :] / q.shape[-1] ** 0.5
        lse[..., i] = scores.logsumexp(-1)
        weights = scores.softmax(-1)[..., None, :].split([len(at) for at in places], -1)
        rows = sum(w @ v[..., part, :].to(precise) for w, part in zip(weights, parts, strict=True))
        o[..., i, :] = rows[..., 0, :].to(q.dtype)
    return o, lse


def attention_sink_logit(q, k, v, sink):
    if sink.dim() != 1 or len(sink) != q.shape[-3]:
        raise ValueError(f"sink is {tuple(sink.shape)} for {q.shape[-3]} heads")
    if k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    precise = _precise_of(q)
    scores = q.to(precise) @ k.to(precise).mT / q.shape[-1] ** 0.5
    lse = scores.logsumexp(-1)
    with_sink = torch.logaddexp(lse, sink.to(precise)[:, None])
    share = torch.exp(lse - with_sink).nan_to_num(0)  # of the denominator that is not the sink's
    finite = lse.masked_fill(lse.isneginf(), 0)
    o = (scores - finite[..., None]).exp() @ v.to(precise)
    return (share[..., None] * o).to(q.dtype), with_sink


def cache_under_budget(model, nbytes, tokens):
    if tokens <= 0:
        raise ValueError(f"tokens={tokens}")
    best, smallest = None, None
    for scheme in model["schemes"]:
        size = _bytes_of(scheme, model, tokens)
        smallest = size if smallest is None else min(size, smallest)
        if size > nbytes:
            continue
        error = round(_error_of(scheme, model), 9)
        if best is None or (error, size) < (best["error"], best["bytes"]):
            best = {**scheme, "bytes": size, "error": error}
    if best is None:
        raise ValueError(f"at least {smallest} bytes")
    return best


def _bytes_of(scheme, model, tokens):
    (heads, _, d), e = model["k"].shape, model["dtype_bytes"]
    match scheme["kind"]:
        case "full":
            a_layer = 2 * heads * d * e * tokens
        case "grouped":
            a_layer = 2 * (heads // scheme["group"]) * d * e * tokens
        case "window":
            a_layer = 2 * heads * d * e * min(tokens, scheme["window"] + scheme["num_sinks"])
        case "latent":
            a_layer = scheme["rank"] * e * tokens
        case "quantized":
            codes = 2 * heads * d * tokens // (8 // scheme["bits"])
            of_keys = (tokens + scheme["group"] - 1) // scheme["group"] * heads * d
            a_layer = codes + 4 * of_keys + 4 * tokens * heads * (d // scheme["group"])
        case other:
            raise ValueError(f"{other!r}")
    return model["layers"] * a_layer


def _error_of(scheme, model):
    q, k, v = (model[name].double() for name in "qkv")
    heads, d = k.shape[0], k.shape[-1]
    exact = torch.softmax(q @ k.mT / d**0.5, -1) @ v
    if scheme["kind"] == "grouped":
        group = torch.arange(heads) // scheme["group"]
        mean = (group[:, None] == group).double() / scheme["group"]
        k, v = (torch.einsum("hg,gnd->hnd", mean, x) for x in (k, v))
    elif scheme["kind"] == "window":
        stays = [n for n in range(k.shape[1]) if n < scheme["num_sinks"] or n >= k.shape[1] - scheme["window"]]
        k, v = k[:, stays], v[:, stays]
    elif scheme["kind"] == "latent":
        rows = torch.cat([x.transpose(0, 1).flatten(1) for x in (k, v)], 1)
        _, directions = torch.linalg.eigh(rows.mT @ rows)
        basis = directions[:, -scheme["rank"] :]
        near = (rows @ basis @ basis.mT).unflatten(1, (2, heads, d))
        k, v = near[:, 0].transpose(0, 1), near[:, 1].transpose(0, 1)
    elif scheme["kind"] == "quantized":
        k, v = dequantize_kv(quantize_kv(model["k"], model["v"], scheme["bits"], scheme["group"]))
        k, v = k.double(), v.double()
    o = torch.softmax(q @ k.mT / d**0.5, -1) @ v
    return float(((o - exact).square().sum() / exact.square().sum()).sqrt())
