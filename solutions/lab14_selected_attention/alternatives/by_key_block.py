"""From the side of the keys: what is chosen is gone through block by block, and parts are merged by log-sum-exps."""

import torch


def page_scores(q, lows, highs):
    if lows.shape != highs.shape:
        raise ValueError(f"lows {tuple(lows.shape)}, highs {tuple(highs.shape)}")
    if q.shape[-2] % lows.shape[-3]:
        raise ValueError(f"{q.shape[-2]} query heads on {lows.shape[-3]} key heads")
    precise = torch.float32 if q.dtype.itemsize == 2 else q.dtype
    rows = q.to(precise).unflatten(-2, (lows.shape[-3], -1))[..., None, :]
    scores = []
    for start in range(0, lows.shape[-2], 8):
        low, high = (x[..., None, start : start + 8, :].to(precise) for x in (lows, highs))
        scores.append(torch.maximum(rows * low, rows * high).sum(-1))
    return torch.cat(scores, -1).flatten(-3, -2)


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
    o = torch.zeros(*q.shape[:-1], V.shape[-1], dtype=precise)
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=precise)
    for at in torch.cartesian_prod(*[torch.arange(n) for n in (*batch, kv_heads)]).reshape(-1, len(batch) + 1).tolist():
        *lead, head = at
        rows = (*lead, slice(head * group, (head + 1) * group))
        for p in pages[tuple(at)].tolist():
            k, v = (x[tuple(at)][p * page : (p + 1) * page].to(precise) for x in (K, V))
            scores = q[rows].to(precise) @ k.T / q.shape[-1] ** 0.5
            here = scores.logsumexp(-1)
            both = torch.logaddexp(lse[rows], here)
            part = torch.softmax(scores, -1) @ v
            o[rows] = torch.exp(lse[rows] - both)[:, None] * o[rows] + torch.exp(here - both)[:, None] * part
            lse[rows] = both
    return o.to(q.dtype), lse


def block_sparse_attention(Q, K, V, block, top):
    if block < 1 or top < 0:
        raise ValueError(f"block={block}, top={top}")
    if Q.shape != K.shape or K.shape[:-1] != V.shape[:-1]:
        raise ValueError(f"Q {tuple(Q.shape)}, K {tuple(K.shape)}, V {tuple(V.shape)}")
    precise = torch.float32 if Q.dtype.itemsize == 2 else Q.dtype
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (Q, K, V)] if Q.numel() else [Q[None], K[None], V[None]]
    if not Q.numel():
        return V.to(Q.dtype)
    made = [_one_sequence(*(x.to(precise) for x in each), block, top) for each in zip(*flat, strict=True)]
    return torch.stack(made).reshape(V.shape).to(Q.dtype)


def _one_sequence(Q, K, V, block, top):
    n = len(Q)
    scale, n_blocks = Q.shape[-1] ** -0.5, -(-n // block)
    with torch.no_grad():
        means = torch.stack([part.mean(0) for part in K.split(block)])
        gate = Q @ means.T
        own = torch.arange(n) // block
        gate.masked_fill_(torch.arange(n_blocks) >= own[:, None], -torch.inf)
        ranks = gate.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        chosen = (ranks < top) & (torch.arange(n_blocks) < own[:, None])
    o, lse = torch.zeros_like(V), torch.full_like(V[:, 0], -torch.inf)
    for j in range(n_blocks):
        k, v = (x[j * block : (j + 1) * block] for x in (K, V))
        for rows in (chosen[:, j].nonzero()[:, 0], (own == j).nonzero()[:, 0]):
            if not len(rows):
                continue
            scores = scale * Q[rows] @ k.T
            later = torch.arange(j * block, j * block + len(k)) > rows[:, None]
            scores = scores.masked_fill(later, -torch.inf)
            here = scores.logsumexp(-1)
            both = torch.logaddexp(lse[rows], here)
            part = torch.exp(scores - both[:, None]) @ v
            o = o.index_copy(0, rows, torch.exp(lse[rows] - both)[:, None] * o[rows] + part)
            lse = lse.index_copy(0, rows, both)
    return o


def index_top_tokens(q_index, w, k_index, top):
    if top < 1:
        raise ValueError(f"top={top}")
    n_queries, n_keys = q_index.shape[-3], k_index.shape[-2]
    if w.shape != q_index.shape[:-1] or k_index.shape[-1] != q_index.shape[-1] or n_keys < n_queries:
        raise ValueError(f"q_index {tuple(q_index.shape)}, w {tuple(w.shape)}, k_index {tuple(k_index.shape)}")
    precise = torch.float32 if q_index.dtype.itemsize == 2 else q_index.dtype
    best = torch.empty(*w.shape[:-1], 0, dtype=precise)
    tokens = torch.empty(*w.shape[:-1], 0, dtype=torch.int64)
    position = torch.arange(n_keys - n_queries, n_keys)
    for start in range(0, n_keys, 16):  # the best of each query so far, and sixteen more tokens
        k = k_index[..., start : start + 16, :].to(precise)
        scores = torch.zeros(*w.shape[:-1], k.shape[-2], dtype=precise)
        for head in range(w.shape[-1]):
            part = (q_index[..., head, :].to(precise) @ k.mT).relu()
            scores += w[..., head, None].to(precise) * part
        numbers = torch.arange(start, start + k.shape[-2])
        scores.masked_fill_(numbers > position[:, None], -torch.inf)
        best = torch.cat([best, scores], -1)
        tokens = torch.cat([tokens, numbers.expand(scores.shape)], -1)
        order = best.argsort(dim=-1, descending=True, stable=True)[..., :top]
        best, tokens = best.gather(-1, order), tokens.gather(-1, order)
    tokens = tokens.masked_fill(best.isneginf(), n_keys).sort(-1).values
    tokens = torch.nn.functional.pad(tokens, (0, top - tokens.shape[-1]), value=n_keys)
    return tokens.masked_fill(tokens == n_keys, -1)
