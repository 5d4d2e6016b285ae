"""One backward kernel, which adds to dQ atomically; and decoding without tl.dot, whose parts torch merges."""


def flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    (n_queries, d), (n_keys, d_v) = Q.shape[-2:], V.shape[-2:]
    dQ, dK, dV = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (Q, K, V))
    if Q.numel() and K.numel():
        grid = (L.numel() // n_queries, triton.cdiv(n_keys, block_k))
        given = [x.contiguous() for x in (Q, K, V, O, dO, L)]
        keys_first[grid](
            *given, dQ, dK, dV, n_queries, n_keys, d, d_v, d**-0.5, causal, block_q, block_k, _width(d), _width(d_v),
            num_warps=8, num_stages=1,
        )  # fmt: skip
    return dQ.to(Q.dtype), dK.to(K.dtype), dV.to(V.dtype)


@triton.jit
def rows_of(pointer, rows, n_rows, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = (rows[:, None] < n_rows) & (columns[None, :] < width)
    return tl.load(pointer + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)


@triton.jit
def keys_first(
    Q, K, V, O, dO, L, dQ, dK, dV, n_queries, n_keys, d, d_v, scale, CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_K
    Q, dQ, L = Q + head * n_queries * d, dQ + head * n_queries * d, L + head * n_queries
    O, dO = O + head * n_queries * d_v, dO + head * n_queries * d_v
    columns = first + tl.arange(0, BLOCK_K)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    k = rows_of(K + head * n_keys * d, columns, n_keys, d, BLOCK_D)
    v = rows_of(V + head * n_keys * d_v, columns, n_keys, d_v, BLOCK_V)
    dk = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    start_at = 0
    if CAUSAL:
        start_at = first // BLOCK_Q * BLOCK_Q
    for start in range(start_at, n_queries, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        q = rows_of(Q, rows, n_queries, d, BLOCK_D)
        do = rows_of(dO, rows, n_queries, d_v, BLOCK_V)
        o = rows_of(O, rows, n_queries, d_v, BLOCK_V)
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
        lse = tl.load(L + rows, mask=rows < n_queries, other=0.0)
        seen = (rows[:, None] < n_queries) & (columns[None, :] < n_keys)
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(seen, tl.exp(tl.where(seen, s - lse[:, None], 0.0)), 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None]) * scale
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
        inside = (rows[:, None] < n_queries) & (wide[None, :] < d)
        step = tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        tl.atomic_add(dQ + rows[:, None] * d + wide[None, :], step, mask=inside)
    there = columns[:, None] < n_keys
    tl.store(dK + head * n_keys * d + columns[:, None] * d + wide[None, :], dk, mask=there & (wide[None, :] < d))
    tl.store(
        dV + head * n_keys * d_v + columns[:, None] * d_v + wide_v[None, :], dv, mask=there & (wide_v[None, :] < d_v)
    )


def paged_decode(q, k_cache, v_cache, block_table, context_lens, num_splits):
    _require_dtype(q=q)
    (batch, n_heads, d), (_, block_size, n_key_heads, d_v) = q.shape, v_cache.shape
    if n_heads % n_key_heads:
        raise ValueError(f"q has {n_heads} heads, which {n_key_heads} heads of the cache do not divide")
    if num_splits < 1:
        raise ValueError(f"num_splits must be at least 1, found {num_splits}")
    group = n_heads // n_key_heads
    parts = torch.zeros(num_splits, batch, n_heads, d_v, device=q.device)
    lse = torch.full((num_splits, batch, n_heads), float("-inf"), device=q.device)
    table = block_table.to(torch.int32).contiguous()
    token_by_token[(batch * n_key_heads, num_splits)](
        q.contiguous(), k_cache, v_cache, table, context_lens, parts, lse, batch, table.shape[1], n_key_heads, d, d_v,
        d**-0.5, num_splits, block_size, group, TOKENS=_width(min(block_size, 32)), GROUP=_width(group),
        BLOCK_D=_width(d), BLOCK_V=_width(d_v),
    )  # fmt: skip
    top = lse.amax(0)
    weights = torch.exp(lse - top.masked_fill(top.isneginf(), 0))
    total = weights.sum(0)
    return ((weights[..., None] * parts).sum(0) / total.masked_fill(total == 0, 1)[..., None]).to(q.dtype)


@triton.jit
def token_by_token(
    q, k_cache, v_cache, table, context_lens, parts, lse, batch, table_width, n_key_heads, d, d_v, scale, num_splits,
    block_size, group, TOKENS: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    sequence, key_head = tl.program_id(0) // n_key_heads, tl.program_id(0) % n_key_heads
    split = tl.program_id(1)
    members, wide, wide_v = tl.arange(0, GROUP), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    rows = tl.program_id(0) * group + members
    mine = members < group
    query = tl.load(q + rows[:, None] * d + wide[None, :], mask=mine[:, None] & (wide[None, :] < d), other=0.0)
    n_tokens = tl.load(context_lens + sequence)
    # Parts are whole blocks here, so that a tile of tokens has one entry of the table.
    n_blocks = (n_tokens + block_size - 1) // block_size
    m = tl.full((GROUP,), -1e30, tl.float32)
    l = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, BLOCK_V), tl.float32)
    for number in range(n_blocks * split // num_splits, n_blocks * (split + 1) // num_splits):
        block = tl.load(table + sequence * table_width + number).to(tl.int64)
        for start in range(0, block_size, TOKENS):
            places = start + tl.arange(0, TOKENS)
            there = (places < block_size) & (number * block_size + places < n_tokens)
            at = (block * block_size + places) * n_key_heads + key_head
            k = tl.load(k_cache + at[:, None] * d + wide[None, :], mask=there[:, None] & (wide[None, :] < d), other=0.0)
            s = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            s = tl.where(there[None, :], s, -1e30)
            new = tl.maximum(m, tl.max(s, 1))
            p = tl.where(there[None, :], tl.exp(s - new[:, None]), 0.0)
            l = l * tl.exp(m - new) + tl.sum(p, 1)
            inside = there[:, None] & (wide_v[None, :] < d_v)
            v = tl.load(v_cache + at[:, None] * d_v + wide_v[None, :], mask=inside, other=0.0)
            acc = acc * tl.exp(m - new)[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            m = new
    place = split * batch * n_key_heads * group + rows
    some = l > 0
    tl.store(lse + place, tl.where(some, m + tl.log(tl.where(some, l, 1.0)), float("-inf")), mask=mine)
    part = acc / tl.where(some, l, 1.0)[:, None]
    tl.store(parts + place[:, None] * d_v + wide_v[None, :], part, mask=mine[:, None] & (wide_v[None, :] < d_v))


def choose_config(head_dim, dtype_bytes, arch):
    configurations = {
        (32, 2): (128, 32, 4, 2), (64, 2): (64, 32, 4, 2), (128, 2): (64, 32, 4, 2),
        (32, 4): (32, 16, 4, 2), (64, 4): (32, 16, 4, 2), (128, 4): (32, 16, 8, 2),
    }  # fmt: skip
    if arch not in (80, 90):
        raise ValueError(f"arch is {arch}")
    if head_dim not in (32, 64, 128):
        raise ValueError(f"head_dim is {head_dim}")
    if dtype_bytes not in (2, 4):
        raise ValueError(f"dtype_bytes is {dtype_bytes}")
    return configurations[head_dim, dtype_bytes]
