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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()
