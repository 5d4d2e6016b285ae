"""Loops where the solution has products of all at once: a key head, a split, a block at a time, with running states."""


def kv_cache_bytes(layers, kv_heads, head_dim, tokens=1, dtype_bytes=2, window=None, latent_dim=0, rope_dim=0):
    given = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "dtype_bytes": dtype_bytes}
    for name, number in given.items():
        if number < 1:
            raise ValueError(f"{name}={number} is below 1")
    for name, number in (("tokens", tokens), ("latent_dim", latent_dim), ("rope_dim", rope_dim)):
        if number < 0:
            raise ValueError(f"{name}={number} is below 0")
    if window is not None and window < 1:
        raise ValueError(f"window={window} is below 1")
    if rope_dim > 0 and latent_dim == 0:
        raise ValueError(f"rope_dim={rope_dim} belongs to a latent vector, and there is none")
    kept = tokens if window is None or window > tokens else window
    vectors = [latent_dim, rope_dim] if latent_dim else [kv_heads * head_dim, kv_heads * head_dim]
    return sum(layers * kept * dtype_bytes * width for width in vectors)


def grouped_query_attention(q, k, v, causal=False, scale=None):
    group = _group_size(q.shape[-3], q, k, v)
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    precise = _precise_of(q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    lse = torch.zeros(q.shape[:-1], dtype=precise)
    for head in range(k.shape[-3]):
        keys, values = k[..., head, :, :].to(precise), v[..., head, :, :].to(precise)
        rows = q[..., head * group : (head + 1) * group, :, :].to(precise).flatten(-3, -2)
        scores = (rows @ keys.mT * scale).unflatten(-2, (group, n_queries))
        if causal:
            i, j = torch.arange(n_queries)[:, None], torch.arange(n_keys)
            scores = scores.masked_fill(j > i + n_keys - n_queries, -torch.inf)
        top = scores.amax(-1, keepdim=True) if n_keys else scores.new_zeros(*scores.shape[:-1], 1)
        top = top.masked_fill(top.isneginf(), 0)
        powers = torch.exp(scores - top)
        mass = powers.sum(-1, keepdim=True)
        total = (powers.flatten(-3, -2) @ values).unflatten(-2, (group, n_queries))
        o[..., head * group : (head + 1) * group, :, :] = (total / mass.clamp_min(1e-30)).to(q.dtype)
        lse[..., head * group : (head + 1) * group, :] = (top + mass.log())[..., 0]
    return o, lse


def _precise_of(x):
    return torch.float32 if x.dtype.itemsize == 2 else x.dtype


def _merged(state, rows, k, v, scale):
    """The state (m, l, o) after some more keys."""
    m, l, o = state
    scores = rows @ k.mT * scale
    m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
    powers, shrink = torch.exp(scores - m_new), torch.exp(m - m_new)
    return m_new, l * shrink + powers.sum(-1, keepdim=True), o * shrink + powers @ v


def _empty_state(rows, width):
    column = rows.new_zeros(*rows.shape[:-1], 1)
    return torch.full_like(column, -torch.inf), column, rows.new_zeros(*rows.shape[:-1], width)


def split_kv_decode(q, k, v, num_splits):
    if num_splits < 1:
        raise ValueError(f"num_splits={num_splits}")
    precise, n_keys = _precise_of(q), k.shape[-2]
    rows = q.to(precise).unflatten(-2, (k.shape[-3], _group_size(q.shape[-2], q, k, v)))
    chunk = max(1, -(-n_keys // num_splits))
    state = _empty_state(rows, v.shape[-1])
    for start in range(0, n_keys, chunk):
        keys, values = (x[..., start : start + chunk, :].to(precise) for x in (k, v))
        state = _merged(state, rows, keys, values, q.shape[-1] ** -0.5)
    m, l, o = state
    o = torch.where(l == 0, 0, o / l)
    return o.flatten(-3, -2).to(q.dtype), (m + l.log())[..., 0].flatten(-2, -1)


def num_splits_heuristic(total_mblocks, num_sms, num_n_blocks, max_splits=128):
    for name, number in (("total_mblocks", total_mblocks), ("num_sms", num_sms)):
        if number < 1:
            raise ValueError(f"{name} is {number}")
    for name, number in (("num_n_blocks", num_n_blocks), ("max_splits", max_splits)):
        if number < 1:
            raise ValueError(f"{name} is {number}")
    best, found, before = 0.0, [], None
    for splits in range(1, min(max_splits, num_sms, num_n_blocks) + 1):
        blocks = (num_n_blocks + splits - 1) // splits
        if blocks == before:
            continue
        before = blocks
        waves = total_mblocks * splits / num_sms
        found.append((splits, waves / -(-total_mblocks * splits // num_sms)))
        best = max(best, found[-1][1])
    return min(splits for splits, share in found if share >= 0.85 * best)


def paged_attention(q, k_cache, v_cache, block_table, context_lens):
    size, kv_heads = k_cache.shape[1:3]
    if q.shape[1] % kv_heads:
        raise ValueError(f"{q.shape[1]} query heads on {kv_heads}")
    if any(n > block_table.shape[1] * size for n in context_lens.tolist()):
        raise ValueError("context_lens exceed the table")
    precise = _precise_of(q)
    o = torch.zeros(*q.shape[:2], v_cache.shape[-1], dtype=q.dtype)
    for sequence in range(len(q)):
        rows = q[sequence].to(precise).unflatten(0, (kv_heads, -1))
        state = _empty_state(rows, v_cache.shape[-1])
        left = int(context_lens[sequence])
        for block in block_table[sequence].tolist():
            if left <= 0:
                break
            keys, values = (cache[block, :left].transpose(0, 1).to(precise) for cache in (k_cache, v_cache))
            state = _merged(state, rows, keys, values, q.shape[-1] ** -0.5)
            left -= size
        o[sequence] = torch.where(state[1] == 0, 0, state[2] / state[1]).flatten(0, 1).to(q.dtype)
    return o
