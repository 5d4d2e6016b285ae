"""Lab 10: attention in Triton's language: forward, backward and paged, and blocks that the compiler accepts."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """An example: out = x, n adjacent numbers each. Launch: copy_kernel[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n  # the last program has fewer than BLOCK numbers
    tl.store(out + places, tl.load(x + places, mask=inside, other=0.0), mask=inside)


def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row: out[i, j] = exp(x[i, j]) / Σ_k exp(x[i, k]).

    Computed by one kernel, which loads each element of x once and stores each element of out once.

    Args:
        x: (rows, columns), float32 or float16, any strides; at most 2¹⁷ columns.

    Returns:
        (rows, columns) in x's dtype, from sums in float32. A row of only −inf gives zeros.

    Raises:
        ValueError: x does not have two axes.
        TypeError: x is neither float32 nor float16.

    Example:
        [[0.0, 1.0986]] gives [[0.25, 0.75]], since exp(1.0986) = 3.
    """
    ### BEGIN SOLUTION
    if x.ndim != 2:
        raise ValueError(f"x must be (rows, columns), found {tuple(x.shape)}")
    _require_dtype(x=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        softmax_kernel[(x.shape[0],)](x, out, *x.stride(), *out.stride(), x.shape[1], BLOCK=block)
    return out
    ### END SOLUTION


### BEGIN SOLUTION
@triton.jit
def softmax_kernel(x, out, x_row, x_column, out_row, out_column, n_columns, BLOCK: tl.constexpr):
    """One row: BLOCK lanes, of which those from n_columns on are masked out."""
    row = tl.program_id(0).to(tl.int64)  # rows may be more than 2³¹ elements apart from the first
    columns = tl.arange(0, BLOCK)
    inside = columns < n_columns
    scores = tl.load(x + row * x_row + columns * x_column, mask=inside, other=float("-inf")).to(tl.float32)
    largest = tl.max(scores, 0)
    powers = tl.exp(scores - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(powers, 0)
    weights = powers / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * out_row + columns * out_column, weights.to(out.dtype.element_ty), mask=inside)


### END SOLUTION


def flash_forward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, with one program per block of queries, which passes over the keys once.

    With s[i, j] = Q[i] · K[j] / √d, over the keys j that query i sees:
    L[i] = log Σ_j exp(s[i, j]), natural logarithm, and O[i] = Σ_j exp(s[i, j] − L[i]) V[j].

    Args:
        Q: queries, (..., N_q, d), float32 or float16. The heads together may hold more than 2³¹ elements.
        K: keys, (..., N_k, d), with Q's leading axes and dtype.
        V: values, (..., N_k, d_v), likewise; d_v may differ from d, N_k from N_q.
        causal: query i sees key j only when j ≤ i, both counted from 0. Tiles in which no query of the block sees any
            key are neither loaded nor computed.
        block_q: queries of a program: a power of two, at least 16; need not divide N_q, may exceed it.
        block_k: keys of a tile, likewise.

    Returns:
        (O, L): O is (..., N_q, d_v) in Q's dtype; L is (..., N_q), float32. Products of float32 are exact (no tf32),
        sums are float32. Without keys (N_k = 0) O is 0 and L is −inf.

    Raises:
        ValueError: naming both shapes, when Q and K differ in d, or K and V in N_k; naming the argument, when a block
            size is not a power of two or below 16.
        TypeError: an input is neither float32 nor float16.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]] gives O = [[0.6698]], L = [1.1079].
    """
    ### BEGIN SOLUTION
    _check(Q, K, V, block_q, block_k)
    (n_queries, d), (n_keys, d_v) = Q.shape[-2:], V.shape[-2:]
    O = torch.zeros((*Q.shape[:-1], d_v), dtype=Q.dtype, device=Q.device)
    L = torch.full(Q.shape[:-1], float("-inf"), dtype=torch.float32, device=Q.device)
    if O.numel() and n_keys:
        grid = (triton.cdiv(n_queries, block_q), L.numel() // n_queries)
        forward_kernel[grid](
            Q.contiguous(), K.contiguous(), V.contiguous(), O, L, n_queries, n_keys, d, d_v, d**-0.5,
            CAUSAL=causal, BLOCK_Q=block_q, BLOCK_K=block_k, BLOCK_D=_width(d), BLOCK_V=_width(d_v),
            num_warps=4 if block_q <= 64 else 8, num_stages=2,
        )  # fmt: skip
    return O, L
    ### END SOLUTION


### BEGIN SOLUTION
@triton.jit
def forward_kernel(
    Q, K, V, O, L, n_queries, n_keys, d, d_v, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head. Widths are padded to powers of two with zeros, which add nothing."""
    head = tl.program_id(1).to(tl.int64)  # head · N · d may exceed 2³¹
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    Q += head * n_queries * d
    K += head * n_keys * d
    V += head * n_keys * d_v

    q_inside = (rows[:, None] < n_queries) & (wide[None, :] < d)
    q = tl.load(Q + rows[:, None] * d + wide[None, :], mask=q_inside, other=0.0)
    m = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, BLOCK_V), tl.float32)
    last = n_keys
    if CAUSAL:  # no query of this block sees a key from here on
        last = tl.minimum(n_keys, tl.minimum(n_queries, (tl.program_id(0) + 1) * BLOCK_Q))
    for start in range(0, last, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        k_inside = (columns[None, :] < n_keys) & (wide[:, None] < d)
        k = tl.load(K + columns[None, :] * d + wide[:, None], mask=k_inside, other=0.0)  # (d, keys): Kᵀ
        s = tl.dot(q, k, input_precision="ieee") * scale
        seen = columns[None, :] < n_keys  # a key that is not there scores −inf, not 0
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp(m - m_new)  # exp(−inf) = 0 in the first tile; every query sees key 0, so m_new is finite
        p = tl.exp(s - m_new[:, None])
        l = l * shrink + tl.sum(p, 1)
        v_inside = (columns[:, None] < n_keys) & (wide_v[None, :] < d_v)
        v = tl.load(V + columns[:, None] * d_v + wide_v[None, :], mask=v_inside, other=0.0)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new

    o_inside = (rows[:, None] < n_queries) & (wide_v[None, :] < d_v)
    o = (acc / l[:, None]).to(O.dtype.element_ty)
    tl.store(O + head * n_queries * d_v + rows[:, None] * d_v + wide_v[None, :], o, mask=o_inside)
    tl.store(L + head * n_queries + rows, m + tl.log(l), mask=rows < n_queries)


### END SOLUTION


def flash_backward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    O: torch.Tensor,
    L: torch.Tensor,
    dO: torch.Tensor,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of Σ O ∘ dO with respect to Q, K and V, from the forward pass's O and L.

    With p[i, j] = exp(s[i, j] − L[i]), D[i] = Σ_c dO[i, c] O[i, c], ds[i, j] = p[i, j] (Σ_c dO[i, c] V[j, c] − D[i]):
    dV[j] = Σ_i p[i, j] dO[i], dQ[i] = Σ_j ds[i, j] K[j] / √d, dK[j] = Σ_i ds[i, j] Q[i] / √d.

    Args:
        Q: as in `flash_forward`, and so are K, V, causal, block_q and block_k.
        K: keys.
        V: values.
        O: the forward pass's output, (..., N_q, d_v), in Q's dtype.
        L: its log-sum-exp, (..., N_q), float32.
        dO: the gradient of the loss with respect to O, of its shape and dtype.
        causal: tiles in which no query sees any key are neither loaded nor computed.
        block_q: queries of a tile.
        block_k: keys of a tile.

    Returns:
        (dQ, dK, dV), shaped as Q, K and V, in their dtype; sums are float32. No address is written by two programs,
        except by atomic operations.

    Raises:
        ValueError: as in `flash_forward`.
        TypeError: as in `flash_forward`.

    Example:
        In the example of `flash_forward`, with dO = [[1]]: dV = [[0.6698], [0.3302]], dQ = [[0.1564, −0.1564]].
    """
    ### BEGIN SOLUTION
    _check(Q, K, V, block_q, block_k)
    (n_queries, d), (n_keys, d_v) = Q.shape[-2:], V.shape[-2:]
    dQ, dK, dV = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (Q, K, V))
    heads = L.numel() // max(n_queries, 1)
    if not (heads and n_queries and n_keys):
        return dQ, dK, dV
    D = (dO.float() * O.float()).sum(-1)
    given = [x.contiguous() for x in (Q, K, V, dO, L, D)]
    sizes = (n_queries, n_keys, d, d_v, d**-0.5)
    blocks = {"BLOCK_Q": block_q, "BLOCK_K": block_k, "BLOCK_D": _width(d), "BLOCK_V": _width(d_v)}
    options = {"CAUSAL": causal, **blocks, "num_warps": 4, "num_stages": 2}
    keys_kernel[(triton.cdiv(n_keys, block_k), heads)](*given, dK, dV, *sizes, **options)
    queries_kernel[(triton.cdiv(n_queries, block_q), heads)](*given, dQ, *sizes, **options)
    return dQ, dK, dV
    ### END SOLUTION


### BEGIN SOLUTION
@triton.jit
def keys_kernel(
    Q, K, V, dO, L, D, dK, dV, n_queries, n_keys, d, d_v, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys, which one program owns: it loops over the queries."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_K
    columns = first + tl.arange(0, BLOCK_K)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    keys, keys_v = head * n_keys * d, head * n_keys * d_v
    k_inside = (columns[:, None] < n_keys) & (wide[None, :] < d)
    v_inside = (columns[:, None] < n_keys) & (wide_v[None, :] < d_v)
    k = tl.load(K + keys + columns[:, None] * d + wide[None, :], mask=k_inside, other=0.0)
    v = tl.load(V + keys_v + columns[:, None] * d_v + wide_v[None, :], mask=v_inside, other=0.0)
    dk = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    start_at = 0
    if CAUSAL:  # queries before this one see none of these keys
        start_at = first // BLOCK_Q * BLOCK_Q
    for start in range(start_at, n_queries, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        q_inside = (rows[:, None] < n_queries) & (wide[None, :] < d)
        o_inside = (rows[:, None] < n_queries) & (wide_v[None, :] < d_v)
        q = tl.load(Q + head * n_queries * d + rows[:, None] * d + wide[None, :], mask=q_inside, other=0.0)
        do = tl.load(dO + head * n_queries * d_v + rows[:, None] * d_v + wide_v[None, :], mask=o_inside, other=0.0)
        lse = tl.load(L + head * n_queries + rows, mask=rows < n_queries, other=float("inf"))  # weight exp(−inf) = 0
        delta = tl.load(D + head * n_queries + rows, mask=rows < n_queries, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = columns[None, :] < n_keys
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])
        dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    dk = (dk * scale).to(dK.dtype.element_ty)
    tl.store(dK + keys + columns[:, None] * d + wide[None, :], dk, mask=k_inside)
    tl.store(dV + keys_v + columns[:, None] * d_v + wide_v[None, :], dv.to(dV.dtype.element_ty), mask=v_inside)


@triton.jit
def queries_kernel(
    Q, K, V, dO, L, D, dQ, n_queries, n_keys, d, d_v, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dQ of a block of queries, in a loop over the keys. It recomputes the weights, so no program waits for another."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    keys, keys_v = head * n_keys * d, head * n_keys * d_v
    q_inside = (rows[:, None] < n_queries) & (wide[None, :] < d)
    o_inside = (rows[:, None] < n_queries) & (wide_v[None, :] < d_v)
    q = tl.load(Q + head * n_queries * d + rows[:, None] * d + wide[None, :], mask=q_inside, other=0.0)
    do = tl.load(dO + head * n_queries * d_v + rows[:, None] * d_v + wide_v[None, :], mask=o_inside, other=0.0)
    lse = tl.load(L + head * n_queries + rows, mask=rows < n_queries, other=float("inf"))
    delta = tl.load(D + head * n_queries + rows, mask=rows < n_queries, other=0.0)
    dq = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    last = n_keys
    if CAUSAL:
        last = tl.minimum(n_keys, tl.minimum(n_queries, (tl.program_id(0) + 1) * BLOCK_Q))
    for start in range(0, last, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        k_inside = (columns[:, None] < n_keys) & (wide[None, :] < d)
        v_inside = (columns[:, None] < n_keys) & (wide_v[None, :] < d_v)
        k = tl.load(K + keys + columns[:, None] * d + wide[None, :], mask=k_inside, other=0.0)
        v = tl.load(V + keys_v + columns[:, None] * d_v + wide_v[None, :], mask=v_inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = columns[None, :] < n_keys
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    dq = (dq * scale).to(dQ.dtype.element_ty)
    tl.store(dQ + head * n_queries * d + rows[:, None] * d + wide[None, :], dq, mask=q_inside)


### END SOLUTION


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    """Attention of one query per sequence over keys and values in blocks, read in `num_splits` parts in parallel.

    Token t of sequence b is in block block_table[b, t // block_size], at place t % block_size, for t below
    context_lens[b]. Query head h reads key head h // (H_q / H_kv). o[b, h] = Σ_t softmax_t(q[b, h] · k_t / √d) v_t.

    Args:
        q: (batch, H_q, d), float32 or float16.
        k_cache: (num_blocks, block_size, H_kv, d), contiguous, in q's dtype; H_kv divides H_q. It may hold more than
            2³¹ elements.
        v_cache: (num_blocks, block_size, H_kv, d_v), likewise.
        block_table: (batch, most blocks of a sequence), int32 or int64. Entries that a sequence does not need may be
            −1.
        context_lens: (batch,), the number of tokens of each sequence, which may be 0.
        num_splits: the parts into which each sequence's tokens are cut, at least 1; each has programs of its own.

    Returns:
        (batch, H_q, d_v) in q's dtype; 0 for a sequence without tokens.

    Raises:
        ValueError: naming both numbers, when H_kv does not divide H_q; naming num_splits, when it is below 1.
        TypeError: q is neither float32 nor float16.

    Example:
        Blocks of 2 with the values 1, 2 | 3, 4 | 5, 6, keys of 0, a table [2, 0] and 3 tokens: o is the mean of 5, 6
        and 1, which is 4.
    """
    ### BEGIN SOLUTION
    _require_dtype(q=q)
    batch, n_heads, d = q.shape
    _, block_size, n_key_heads, d_v = v_cache.shape
    if n_heads % n_key_heads:
        raise ValueError(f"q has {n_heads} heads, which {n_key_heads} heads of the cache do not divide")
    if num_splits < 1:
        raise ValueError(f"num_splits must be at least 1, found {num_splits}")
    o = torch.zeros(batch, n_heads, d_v, dtype=q.dtype, device=q.device)
    if not o.numel():
        return o
    parts = torch.zeros(batch, n_heads, num_splits, d_v, dtype=torch.float32, device=q.device)
    lse = torch.full((batch, n_heads, num_splits), float("-inf"), dtype=torch.float32, device=q.device)
    group = n_heads // n_key_heads
    table = block_table.contiguous()
    split_kernel[(num_splits, n_key_heads, batch)](
        q.contiguous(), k_cache, v_cache, table, context_lens, parts, lse,
        table.shape[1], n_key_heads, d, d_v, d**-0.5, num_splits, block_size, group,
        GROUP=_width(group), TOKENS=32, BLOCK_D=_width(d), BLOCK_V=_width(d_v), num_warps=4, num_stages=2,
    )  # fmt: skip
    splits = triton.next_power_of_2(num_splits)
    merge_kernel[(n_heads, batch)](parts, lse, o, n_heads, num_splits, d_v, SPLITS=splits, BLOCK_V=_width(d_v))
    return o
    ### END SOLUTION


### BEGIN SOLUTION
@triton.jit
def split_kernel(
    q, k_cache, v_cache, table, context_lens, parts, lse,
    table_width, n_key_heads, d, d_v, scale, num_splits, block_size, group,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One part of a sequence's tokens for one key head, with all query heads of its group: each key is read once."""
    split, key_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    members = tl.arange(0, GROUP)
    wide, wide_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    heads = (sequence * n_key_heads + key_head) * group + members
    q_inside = (members[:, None] < group) & (wide[None, :] < d)
    query = tl.load(q + heads[:, None] * d + wide[None, :], mask=q_inside, other=0.0)
    n_tokens = tl.load(context_lens + sequence).to(tl.int32)
    length = (n_tokens + num_splits - 1) // num_splits
    first, last = split * length, tl.minimum(n_tokens, (split + 1) * length)
    m = tl.full((GROUP,), float("-inf"), tl.float32)
    l = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, BLOCK_V), tl.float32)
    for start in range(first, last, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        there = tokens < last
        blocks = tl.load(table + sequence * table_width + tokens // block_size, mask=there, other=0).to(tl.int64)
        places = (blocks * block_size + tokens % block_size) * n_key_heads + key_head
        k_inside = there[None, :] & (wide[:, None] < d)
        k = tl.load(k_cache + places[None, :] * d + wide[:, None], mask=k_inside, other=0.0)
        s = tl.dot(query, k, input_precision="ieee") * scale
        s = tl.where(there[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = l * shrink + tl.sum(p, 1)
        v_inside = there[:, None] & (wide_v[None, :] < d_v)
        v = tl.load(v_cache + places[:, None] * d_v + wide_v[None, :], mask=v_inside, other=0.0)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new
    if last > first:  # a part without tokens keeps its 0 and −inf
        place = heads * num_splits + split
        tl.store(lse + place, m + tl.log(l), mask=members < group)
        o_inside = (members[:, None] < group) & (wide_v[None, :] < d_v)
        tl.store(parts + place[:, None] * d_v + wide_v[None, :], acc / l[:, None], mask=o_inside)


@triton.jit
def merge_kernel(parts, lse, o, n_heads, num_splits, d_v, SPLITS: tl.constexpr, BLOCK_V: tl.constexpr):
    """Merge the parts of a query head, each weighted by exp(its log-sum-exp − the largest)."""
    head = tl.program_id(1).to(tl.int64) * n_heads + tl.program_id(0)
    splits, wide_v = tl.arange(0, SPLITS), tl.arange(0, BLOCK_V)
    there = splits < num_splits
    each = tl.load(lse + head * num_splits + splits, mask=there, other=float("-inf"))
    largest = tl.max(each, 0)
    weights = tl.exp(each - tl.where(largest == float("-inf"), 0.0, largest))
    inside = there[:, None] & (wide_v[None, :] < d_v)
    part = tl.load(parts + (head * num_splits + splits)[:, None] * d_v + wide_v[None, :], mask=inside, other=0.0)
    total = tl.sum(weights, 0)
    merged = tl.sum(weights[:, None] * part, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(o + head * d_v + wide_v, merged.to(o.dtype.element_ty), mask=wide_v < d_v)


### END SOLUTION


def choose_config(head_dim: int, dtype_bytes: int, arch: int) -> tuple[int, int, int, int]:
    """Blocks, warps and stages with which your forward kernel fits a multiprocessor and keeps every tile in registers.

    Args:
        head_dim: d and d_v, 32, 64 or 128.
        dtype_bytes: 2 for float16, 4 for float32.
        arch: 80 (A100: 163 KiB of shared memory a block) or 90 (H100: 227 KiB, products of 64 rows and more by wgmma).

    Returns:
        (block_q, block_k, num_warps, num_stages): blocks are powers of two from 16 on; num_warps is 4 or 8; num_stages,
        the tiles of keys in flight at once, at least 2. block_q is at least 64 for float16 and 32 for float32, since K
        and V are read once for every block of queries.

    Raises:
        ValueError: naming the argument, for another head_dim, dtype_bytes or arch.
    """
    ### BEGIN SOLUTION
    for name, value, known in [
        ("head_dim", head_dim, (32, 64, 128)),
        ("dtype_bytes", dtype_bytes, (2, 4)),
        ("arch", arch, (80, 90)),
    ]:
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, found {value}")
    if dtype_bytes == 4:  # products without tensor cores: the tiles of both factors are in registers too
        return (32, 32, 4, 2) if head_dim < 128 else (32, 16, 8, 2)
    return (128, 64, 8, 2) if head_dim == 128 and arch == 80 else (64, 64, 4, 3)
    ### END SOLUTION


### BEGIN SOLUTION
def _width(n: int) -> int:
    """The side of a tile that holds n elements: a power of two, and at least 16, as `tl.dot` needs."""
    return max(16, triton.next_power_of_2(n))


def _require_dtype(**tensors: torch.Tensor) -> None:
    for name, x in tensors.items():
        if x.dtype not in (torch.float32, torch.float16):
            raise TypeError(f"{name} is {x.dtype}: float32 or float16")


def _check(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, block_q: int, block_k: int) -> None:
    _require_dtype(Q=Q, K=K, V=V)
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q {tuple(Q.shape)} and K {tuple(K.shape)} differ in d")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K {tuple(K.shape)} and V {tuple(V.shape)} differ in N_k")
    for name, size in (("block_q", block_q), ("block_k", block_k)):
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name} must be a power of two from 16 on, found {size}")


### END SOLUTION
