"""Mistakes that are another algorithm: what they put in the place of the solution's functions."""

import torch


def mla_expanded_keys(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV):
    _check_latent(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)
    precise = _precise(q_nope)
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    keys = c_kv.to(precise)[..., None, :, :] @ W_UK.to(precise).mT
    scores = (keys @ q_nope.to(precise)[..., None])[..., 0] + q_rope.to(precise) @ k_rope.to(precise).mT
    o, _ = _weighted(scale * scores, c_kv.to(precise))
    return torch.einsum("...hc,hvc->...hv", o, W_UV.to(precise)).to(q_nope.dtype)


def mla_values_before_the_softmax(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV):
    _check_latent(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)
    precise = _precise(q_nope)
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    queries = torch.einsum("...hn,hnc->...hc", q_nope.to(precise), W_UK.to(precise))
    values = c_kv.to(precise)[..., None, :, :] @ W_UV.to(precise).mT
    scores = queries @ c_kv.to(precise).mT + q_rope.to(precise) @ k_rope.to(precise).mT
    o, _ = _weighted((scale * scores)[..., None, :], values)
    return o[..., 0, :].to(q_nope.dtype)


def mla_both_kept(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV):
    _check_latent(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)
    precise = _precise(q_nope)
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    kept, scores = [], [q_rope.to(precise) @ k_rope[..., :0, :].to(precise).mT]
    for start in range(0, c_kv.shape[-2], 256):
        c, rope = (x[..., start : start + 256, :].to(precise, copy=True) for x in (c_kv, k_rope))
        keys = c[..., None, :, :] @ W_UK.to(precise).mT
        kept.append((c, keys))
        scores.append((keys @ q_nope.to(precise)[..., None])[..., 0] + q_rope.to(precise) @ rope.mT)
    whole = torch.cat([c_kv[..., :0, :].to(precise), *[c for c, _ in kept]], -2)
    o, _ = _weighted(scale * torch.cat(scores, -1), whole)
    return torch.einsum("...hc,hvc->...hv", o, W_UV.to(precise)).to(q_nope.dtype)


def sink_not_under_the_maximum(q, k, v, sink):
    _check_shapes(q, k, v)
    if sink.shape != q.shape[-3:-2]:
        raise ValueError(f"sink must be one number for each of {q.shape[-3]} heads, got {tuple(sink.shape)}")
    precise = _precise(q)
    scores = q.shape[-1] ** -0.5 * q.to(precise) @ k.to(precise).mT
    logit = sink.to(precise)[:, None, None].expand(*scores.shape[:-1], 1)
    top = scores.amax(-1, keepdim=True) if k.shape[-2] else torch.zeros_like(logit)
    powers, power = torch.exp(scores - top), torch.exp(logit - top)
    total = powers.sum(-1, keepdim=True) + power
    return (powers @ v.to(precise) / total.masked_fill(total == 0, 1)).to(q.dtype), (top + total.log())[..., 0]


def budget_error_of_keys_and_values(model, nbytes, tokens):
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    q, k, v = (model[name].double() for name in "qkv")
    exact, found = _attend(q, k, v), []
    for scheme in model["schemes"]:
        if scheme["kind"] not in KINDS:
            raise ValueError(f"unknown kind {scheme['kind']!r}")
        kept = _kept(scheme, k, v)
        if kept[0].shape == k.shape:
            off = (torch.cat(kept) - torch.cat([k, v])).norm() / torch.cat([k, v]).norm()
        else:
            off = (_attend(q, *kept) - exact).norm() / exact.norm()
        found.append(scheme | {"bytes": _scheme_bytes(scheme, model, tokens), "error": round(float(off), 9)})
    fitting = [scheme for scheme in found if scheme["bytes"] <= nbytes]
    if not fitting:
        raise ValueError(f"the smallest scheme needs {min(scheme['bytes'] for scheme in found)} bytes")
    return min(fitting, key=lambda scheme: (scheme["error"], scheme["bytes"]))


def latent_of_each_head(scheme, k, v):
    kind, rank = scheme["kind"], scheme.get("rank")
    if kind == "latent":
        U, S, Vh = torch.linalg.svd(torch.cat([k, v]), full_matrices=False)
        return ((U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank, :]).split(len(k))
    if kind == "grouped":
        return tuple(
            x.unflatten(0, (-1, scheme["group"])).mean(1).repeat_interleave(scheme["group"], 0) for x in (k, v)
        )
    if kind == "window":
        tokens = torch.arange(k.shape[1])
        stays = (tokens < scheme["num_sinks"]) | (tokens >= k.shape[1] - scheme["window"])
        return k[:, stays], v[:, stays]
    if kind == "quantized":
        return tuple(x.double() for x in dequantize_kv(quantize_kv(k, v, scheme["bits"], scheme["group"])))
    return k, v
