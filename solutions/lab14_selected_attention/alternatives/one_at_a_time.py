"""One page and one head at a time, in plain loops, with Python's own sorting; bounds as a middle and a half extent."""

import itertools

import torch


def page_bounds(K, page):
    if page < 1:
        raise ValueError(f"page={page}")
    shape = *K.shape[:-2], -(-K.shape[-2] // page), K.shape[-1]
    lows, highs = K.new_empty(shape), K.new_empty(shape)
    for p in range(shape[-2]):
        part = K[..., p * page : (p + 1) * page, :]
        lows[..., p, :], highs[..., p, :] = torch.aminmax(part, dim=-2)
    return lows, highs


def page_scores(q, lows, highs):
    if lows.shape != highs.shape:
        raise ValueError(f"lows {tuple(lows.shape)}, highs {tuple(highs.shape)}")
    if q.shape[-2] % lows.shape[-3]:
        raise ValueError(f"{q.shape[-2]} query heads on {lows.shape[-3]} key heads")
    precise = torch.float32 if q.dtype.itemsize == 2 else q.dtype
    rows = q.to(precise).unflatten(-2, (lows.shape[-3], -1))
    # the middle of each page, and half its extent: the bound is q · middle + |q| · half
    parts = []
    for start in range(0, lows.shape[-2], 16):
        low, high = (x[..., start : start + 16, :].to(precise, copy=True) for x in (lows, highs))
        middle, half = (low + high) / 2, (high - low) / 2
        parts.append(rows @ middle.mT + rows.abs() @ half.mT)
    return torch.cat(parts, -1).flatten(-3, -2)


def select_pages(scores, kv_heads, budget, current):
    if budget < 2 or not 0 <= current < scores.shape[-1]:
        raise ValueError(f"budget={budget}, current={current}")
    if scores.shape[-2] % kv_heads:
        raise ValueError(f"{scores.shape[-2]} query heads on {kv_heads} key heads")
    group, made = scores.shape[-2] // kv_heads, []
    for heads in scores.reshape(-1, group, scores.shape[-1]).tolist():
        best = [max(head[p] for head in heads) for p in range(current + 1)]
        between = sorted(range(1, current), key=lambda p: -best[p])
        made.append(sorted({0, current}.union(between[: budget - 2])))
    return torch.tensor(made).reshape(*scores.shape[:-2], kv_heads, -1)


def selected_decode(q, K, V, pages, page):
    kv_heads, n_tokens = K.shape[-3:-1]
    if page < 1:
        raise ValueError(f"page={page}")
    if q.shape[-2] % kv_heads:
        raise ValueError(f"{q.shape[-2]} query heads on {kv_heads} key heads")
    if pages.numel() and (pages.min() < 0 or pages.max() * page >= n_tokens):
        raise ValueError("pages that the cache does not have")
    precise = torch.float32 if q.dtype.itemsize == 2 else q.dtype
    group, batch = q.shape[-2] // kv_heads, q.shape[:-2]
    o = torch.zeros(*q.shape[:-1], V.shape[-1], dtype=q.dtype)
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=precise)
    for *lead, head in itertools.product(*[range(n) for n in (*batch, kv_heads)]):
        at, rows = (*lead, head), (*lead, slice(head * group, (head + 1) * group))
        tokens = [t for p in pages[at].tolist() for t in range(p * page, min(n_tokens, (p + 1) * page))]
        if tokens:
            keys, values = K[at][tokens].to(precise), V[at][tokens].to(precise)
            scores = q[rows].to(precise) @ keys.T / q.shape[-1] ** 0.5
            o[rows], lse[rows] = (scores.softmax(-1) @ values).to(q.dtype), scores.logsumexp(-1)
    return o, lse


def block_sparse_attention(Q, K, V, block, top):
    if block < 1 or top < 0:
        raise ValueError(f"block={block}, top={top}")
    if Q.shape != K.shape or K.shape[:-1] != V.shape[:-1]:
        raise ValueError(f"Q {list(Q.shape)}, K {list(K.shape)}, V {list(V.shape)}")
    dtype, n_tokens, n_full = Q.dtype, Q.shape[-2], Q.shape[-2] // block
    Q, K, V = (x.float() if dtype.itemsize == 2 else x for x in (Q, K, V))
    means = K.detach()[..., : n_full * block, :].unflatten(-2, (n_full, block)).mean(-2)
    rows = [V[..., :0, :]]
    for start in range(0, n_tokens, 8):  # the numbers of the tokens that eight queries read, and only then their keys
        q, position = Q[..., start : start + 8, None, :], torch.arange(start, min(start + 8, n_tokens))[:, None]
        gate = (q.detach() @ means.mT[..., None, :, :]).squeeze(-2)
        own = position // block
        order = gate.masked_fill(torch.arange(n_full) >= own, -torch.inf).argsort(dim=-1, descending=True, stable=True)
        blocks = order[..., :top].masked_fill(order[..., :top] >= own, n_tokens)
        blocks = torch.cat([blocks, own.expand(*blocks.shape[:-1], 1)], -1)
        tokens = (blocks[..., None] * block + torch.arange(block)).flatten(-2)
        places = tokens.clamp(max=n_tokens - 1).flatten(-2)[..., None]
        k, v = (
            x.gather(-2, places.expand(*places.shape[:-1], x.shape[-1])).unflatten(-2, tokens.shape[-2:])
            for x in (K, V)
        )
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((tokens > position)[..., None, :], -torch.inf)
        rows.append((scores.softmax(-1) @ v).squeeze(-2))
    return torch.cat(rows, -2).to(dtype)
