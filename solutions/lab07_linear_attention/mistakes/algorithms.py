"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""


def bidir_weights_first(q, k, v, eps=1e-6):
    weights = feature_map(q) @ feature_map(k).mT
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)


def bidir_causal(q, k, v, eps=1e-6):
    return causal_linear_attention_chunked(q, k, v, 16, eps)


def cumsum_bidirectional(q, k, v, eps=1e-6):
    return linear_attention(q, k, v, eps)


def cumsum_loop(q, k, v, eps=1e-6):
    return causal_linear_attention_recurrent(q, k, v, eps)


def cumsum_weights(q, k, v, eps=1e-6):
    weights = (feature_map(q) @ feature_map(k).mT).tril()
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)


def recurrent_by_cumsum(q, k, v, eps=1e-6):
    return causal_linear_attention_cumsum(q, k, v, eps)


def recurrent_prefixes(q, k, v, eps=1e-6):
    rows = [
        linear_attention(q[..., i : i + 1, :], k[..., : i + 1, :], v[..., : i + 1, :], eps) for i in range(q.shape[-2])
    ]
    return torch.cat(rows, -2)


def scan_every_position(q, k, v, chunk=64, eps=1e-6):
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    q, k = feature_map(q), feature_map(k)
    own, keys = k[..., :, None] * v[..., None, :], k[..., :, None]
    states, sums = _exclusive_scan(own) + own, _exclusive_scan(keys) + keys
    return ((q[..., None, :] @ states) / (q[..., None, :] @ sums + eps))[..., 0, :]


def scan_library_cumsum(x):
    return x.cumsum(-3) - x


def scan_loop(x):
    sums = [torch.zeros_like(x[..., 0, :, :])]
    for own in x.unbind(-3)[:-1]:
        sums.append(sums[-1] + own)
    return torch.stack(sums, -3)


def scan_quadratic_states(x):
    n = x.shape[-3]
    earlier = torch.ones(n, n, dtype=x.dtype, device=x.device).tril(-1)
    return (earlier @ x.flatten(-2)).unflatten(-1, x.shape[-2:])
