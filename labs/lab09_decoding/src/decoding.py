"""Lab 09: generating a token at a time from a cache of keys and values: grouped, split and paged."""

import torch


def kv_cache_bytes(
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokens: int = 1,
    dtype_bytes: int = 2,
    window: int | None = None,
    latent_dim: int = 0,
    rope_dim: int = 0,
) -> int:
    """The exact bytes that a model caches for one sequence; by default for one token, with two bytes per number.

    Each layer keeps a key and a value of `head_dim` numbers for each of its key heads. With a `window` it keeps at most
    the last `window` tokens. With `latent_dim` it keeps, instead of keys and values, one vector of latent_dim +
    rope_dim numbers per token, which all heads share: `kv_heads` and `head_dim` then do not count.

    Raises:
        ValueError: naming the argument: `tokens`, `latent_dim` or `rope_dim` below 0, any other below 1, `rope_dim`
            without `latent_dim`.

    Example:
        2 layers, 3 key heads of 4 numbers: 2 · 2 · 3 · 4 · 2 bytes = 96 per token.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def grouped_query_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention whose query heads share key heads: head h of H_q reads key head h // (H_q / H_kv).

    Args:
        q: queries, (..., H_q, N_q, d).
        k: keys, (..., H_kv, N_k, d), with q's leading axes and dtype. They are never expanded to H_q heads.
        v: values, (..., H_kv, N_k, d_v).
        causal: query i sees key j when j ≤ i + N_k − N_q: aligned at the bottom right, the last query sees the last
            key. Labs 04 to 08 count from the top left.
        scale: factor of the scores, 1/√d if None.

    Returns:
        (o, lse): o (..., H_q, N_q, d_v) in q's dtype, lse (..., H_q, N_q), the natural log-sum-exp, float32 for
        half-precision inputs, whose sums are kept in it, else q's dtype. A query that sees no key: 0 and −inf.

    Raises:
        ValueError: naming H_q and H_kv, when H_q is not a multiple of H_kv; both shapes, when k and v differ in more
            than their width, or q and k in d.

    Example:
        H_q = 2, H_kv = 1, q = [[[1]], [[1]]], k = [[[0], [0]]], v = [[[2], [4]]]: o = [[[3]], [[3]]], lse = log 2.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


class KVCache:
    """The keys and values of one sequence, in a storage that is allocated once; an append writes only its tokens.

    Example:
        cache = KVCache(8, 2, 4, torch.float32); after appending (2, 3, 4) keys and values, len(cache) is 3 and
        cache.keys is (2, 3, 4).
    """

    def __init__(self, max_len: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        """Allocate `max_len` places; ValueError naming an argument below 1."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add n ≥ 0 tokens, k and v (kv_heads, n, head_dim); nothing else is written.

        Raises ValueError, and changes nothing, when there is no space for n more (naming max_len) or when k or v has
        another shape or dtype.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    @property
    def keys(self) -> torch.Tensor:
        """(kv_heads, len, head_dim): a view, not a copy."""
        # YOUR CODE HERE
        raise NotImplementedError()

    @property
    def values(self) -> torch.Tensor:
        """(kv_heads, len, head_dim): a view, not a copy."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def __len__(self) -> int:
        """Tokens held."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def truncate(self, n: int) -> None:
        """Keep the first n tokens; ValueError when there are fewer, or n is below 0."""
        # YOUR CODE HERE
        raise NotImplementedError()


class RollingKVCache:
    """The keys and values of the last `window` tokens of one sequence: a new token overwrites the oldest.

    Example:
        cache = RollingKVCache(3, 1, 1, torch.float32); after appending tokens 0 to 4, one at a time or at once,
        len(cache) is 3 and cache.keys holds tokens 2, 3 and 4, in this order.
    """

    def __init__(self, window: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        """Allocate `window` places; ValueError naming an argument below 1."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add n ≥ 0 tokens, k and v (kv_heads, n, head_dim); of more than `window` only the last are written.

        Raises ValueError, and changes nothing, when k or v has another shape or dtype.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    @property
    def keys(self) -> torch.Tensor:
        """(kv_heads, len, head_dim), the oldest token first; a copy where the tokens are in two pieces."""
        # YOUR CODE HERE
        raise NotImplementedError()

    @property
    def values(self) -> torch.Tensor:
        """(kv_heads, len, head_dim), likewise."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def __len__(self) -> int:
        """Tokens held: those appended, at most `window`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def truncate(self, n: int) -> None:
        """Keep the first n tokens of the sequence, as long as none has been overwritten.

        Raises ValueError when there are fewer, when n is below 0, and whenever a token has been overwritten: the older
        tokens of the window are gone then.
        """
        # YOUR CODE HERE
        raise NotImplementedError()


def split_kv_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query per head over keys in `num_splits` parts, which could be computed in parallel and are then merged.

    The parts are runs of neighbouring keys, as equal as possible: none is longer than ⌈N_k / num_splits⌉, and with
    more splits than keys some are empty. Each gives a partial output and a log-sum-exp. Heads are grouped as above.

    Args:
        q: one query per head, (..., H_q, d).
        k: keys, (..., H_kv, N_k, d); N_k may be 0. Each is read once, and neither k nor v is copied.
        v: values, (..., H_kv, N_k, d_v).
        num_splits: at least 1.

    Returns:
        (o, lse): (..., H_q, d_v) and (..., H_q), dtypes as of `grouped_query_attention`; without a key 0 and −inf.

    Raises:
        ValueError: naming num_splits, when it is below 1; for shapes, as `grouped_query_attention`.

    Example:
        Two splits with the partial outputs 2 and 5 and log-sum-exps 0 and log 2: o = (1 · 2 + 2 · 5) / 3 = 4, lse =
        log 3.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def num_splits_heuristic(total_mblocks: int, num_sms: int, num_n_blocks: int, max_splits: int = 128) -> int:
    """How many splits keep a GPU's multiprocessors busy.

    With s splits there are total_mblocks · s pieces of work, num_sms at a time: ⌈total_mblocks · s / num_sms⌉ waves,
    of which total_mblocks · s / num_sms are filled. Their ratio is the efficiency of s. Only those s count that are at
    most max_splits, num_sms and num_n_blocks, and, from 2 on, that leave a split fewer blocks of keys,
    ⌈num_n_blocks / s⌉, than s − 1 does. The result is the smallest s whose efficiency is at least 0.85 times the best.

    Args:
        total_mblocks: pieces of work without splitting: batch · key heads · blocks of queries.
        num_sms: multiprocessors.
        num_n_blocks: blocks of keys, which a split takes whole.
        max_splits: the most splits allowed.

    Raises:
        ValueError: naming the argument that is below 1.

    Example:
        48 pieces, 108 multiprocessors, 64 blocks: the efficiency of 1 split is 0.44, of 2 0.89, of 3 0.67, of 64 0.98,
        the best: the result is 2.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


class BlockManager:
    """Allocates the blocks of a paged cache: a table for each sequence, with blocks shared where sequences begin alike.

    It holds no keys or values, only which sequences own which block of `block_size` places. A full block with the same
    tokens after the same prefix is shared, even after its owners have gone, until it is reused. Free blocks are
    taken in the order in which they became free (at first 0, 1, 2, …), the blocks of one freed sequence from its last
    to its first.

    Every method raises ValueError, naming the sequence, for an unknown seq_id, or for a new one that is taken.

    Example:
        m = BlockManager(4, 2); m.allocate("a", [5, 6, 7]) is [0, 1]; m.allocate("b", [5, 6, 8]) is [0, 2], and
        m.num_cached_tokens("b") is 2: the block with 5 and 6 is shared.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """All blocks are free; ValueError naming an argument below 1."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def can_allocate(self, token_ids: list[int]) -> bool:
        """Whether `allocate` would find enough blocks; a block shared with a live sequence needs no new one."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def allocate(self, seq_id: object, token_ids: list[int]) -> list[int]:
        """Give a new sequence, a prompt of at least one token, its blocks: ⌈tokens / block_size⌉, in order.

        From its start on, existing full blocks are shared, as many as can be found, but never the last token's:
        something must be left to compute. Raises RuntimeError, naming the number of missing blocks, and changes
        nothing, when there are too few; ValueError when token_ids is empty.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def append(self, seq_id: object, token_id: int) -> tuple[int, int] | None:
        """Add one token, and allocate a block if there is no place for it.

        A block that others own too is not written: the sequence gets a block of its own instead. Returns (old, new)
        when the caller has to copy block old to block new before writing, else None. Raises RuntimeError, and changes
        nothing, when a block is needed and none is free.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def fork(self, parent: object, child: object) -> None:
        """Make a new sequence with the tokens of `parent` that shares all its blocks, the last one too."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def free(self, seq_id: object) -> None:
        """Forget a sequence; blocks without another owner are free, and can be found until they are reused."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def block_table(self, seq_id: object) -> list[int]:
        """The blocks of a sequence, in order, as a new list."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def num_cached_tokens(self, seq_id: object) -> int:
        """The tokens that a sequence found when it was allocated, in shared blocks; for a fork, all of its parent's."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def num_free_blocks(self) -> int:
        """Blocks that belong to no sequence."""
        # YOUR CODE HERE
        raise NotImplementedError()


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, context_lens: torch.Tensor
) -> torch.Tensor:
    """One query per head for each sequence of a batch, whose keys and values are in blocks that a table names.

    Token t of sequence b is at place t % block_size of block block_table[b, t // block_size]. Heads are grouped as
    above, the scale is 1/√d.

    Args:
        q: (batch, H_q, d).
        k_cache: (num_blocks, block_size, H_kv, d). A block that no sequence owns may hold anything, even NaN; places
            after a sequence's last token hold numbers of earlier owners. Only the blocks with tokens of the context are
            read, each once, and a copy is at most about as large as one sequence's share.
        v_cache: (num_blocks, block_size, H_kv, d_v).
        block_table: (batch, max_blocks), integers; −1 after a sequence's last block.
        context_lens: (batch,), integers: the number of tokens of each sequence, 0 allowed.

    Returns:
        (batch, H_q, d_v) in q's dtype; 0 for a sequence without tokens.

    Raises:
        ValueError: naming H_q and H_kv, when H_q is not a multiple of H_kv; naming context_lens, when one exceeds the
            places in its row of the table.

    Example:
        Blocks of 2, one head, all keys 0, values 1 to 8 in order: table [[2, 0, -1]], context 3: the values are 5, 6
        and 1, and o is 4.
    """
    # YOUR CODE HERE
    raise NotImplementedError()
