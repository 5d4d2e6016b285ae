"""Descriptors instead of pointers where widths allow it, a softmax in steps, and rows of several programs in one."""


def softmax_rows(x):
    if x.ndim != 2:
        raise ValueError(f"x must be (rows, columns), found {tuple(x.shape)}")
    _require_dtype(x=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        rows = max(1, min(4, 4096 // block))
        grid = (triton.cdiv(x.shape[0], rows),)
        some_rows[grid](x, out, x.shape[0], x.shape[1], *x.stride(), ROWS=rows, BLOCK=block)
    return out


@triton.jit
def some_rows(x, out, n_rows, n_columns, x_row, x_column, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < n_rows) & (columns < n_columns)
    scores = tl.load(x + rows * x_row + columns * x_column, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.maximum(tl.max(scores, 1), -1e30)
    powers = tl.exp2((scores - top[:, None]) * 1.4426950408889634)
    total = tl.maximum(tl.sum(powers, 1), 1e-30)
    tl.store(out + rows * n_columns + columns, (powers / total[:, None]).to(out.dtype.element_ty), mask=inside)


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    (n_queries, d), (n_keys, d_v) = Q.shape[-2:], V.shape[-2:]
    heads = Q.shape[:-2].numel()
    step = 16 // Q.itemsize  # rows of what a descriptor describes begin at a multiple of 16 bytes
    given = [torch.nn.functional.pad(x, (0, -x.shape[-1] % step)).contiguous() for x in (Q, K, V)]
    O = torch.zeros(heads, n_queries, given[2].shape[-1], dtype=Q.dtype, device=Q.device)
    L = torch.full((*Q.shape[:-1],), float("-inf"), dtype=torch.float32, device=Q.device)
    if O.numel() and n_keys:
        described_forward[(heads, triton.cdiv(n_queries, block_q))](
            *given, O, L, n_queries, n_keys, given[0].shape[-1], O.shape[-1], d**-0.5, CAUSAL=causal,
            BLOCK_Q=block_q, BLOCK_K=block_k, BLOCK_D=_width(d), BLOCK_V=_width(d_v), num_stages=2,
        )  # fmt: skip
    return O[..., :d_v].reshape(*Q.shape[:-1], d_v).contiguous(), L


@triton.jit
def described_forward(
    Q, K, V, O, L, n_queries, n_keys, d, d_v, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_Q
    queries = tl.make_tensor_descriptor(Q + head * n_queries * d, [n_queries, d], [d, 1], [BLOCK_Q, BLOCK_D])
    keys = tl.make_tensor_descriptor(K + head * n_keys * d, [n_keys, d], [d, 1], [BLOCK_K, BLOCK_D])
    values = tl.make_tensor_descriptor(V + head * n_keys * d_v, [n_keys, d_v], [d_v, 1], [BLOCK_K, BLOCK_V])
    output = tl.make_tensor_descriptor(O + head * n_queries * d_v, [n_queries, d_v], [d_v, 1], [BLOCK_Q, BLOCK_V])
    rows = first + tl.arange(0, BLOCK_Q)
    q = queries.load([first, 0])
    m = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, BLOCK_V), tl.float32)
    end = n_keys
    if CAUSAL:
        end = tl.minimum(n_keys, tl.minimum(n_queries, first + BLOCK_Q))
    for start in range(0, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        s = tl.dot(q, keys.load([start, 0]).T, input_precision="ieee") * scale
        hidden = columns[None, :] >= n_keys
        if CAUSAL:
            hidden = hidden | (columns[None, :] > rows[:, None])
        s = tl.where(hidden, float("-inf"), s)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        v = values.load([start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    output.store([first, 0], (acc / l[:, None]).to(O.dtype.element_ty))
    tl.store(L + head * n_queries + rows, m + tl.log(l), mask=rows < n_queries)


def choose_config(head_dim, dtype_bytes, arch):
    if head_dim not in (32, 64, 128) or dtype_bytes not in (2, 4) or arch not in (80, 90):
        raise ValueError(f"head_dim {head_dim}, dtype_bytes {dtype_bytes}, arch {arch}: one of them is not known")
    if dtype_bytes == 4:
        return 32, 16, 8, 2
    return (64, 64, 4, 2) if arch == 80 else (128, 64, 8, 3)
