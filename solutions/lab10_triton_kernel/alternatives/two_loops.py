"""As fast kernels do it: tiles that are seen whole first, without masks, then those at the edges; powers of two."""

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    (n_queries, d), (n_keys, d_v) = Q.shape[-2:], V.shape[-2:]
    O = torch.empty((*Q.shape[:-1], d_v), dtype=Q.dtype, device=Q.device)
    L = torch.empty(Q.shape[:-1], dtype=torch.float32, device=Q.device)
    if not n_keys:
        return O.zero_(), L.fill_(float("-inf"))
    if O.numel():
        two_loops[(triton.cdiv(n_queries, block_q), L.numel() // n_queries)](
            Q.contiguous(), K.contiguous(), V.contiguous(), O, L, n_queries, n_keys, d, d_v, d**-0.5,
            CAUSAL=causal, PADDED=d != _width(d) or d_v != _width(d_v),
            BLOCK_Q=block_q, BLOCK_K=block_k, BLOCK_D=_width(d), BLOCK_V=_width(d_v),
            num_warps=4, num_stages=3 if Q.itemsize == 2 else 2,
        )  # fmt: skip
    return O, L


@triton.jit
def two_loops(
    Q, K, V, O, L, n_queries, n_keys, d, d_v, scale, CAUSAL: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # causal: what takes longest is begun first
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    Q += head * n_queries * d
    K += head * n_keys * d
    V += head * n_keys * d_v
    inside = (rows[:, None] < n_queries) & (wide[None, :] < d)
    q = tl.load(Q + rows[:, None] * d + wide[None, :], mask=inside, other=0.0)
    m = tl.full((BLOCK_Q,), float("-inf"), tl.float32)  # of scores times log₂ e
    l = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, BLOCK_V), tl.float32)
    whole, last = n_keys // BLOCK_K * BLOCK_K, n_keys
    if CAUSAL:
        whole = tl.minimum(whole, (block * BLOCK_Q + 1) // BLOCK_K * BLOCK_K)
        last = tl.minimum(n_keys, tl.minimum(n_queries, (block + 1) * BLOCK_Q))
    whole = tl.minimum(whole, last)
    scale *= LOG2_E
    acc, l, m = some_tiles(acc, l, m, q, K, V, rows, 0, whole, n_keys, d, d_v, scale,
                           False, PADDED, CAUSAL, BLOCK_K, BLOCK_D, BLOCK_V)  # fmt: skip
    acc, l, m = some_tiles(acc, l, m, q, K, V, rows, whole, last, n_keys, d, d_v, scale,
                           True, PADDED, CAUSAL, BLOCK_K, BLOCK_D, BLOCK_V)  # fmt: skip
    inside = (rows[:, None] < n_queries) & (wide_v[None, :] < d_v)
    o = (acc / l[:, None]).to(O.dtype.element_ty)
    tl.store(O + head * n_queries * d_v + rows[:, None] * d_v + wide_v[None, :], o, mask=inside)
    tl.store(L + head * n_queries + rows, (m + tl.log2(l)) * LN_2, mask=rows < n_queries)


@triton.jit
def some_tiles(
    acc, l, m, q, K, V, rows, first, last, n_keys, d, d_v, scale, EDGE: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    for start in range(first, last, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        keys = K + columns[None, :] * d + wide[:, None]
        values = V + columns[:, None] * d_v + wide_v[None, :]
        if EDGE or PADDED:
            k = tl.load(keys, mask=(columns[None, :] < n_keys) & (wide[:, None] < d), other=0.0)
            v = tl.load(values, mask=(columns[:, None] < n_keys) & (wide_v[None, :] < d_v), other=0.0)
        else:
            k = tl.load(keys)
            v = tl.load(values)
        s = tl.dot(q, k, input_precision="ieee") * scale
        if EDGE:
            seen = columns[None, :] < n_keys
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return acc, l, m


def choose_config(head_dim, dtype_bytes, arch):
    for name, value, known in [("head_dim", head_dim, (32, 64, 128)), ("dtype_bytes", dtype_bytes, (2, 4)),
                               ("arch", arch, (80, 90))]:  # fmt: skip
        if value not in known:
            raise ValueError(f"{name}: {value} is none of {known}")
    if dtype_bytes == 4:
        return (32, 32, 4, 2) if head_dim == 32 else (32, 16, 4, 2)
    if head_dim == 128:
        return (64, 64, 4, 3) if arch == 90 else (128, 64, 8, 2)
    return (128, 64, 4, 3) if arch == 90 else (64, 64, 4, 3)
