"""In place and in buffers where no gradient is asked for, the sum of weights as one more column of v."""


def feature_map(x):
    return F.elu(x).add_(1)


def linear_attention(q, k, v, eps=1e-6):
    both = feature_map(q) @ (feature_map(k).mT @ _with_ones(v))
    return both[..., :-1] / (both[..., -1:] + eps)


def causal_linear_attention_recurrent(q, k, v, eps=1e-6):
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return _recurrent_with_graph(q, k, v, eps)
    n, d, d_v = *q.shape[-2:], v.shape[-1]
    states = q.new_zeros(q.shape[:-2].numel(), d, d_v + 1)
    step = q.new_ones(len(states), 1, d_v + 1)
    out = v.new_empty(v.shape)
    flat = out.reshape(-1, n, d_v)
    for i in range(n):
        q_i, k_i = (feature_map(x[..., i, :]).reshape(-1, d) for x in (q, k))
        step[:, 0, :d_v] = v[..., i, :].reshape(-1, d_v)
        states.baddbmm_(k_i[:, :, None], step)
        both = torch.bmm(q_i[:, None, :], states)[:, 0]
        torch.div(both[:, :d_v], both[:, d_v:].add_(eps), out=flat[:, i])
    return out


def _recurrent_with_graph(q, k, v, eps):
    states, rows = 0, []
    for q_i, k_i, v_i in zip(*(x.split(1, -2) for x in (q, k, v)), strict=True):
        states = states + feature_map(k_i).mT @ _with_ones(v_i)
        both = feature_map(q_i) @ states
        rows.append(both[..., :-1] / (both[..., -1:] + eps))
    return torch.cat(rows, -2)


def causal_linear_attention_chunked(q, k, v, chunk=64, eps=1e-6):
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return _chunked_with_graph(q, k, v, chunk, eps)
    n, d, d_v = *q.shape[-2:], v.shape[-1]
    states = q.new_zeros(q.shape[:-2].numel(), d, d_v + 1)
    values = q.new_ones(len(states), min(chunk, n), d_v + 1)
    out = v.new_empty(v.shape)
    flat = out.reshape(-1, n, d_v)
    for start in range(0, n, chunk):
        here = slice(start, min(start + chunk, n))
        length = here.stop - here.start
        q_c, k_c = (feature_map(x[..., here, :]).reshape(-1, length, d) for x in (q, k))
        v_c = values[:, :length]
        v_c[..., :d_v] = v[..., here, :].reshape(-1, length, d_v)
        both = torch.bmm(q_c, states)
        both.baddbmm_(torch.bmm(q_c, k_c.mT).tril_(), v_c)
        torch.div(both[..., :d_v], both[..., d_v:].add_(eps), out=flat[:, here])
        states.baddbmm_(k_c.mT, v_c)
    return out


def _chunked_with_graph(q, k, v, chunk, eps):
    states, pieces = None, []
    for q_c, k_c, v_c in zip(*(x.split(chunk, -2) for x in (q, k, v)), strict=True):
        q_c, k_c, v_c = feature_map(q_c), feature_map(k_c), _with_ones(v_c)
        both = (q_c @ k_c.mT).tril() @ v_c
        both = both if states is None else both + q_c @ states
        pieces.append(both[..., :-1] / (both[..., -1:] + eps))
        states = k_c.mT @ v_c if states is None else states + k_c.mT @ v_c
    return torch.cat(pieces, -2)


def _with_ones(v):
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)
