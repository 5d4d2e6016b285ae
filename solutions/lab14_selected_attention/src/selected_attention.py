"""Lab 14: attention that chooses what it reads: pages by bounds, blocks by means, tokens by an indexer."""

import torch

METHODS = ("whole", "window", "quest", "moba", "dsa")


def page_bounds(K: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest number of each channel among the keys of each page (Quest, Tang et al. 2024).

    Page p contains the keys p · page to (p + 1) · page − 1. The last page contains what is left, and only that.

    Args:
        K: (..., N, d); N may be 0.
        page: keys per page, at least 1.

    Returns:
        (lows, highs), each (..., ⌈N / page⌉, d), in K's dtype.

    Raises:
        ValueError: naming page, if it is below 1.

    Example:
        The keys (1, −2), (3, −5), (−4, −1) in pages of 2: lows (1, −5) and (−4, −1), highs (3, −2) and (−4, −1).
    """
    ### BEGIN SOLUTION
    if page < 1:
        raise ValueError(f"page must be at least 1, got {page}")
    n_full = K.shape[-2] // page
    full = K[..., : n_full * page, :].unflatten(-2, (n_full, page))
    rest = K[..., n_full * page :, :]
    lows, highs = full.amin(-2), full.amax(-2)
    if rest.shape[-2]:
        lows = torch.cat([lows, rest.amin(-2, keepdim=True)], -2)
        highs = torch.cat([highs, rest.amax(-2, keepdim=True)], -2)
    return lows, highs
    ### END SOLUTION


def page_scores(q: torch.Tensor, lows: torch.Tensor, highs: torch.Tensor) -> torch.Tensor:
    """Quest's score of each page for each query head: no key of the page has a larger product with the query.

    score[h, p] = Σ_c max(q[h, c] · low[p, c], q[h, c] · high[p, c]), with the bounds of the key head that query head h
    reads. Scores are not scaled.

    Args:
        q: one query per head, (..., H_q, d).
        lows, highs: (..., H_kv, P, d); query head h reads key head h // (H_q / H_kv).

    Returns:
        (..., H_q, P), in float32 for half-precision inputs and in their own dtype otherwise.

    Raises:
        ValueError: naming H_q and H_kv if H_q is no multiple of H_kv; naming both shapes if lows and highs differ.

    Example:
        q = (2, −1), lows (1, −5), highs (3, −2): max(2, 6) + max(5, 2) = 11. The largest product of a key (1, −2),
        (3, −5) with q is 11 as well.
    """
    ### BEGIN SOLUTION
    if lows.shape != highs.shape:
        raise ValueError(f"lows {tuple(lows.shape)} and highs {tuple(highs.shape)} differ")
    kv_heads, precise = lows.shape[-3], _precise(q)
    grouped = q.to(precise).unflatten(-2, (kv_heads, _group(q.shape[-2], kv_heads)))
    # max(q · low, q · high) is q · high where q ≥ 0 and q · low elsewhere: two products, nothing of width d per page
    scores = grouped.clamp(min=0) @ highs.to(precise).mT
    scores += grouped.clamp(max=0) @ lows.to(precise).mT
    return scores.flatten(-3, -2)
    ### END SOLUTION


def select_pages(scores: torch.Tensor, kv_heads: int, budget: int, current: int) -> torch.Tensor:
    """The pages that each key head reads: one choice for all query heads of its group.

    Page 0 and page `current`, which is being written, are always among them. Of the pages between, those with the best
    scores are taken, where a group's score of a page is the largest of its query heads' scores. Of pages with equal
    scores the lower number comes first. Pages after `current` do not exist yet: their scores may be anything.

    Args:
        scores: (..., H_q, P), any numbers but NaN for pages up to `current`.
        kv_heads: H_kv.
        budget: pages per key head, at least 2.
        current: the page being written, from 0 to P − 1.

    Returns:
        (..., H_kv, min(budget, current + 1)), int64, in ascending order.

    Raises:
        ValueError: naming budget below 2, current outside of 0 to P − 1, or H_q and H_kv that do not fit.

    Example:
        scores (9, 1, 5, 5, 2) and (0, 1, 4, 6, 2) of two query heads on one key head, budget 3, current 4: the group's
        scores are 9, 1, 5, 6, 2, and the pages are 0, 3, 4.
    """
    ### BEGIN SOLUTION
    if budget < 2:
        raise ValueError(f"budget must be at least 2, for the first and the current page; got {budget}")
    if not 0 <= current < scores.shape[-1]:
        raise ValueError(f"current is {current}, and there are {scores.shape[-1]} pages")
    _group(scores.shape[-2], kv_heads)
    best = scores[..., : current + 1].unflatten(-2, (kv_heads, -1)).amax(-2)
    numbers = torch.arange(current + 1, device=scores.device).expand(best.shape)
    if current < budget:
        return numbers.contiguous()
    order = best[..., 1:current].sort(dim=-1, descending=True, stable=True).indices + 1
    always = numbers[..., [0, current]]
    return torch.cat([always, order[..., : budget - 2]], -1).sort(-1).values
    ### END SOLUTION


def selected_decode(
    q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, pages: torch.Tensor, page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact attention of one query per head over the tokens of the chosen pages, and over nothing else.

    Args:
        q: (..., H_q, d).
        K: (..., H_kv, N, d). V: (..., H_kv, N, d_v). Query head h reads key head h // (H_q / H_kv).
        pages: (..., H_kv, n), int64, the pages of each key head, ascending, none twice; n may be 0.
        page: tokens per page; the last page of the cache ends with token N − 1.

    Returns:
        (o, lse): o (..., H_q, d_v) in q's dtype, and the natural log-sum-exp (..., H_q) of the scaled scores, float32
        for half-precision inputs. Without a page o is 0 and lse −inf.

    Raises:
        ValueError: naming pages, if there is no page of that number; page below 1; H_q and H_kv that do not fit.

    Example:
        Pages of 2, five tokens, pages (0, 2): tokens 0, 1 and 4. With K = 0 and V = 1, 2, 3, 4, 5, o = 8/3, lse = ln 3.
    """
    ### BEGIN SOLUTION
    if page < 1:
        raise ValueError(f"page must be at least 1, got {page}")
    kv_heads, n_tokens, precise = K.shape[-3], K.shape[-2], _precise(q)
    group = _group(q.shape[-2], kv_heads)
    n_pages = -(-n_tokens // page)
    if pages.numel() and (int(pages.min()) < 0 or int(pages.max()) >= n_pages):
        raise ValueError(f"pages has a number outside of 0 to {n_pages - 1}")
    tokens = (pages[..., None] * page + torch.arange(page, device=K.device)).flatten(-2)
    places = tokens.clamp(max=n_tokens - 1)[..., None]
    keys, values = (x.gather(-2, places.expand(*places.shape[:-1], x.shape[-1])).to(precise) for x in (K, V))
    scores = q.to(precise).unflatten(-2, (kv_heads, group)) @ keys.mT * q.shape[-1] ** -0.5
    scores.masked_fill_((tokens >= n_tokens)[..., None, :], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse.isneginf(), 0)[..., None]).exp()
    return (weights @ values).flatten(-3, -2).to(q.dtype), lse.flatten(-2)
    ### END SOLUTION


def block_sparse_attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, block: int, top: int) -> torch.Tensor:
    """Causal attention of a prompt in which each query reads its own block and the `top` best blocks before it (MoBA).

    Block b contains tokens b · block to (b + 1) · block − 1. The score of a block for a query is the product of the
    query and the mean of the block's keys. Of blocks with equal scores the lower number comes first. A query reads all
    tokens of the chosen blocks, and of its own block the tokens up to itself. The own block is not one of the `top`. A
    query with at most `top` blocks before its own reads them all. Gradients flow through the attention; the choice has
    none.

    Args:
        Q, K: (..., N, d). V: (..., N, d_v).
        block: tokens per block, at least 1. top: blocks before the own one, at least 0.

    Returns:
        O (..., N, d_v), in Q's dtype; half-precision inputs are summed and averaged in float32.

    Raises:
        ValueError: naming block below 1 or top below 0; naming both shapes, if Q and K differ in N or d, or K and V in
            N.

    Example:
        d = 1, blocks of 1, top 1, K = 1, 3, 2, and Q = 0, 0, 1: query 2 reads token 1, whose key is larger, and itself.
        With V = 1, 2, 4 and scores 3 and 2, O[2] = (2e + 4) / (e + 1) = 2.538.
    """
    ### BEGIN SOLUTION
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if top < 0:
        raise ValueError(f"top must be at least 0, got {top}")
    if Q.shape != K.shape or K.shape[:-1] != V.shape[:-1]:
        raise ValueError(f"Q {tuple(Q.shape)}, K {tuple(K.shape)} and V {tuple(V.shape)} do not fit")
    precise, scale, n_tokens = _precise(Q), Q.shape[-1] ** -0.5, Q.shape[-2]
    n_full = n_tokens // block
    full = [x[..., : n_full * block, :].unflatten(-2, (n_full, block)) for x in (K, V)]
    means = full[0].detach().to(precise).mean(-2)
    made = [V[..., :0, :].to(precise)]
    for b, start in enumerate(range(0, n_tokens, block)):
        q, k, v = (x[..., start : start + block, :].to(precise) for x in (Q, K, V))
        gate = q.detach() @ means[..., :b, :].mT
        chosen = gate.sort(dim=-1, descending=True, stable=True).indices[..., :top]
        own = (q @ k.mT).masked_fill(torch.ones(k.shape[-2], k.shape[-2], dtype=torch.bool).triu(1), -torch.inf)
        keys, values = (_blocks(x, chosen).to(precise) for x in full)
        far = (q[..., None, :] @ keys.mT).squeeze(-2)
        weights = torch.softmax(scale * torch.cat([far, own], -1), -1)
        n_far = far.shape[-1]
        made.append((weights[..., None, :n_far] @ values).squeeze(-2) + weights[..., n_far:] @ v)
    return torch.cat(made, -2).to(Q.dtype)
    ### END SOLUTION


def index_top_tokens(q_index: torch.Tensor, w: torch.Tensor, k_index: torch.Tensor, top: int) -> torch.Tensor:
    """The tokens that each query reads, by the indexer of DeepSeek-V3.2 (equation 1 of its report).

    I[t, s] = Σ_j w[t, j] · ReLU(q_index[t, j] · k_index[s]), without a scale. The last query is at the last token:
    query t is at position t + N_k − N_q and chooses among the tokens up to its own. Of tokens with equal scores the
    lower number comes first.

    Args:
        q_index: (..., N_q, H, d), the H heads of the indexer. w: (..., N_q, H), of any sign.
        k_index: (..., N_k, d), one key per token for all heads; N_k ≥ N_q.
        top: tokens per query, at least 1.

    Returns:
        (..., N_q, top), int64: token numbers in ascending order, then −1 where fewer than `top` tokens are visible.
        Half-precision inputs are multiplied and summed in float32.

    Raises:
        ValueError: naming top below 1; naming both shapes if w does not fit q_index, or k_index has another d or fewer
            tokens than q_index.

    Example:
        H = 1, q_index = 1, w = 1, k_index = 3, −1, 2, one query, top 2: the scores are 3, 0 and 2, the tokens 0 and 2.
        With w = −1 they are −3, 0 and −2, the tokens 1 and 2.
    """
    ### BEGIN SOLUTION
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    (n_queries, heads, d), n_keys = q_index.shape[-3:], k_index.shape[-2]
    if w.shape != q_index.shape[:-1]:
        raise ValueError(f"w {tuple(w.shape)} does not fit q_index {tuple(q_index.shape)}")
    if k_index.shape[-1] != d or n_keys < n_queries:
        raise ValueError(f"k_index {tuple(k_index.shape)} does not fit q_index {tuple(q_index.shape)}")
    precise = _precise(q_index)
    keys, numbers = k_index.to(precise).mT, torch.arange(n_keys, device=q_index.device)
    chosen = torch.full((*w.shape[:-1], top), -1, dtype=torch.int64, device=q_index.device)
    for start in range(0, n_queries, _QUERIES_AT_ONCE):
        rows = slice(start, min(start + _QUERIES_AT_ONCE, n_queries))
        some = q_index[..., rows, :, :].to(precise)
        each = (some.flatten(-3, -2) @ keys).relu_().unflatten(-2, (some.shape[-3], heads))
        scores = (each * w[..., rows, :, None].to(precise)).sum(-2)
        unseen = numbers > numbers[rows, None] + n_keys - n_queries
        order = scores.masked_fill_(unseen, -torch.inf).sort(dim=-1, descending=True, stable=True).indices[..., :top]
        order = torch.where(unseen.expand(scores.shape).gather(-1, order), n_keys, order).sort(-1).values
        chosen[..., rows, : order.shape[-1]] = order.masked_fill(order == n_keys, -1)
    return chosen
    ### END SOLUTION


def selection_bytes(
    method: str,
    tokens: int,
    token_bytes: int,
    window: int = 0,
    sinks: int = 0,
    page: int = 64,
    budget: int = 0,
    index_bytes: int = 0,
) -> tuple[int, int]:
    """Bytes of one layer's cache: stored for `tokens` tokens, and read by the attention of the last of them.

    "whole" stores and reads every token. "window" stores and reads the first `sinks` tokens and the last `window`.
    "quest" also stores two bounds per page, part-filled or not, reads all bounds, and then min(budget, pages) pages,
    the last one, which may be part-filled, among them. "moba" also stores a mean for each page before the last, reads
    all means, then min(budget, those) of these pages, and the last page. "dsa" also stores an index key of
    `index_bytes` for each token, reads all of them, and then min(budget, tokens) tokens.

    Args:
        method: one of METHODS.
        tokens: at least 1, the one that is being made among them.
        token_bytes: key and value of one token in all key heads, of equal size: a bound or a mean is half of it.
        budget: pages for "quest" and "moba", tokens for "dsa".

    Returns:
        (stored, read), ints.

    Raises:
        ValueError: naming an unknown method; naming tokens below 1.

    Example:
        100 tokens of 512 bytes. "quest" in pages of 16 with a budget of 3: 7 pages, the last with 4 tokens. Stored
        100 · 512 + 7 · 512 = 54,784; read 7 · 512 + (16 + 16 + 4) · 512 = 22,016.
    """
    ### BEGIN SOLUTION
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    before = (tokens - 1) // page  # pages before the one with the last token
    last = tokens - before * page
    extra, n_read = 0, tokens
    if method == "window":
        tokens = n_read = min(tokens, window + sinks)
    elif method == "quest":
        extra = (before + 1) * token_bytes
        n_read = max(0, min(budget - 1, before)) * page + last
    elif method == "moba":
        extra = before * token_bytes // 2
        n_read = min(budget, before) * page + last
    elif method == "dsa":
        extra = tokens * index_bytes
        n_read = min(budget, tokens)
    return tokens * token_bytes + extra, extra + n_read * token_bytes
    ### END SOLUTION


### BEGIN SOLUTION
_QUERIES_AT_ONCE = 16


def _precise(x: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.dtype.itemsize == 2 else x.dtype


def _group(q_heads: int, kv_heads: int) -> int:
    if kv_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"H_q = {q_heads} is no multiple of H_kv = {kv_heads}")
    return q_heads // kv_heads


def _blocks(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Of x (..., n, block, width), for each query the tokens of its blocks, (..., queries, top · block, width)."""
    n_queries, top = chosen.shape[-2:]
    picked = chosen.flatten(-2)[..., None, None].expand(*chosen.shape[:-2], n_queries * top, *x.shape[-2:])
    return x.gather(-3, picked).unflatten(-3, (n_queries, top)).flatten(-3, -2)


### END SOLUTION
