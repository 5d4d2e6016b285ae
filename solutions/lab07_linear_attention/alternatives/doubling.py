"""The scan by doubling steps (Hillis and Steele), einsum for the products, φ by cases, a model from lists of shapes."""

from math import prod


def feature_map(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attention(q, k, v, eps=1e-6):
    q, k = feature_map(q), feature_map(k)
    out = torch.einsum("...nd,...dv->...nv", q, torch.einsum("...nd,...nv->...dv", k, v))
    return out / (torch.einsum("...nd,...d->...n", q, k.sum(-2))[..., None] + eps)


def causal_linear_attention_cumsum(q, k, v, eps=1e-6):
    q, k = feature_map(q), feature_map(k)
    states = torch.einsum("...nd,...nv->...ndv", k, v).cumsum(-3)
    out = torch.einsum("...nd,...ndv->...nv", q, states)
    return out / ((q * k.cumsum(-2)).sum(-1, keepdim=True) + eps)


def _exclusive_scan(x):
    n, step = x.shape[-3], 1
    x = torch.cat([torch.zeros_like(x[..., :1, :, :]), x[..., :-1, :, :]], -3)
    while step < n:
        x = torch.cat([x[..., :step, :, :], x[..., step:, :, :] + x[..., :-step, :, :]], -3)
        step *= 2
    return x


def linear_attention_memory(batch, heads, seq_len, d, dtype_bytes):
    n, c = seq_len, min(64, seq_len)
    row, piece, states = (n, d), (c, d), [(d, d), (d,)]
    earlier = (n - c, d)
    moments = [
        [earlier, *states, *5 * [piece], (c, c)],
        [row, *states, *2 * [piece], *2 * [(d, d)]],
        [row, row, *states],
    ]
    alive = {
        "inputs": 3 * [row],
        "standard_peak": [(n, n), (n, n), row],
        "linear_bidir_peak": [*4 * [row], *states, (n,), (n,)],
        "linear_causal_peak": [(n, d, d), (n, d, d), *5 * [row], (n,), (n,)],
        "linear_chunked_peak": max(moments, key=lambda shapes: sum(map(prod, shapes))),
    }
    return {name: batch * heads * dtype_bytes * sum(map(prod, shapes)) for name, shapes in alive.items()}


def _profile_row(n, shape, dtype, device, capacity_bytes):
    q, k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(3))
    predicted = linear_attention_memory(*shape, torch.empty(0, dtype=dtype).element_size())
    room = float("inf") if capacity_bytes is None else capacity_bytes - predicted["inputs"]
    row = {"seq_len": n, "input_memory_mb": predicted["inputs"] / MB}
    for name, route in _routes().items():
        peak = _peak_or_nan(route, q, k, v)
        row |= {f"{name}_memory_mb": peak / MB if peak <= room else float("nan")}
    row |= {f"{name}_theoretical_mb": predicted[f"{name}_peak"] / MB for name in _routes()}
    return row | {"savings_bidir": row["standard_memory_mb"] / row["linear_bidir_memory_mb"]}
