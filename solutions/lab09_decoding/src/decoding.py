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
    ### BEGIN SOLUTION
    _check(layers=layers, kv_heads=kv_heads, head_dim=head_dim, dtype_bytes=dtype_bytes)
    _check(0, tokens=tokens, latent_dim=latent_dim, rope_dim=rope_dim)
    if window is not None:
        _check(window=window)
        tokens = min(tokens, window)
    if rope_dim and not latent_dim:
        raise ValueError(f"rope_dim is {rope_dim} without a latent_dim: it is a part of the latent vector")
    numbers = latent_dim + rope_dim if latent_dim else 2 * kv_heads * head_dim
    return layers * numbers * tokens * dtype_bytes
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    n_queries, n_keys, heads = q.shape[-2], k.shape[-2], q.shape[-3]
    group = _group_size(heads, q, k, v)
    rows = q.unflatten(-3, (-1, group)).flatten(-3, -2)  # all queries that read one K are rows of one product
    hidden = None
    if causal:
        hidden = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).triu_(n_keys - n_queries + 1)
    o, lse = _attend(rows, k, v, scale, None if hidden is None else hidden.repeat(group, 1))
    o, lse = (x.unflatten(k.dim() - 2, (group, n_queries)).flatten(k.dim() - 3, k.dim() - 2) for x in (o, lse))
    return o.to(q.dtype), lse
    ### END SOLUTION


class KVCache:
    """The keys and values of one sequence, in a storage that is allocated once; an append writes only its tokens.

    Example:
        cache = KVCache(8, 2, 4, torch.float32); after appending (2, 3, 4) keys and values, len(cache) is 3 and
        cache.keys is (2, 3, 4).
    """

    def __init__(self, max_len: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        """Allocate `max_len` places; ValueError naming an argument below 1."""
        ### BEGIN SOLUTION
        _check(max_len=max_len, kv_heads=kv_heads, head_dim=head_dim)
        self._keys = torch.empty(kv_heads, max_len, head_dim, dtype=dtype)
        self._values = torch.empty_like(self._keys)
        self._length = 0
        ### END SOLUTION

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add n ≥ 0 tokens, k and v (kv_heads, n, head_dim); nothing else is written.

        Raises ValueError, and changes nothing, when there is no space for n more (naming max_len) or when k or v has
        another shape or dtype.
        """
        ### BEGIN SOLUTION
        _check_tokens(self._keys, k, v)
        end = self._length + k.shape[1]
        if end > self._keys.shape[1]:
            raise ValueError(f"{end} tokens do not fit: max_len is {self._keys.shape[1]}")
        self._keys[:, self._length : end] = k
        self._values[:, self._length : end] = v
        self._length = end
        ### END SOLUTION

    @property
    def keys(self) -> torch.Tensor:
        """(kv_heads, len, head_dim): a view, not a copy."""
        ### BEGIN SOLUTION
        return self._keys[:, : self._length]
        ### END SOLUTION

    @property
    def values(self) -> torch.Tensor:
        """(kv_heads, len, head_dim): a view, not a copy."""
        ### BEGIN SOLUTION
        return self._values[:, : self._length]
        ### END SOLUTION

    def __len__(self) -> int:
        """Tokens held."""
        ### BEGIN SOLUTION
        return self._length
        ### END SOLUTION

    def truncate(self, n: int) -> None:
        """Keep the first n tokens; ValueError when there are fewer, or n is below 0."""
        ### BEGIN SOLUTION
        if not 0 <= n <= self._length:
            raise ValueError(f"cannot keep the first {n} tokens of {self._length}")
        self._length = n
        ### END SOLUTION


class RollingKVCache:
    """The keys and values of the last `window` tokens of one sequence: a new token overwrites the oldest.

    Example:
        cache = RollingKVCache(3, 1, 1, torch.float32); after appending tokens 0 to 4, one at a time or at once,
        len(cache) is 3 and cache.keys holds tokens 2, 3 and 4, in this order.
    """

    def __init__(self, window: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        """Allocate `window` places; ValueError naming an argument below 1."""
        ### BEGIN SOLUTION
        _check(window=window, kv_heads=kv_heads, head_dim=head_dim)
        self._keys = torch.empty(kv_heads, window, head_dim, dtype=dtype)
        self._values = torch.empty_like(self._keys)
        self._seen = 0  # tokens appended so far; token t is in place t mod window
        ### END SOLUTION

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add n ≥ 0 tokens, k and v (kv_heads, n, head_dim); of more than `window` only the last are written.

        Raises ValueError, and changes nothing, when k or v has another shape or dtype.
        """
        ### BEGIN SOLUTION
        _check_tokens(self._keys, k, v)
        window, end = self._keys.shape[1], self._seen + k.shape[1]
        first = max(self._seen, end - window)
        places = torch.arange(first, end) % window
        self._keys[:, places] = k[:, first - self._seen :]
        self._values[:, places] = v[:, first - self._seen :]
        self._seen = end
        ### END SOLUTION

    @property
    def keys(self) -> torch.Tensor:
        """(kv_heads, len, head_dim), the oldest token first; a copy where the tokens are in two pieces."""
        ### BEGIN SOLUTION
        return _in_order(self._keys, self._seen)
        ### END SOLUTION

    @property
    def values(self) -> torch.Tensor:
        """(kv_heads, len, head_dim), likewise."""
        ### BEGIN SOLUTION
        return _in_order(self._values, self._seen)
        ### END SOLUTION

    def __len__(self) -> int:
        """Tokens held: those appended, at most `window`."""
        ### BEGIN SOLUTION
        return min(self._seen, self._keys.shape[1])
        ### END SOLUTION

    def truncate(self, n: int) -> None:
        """Keep the first n tokens of the sequence, as long as none has been overwritten.

        Raises ValueError when there are fewer, when n is below 0, and whenever a token has been overwritten: the older
        tokens of the window are gone then.
        """
        ### BEGIN SOLUTION
        if not 0 <= n <= self._seen <= self._keys.shape[1]:
            raise ValueError(f"cannot keep the first {n} of {self._seen} tokens in a window of {self._keys.shape[1]}")
        self._seen = n
        ### END SOLUTION


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
    ### BEGIN SOLUTION
    _check(num_splits=num_splits)
    rows = q.unflatten(-2, (-1, _group_size(q.shape[-2], q, k, v)))  # (..., H_kv, group, d)
    bounds = [k.shape[-2] * split // num_splits for split in range(num_splits + 1)]
    parts = [_attend(rows, k[..., start:end, :], v[..., start:end, :]) for start, end in itertools.pairwise(bounds)]
    o, lse = (torch.stack(each) for each in zip(*parts, strict=True))
    weights, total, lse = _powers(lse, 0)
    o = ((weights / total)[..., None] * o).sum(0)
    return o.flatten(-3, -2).to(q.dtype), lse[0].flatten(-2, -1)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    _check(total_mblocks=total_mblocks, num_sms=num_sms, num_n_blocks=num_n_blocks, max_splits=max_splits)
    efficiency = {}
    for splits in range(1, min(max_splits, num_sms, num_n_blocks) + 1):
        if splits == 1 or -(-num_n_blocks // splits) < -(-num_n_blocks // (splits - 1)):
            work = total_mblocks * splits
            efficiency[splits] = work / num_sms / -(-work // num_sms)
    best = max(efficiency.values())
    return next(splits for splits, each in efficiency.items() if each >= 0.85 * best)
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        _check(num_blocks=num_blocks, block_size=block_size)
        self._size, self._pool = block_size, _Pool(num_blocks, block_size)
        self._tokens: dict[object, list[int]] = {}
        self._tables: dict[object, list[int]] = {}
        self._cached: dict[object, int] = {}
        ### END SOLUTION

    def can_allocate(self, token_ids: list[int]) -> bool:
        """Whether `allocate` would find enough blocks; a block shared with a live sequence needs no new one."""
        ### BEGIN SOLUTION
        return self._pool.missing(token_ids) <= 0
        ### END SOLUTION

    def allocate(self, seq_id: object, token_ids: list[int]) -> list[int]:
        """Give a new sequence, a prompt of at least one token, its blocks: ⌈tokens / block_size⌉, in order.

        From its start on, existing full blocks are shared, as many as can be found, but never the last token's:
        something must be left to compute. Raises RuntimeError, naming the number of missing blocks, and changes
        nothing, when there are too few; ValueError when token_ids is empty.
        """
        ### BEGIN SOLUTION
        if seq_id in self._tables or not token_ids:
            raise ValueError(f"sequence {seq_id!r} is there already, or is empty")
        if (missing := self._pool.missing(token_ids)) > 0:
            raise RuntimeError(f"{missing} blocks are missing for sequence {seq_id!r}")
        shared = self._pool.find(token_ids)
        for block in shared:  # before any other is taken, which might be one of these
            self._pool.share(block)
        table = shared + [self._pool.take() for _ in range(-(-len(token_ids) // self._size) - len(shared))]
        self._tables[seq_id], self._tokens[seq_id] = table, list(token_ids)
        self._cached[seq_id] = len(shared) * self._size
        self._pool.name(table, token_ids)
        return list(table)
        ### END SOLUTION

    def append(self, seq_id: object, token_id: int) -> tuple[int, int] | None:
        """Add one token, and allocate a block if there is no place for it.

        A block that others own too is not written: the sequence gets a block of its own instead. Returns (old, new)
        when the caller has to copy block old to block new before writing, else None. Raises RuntimeError, and changes
        nothing, when a block is needed and none is free.
        """
        ### BEGIN SOLUTION
        table, tokens, copy = _known(self._tables, seq_id), self._tokens[seq_id], None
        if len(tokens) % self._size == 0:
            table.append(self._pool.take())
        elif self._pool.owners[table[-1]] > 1:
            copy = (table[-1], self._pool.take())
            self._pool.give_up(copy[0])
            table[-1] = copy[1]
        tokens.append(token_id)
        if len(tokens) % self._size == 0:
            self._pool.name(table, tokens)
        return copy
        ### END SOLUTION

    def fork(self, parent: object, child: object) -> None:
        """Make a new sequence with the tokens of `parent` that shares all its blocks, the last one too."""
        ### BEGIN SOLUTION
        table = _known(self._tables, parent)
        if child in self._tables:
            raise ValueError(f"sequence {child!r} is there already")
        for block in table:
            self._pool.share(block)
        self._tables[child], self._tokens[child] = list(table), list(self._tokens[parent])
        self._cached[child] = len(self._tokens[parent])
        ### END SOLUTION

    def free(self, seq_id: object) -> None:
        """Forget a sequence; blocks without another owner are free, and can be found until they are reused."""
        ### BEGIN SOLUTION
        table = _known(self._tables, seq_id)
        del self._tables[seq_id], self._tokens[seq_id], self._cached[seq_id]
        for block in reversed(table):
            self._pool.give_up(block)
        ### END SOLUTION

    def block_table(self, seq_id: object) -> list[int]:
        """The blocks of a sequence, in order, as a new list."""
        ### BEGIN SOLUTION
        return list(_known(self._tables, seq_id))
        ### END SOLUTION

    def num_cached_tokens(self, seq_id: object) -> int:
        """The tokens that a sequence found when it was allocated, in shared blocks; for a fork, all of its parent's."""
        ### BEGIN SOLUTION
        return _known(self._cached, seq_id)
        ### END SOLUTION

    def num_free_blocks(self) -> int:
        """Blocks that belong to no sequence."""
        ### BEGIN SOLUTION
        return len(self._pool.free)
        ### END SOLUTION


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
    ### BEGIN SOLUTION
    block_size, lengths = k_cache.shape[1], [int(n) for n in context_lens]
    group = _group_size(q.shape[-2], q, k_cache.transpose(1, 2), v_cache.transpose(1, 2))
    if max(lengths, default=0) > block_table.shape[1] * block_size:
        raise ValueError(f"context_lens {lengths} do not fit into {block_table.shape[1]} blocks a row")
    o = q.new_zeros(*q.shape[:-1], v_cache.shape[-1])
    for sequence, length in enumerate(lengths):
        blocks = block_table[sequence, : -(-length // block_size)]
        k, v = (cache[blocks].flatten(0, 1)[:length].transpose(0, 1) for cache in (k_cache, v_cache))
        part, _ = _attend(q[sequence].unflatten(0, (-1, group)), k, v)
        o[sequence] = part.flatten(0, 1).to(q.dtype)
    return o
    ### END SOLUTION


### BEGIN SOLUTION
import itertools  # noqa: E402
from collections import OrderedDict  # noqa: E402


def _in_order(storage, seen):
    """The last tokens of a rolling storage, the oldest first."""
    window = storage.shape[1]
    seam = seen % window
    if seen <= window or seam == 0:
        return storage[:, : min(seen, window)]
    return torch.cat([storage[:, seam:], storage[:, :seam]], dim=1)


class _Pool:
    """Blocks: how many sequences own each, in which order free ones are taken, and the contents of full ones.

    The content of a full block has a number that is never used again. Its key is the number of the content before it
    and its own tokens, so equal keys mean equal prefixes.
    """

    def __init__(self, num_blocks, block_size):
        self.size, self.owners = block_size, [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))  # the next to be taken first
        self.block_of, self.key_of, self.number_of = {}, {}, {}
        self.numbers = itertools.count(1)

    def find(self, token_ids):
        """The blocks that already hold the beginning of `token_ids`, without the last token's."""
        found, number = [], 0
        for end in range(self.size, len(token_ids), self.size):
            block = self.block_of.get((number, tuple(token_ids[end - self.size : end])))
            if block is None:
                break
            found.append(block)
            number = self.number_of[block]
        return found

    def missing(self, token_ids):
        """How many more free blocks are needed."""
        in_use = sum(self.owners[block] > 0 for block in self.find(token_ids))
        return -(-len(token_ids) // self.size) - in_use - len(self.free)

    def take(self):
        """Take a free block and forget its content."""
        if not self.free:
            raise RuntimeError("no block is free")
        block, _ = self.free.popitem(last=False)
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)], self.number_of[block]
        self.owners[block] = 1
        return block

    def share(self, block):
        """Add an owner."""
        self.free.pop(block, None)
        self.owners[block] += 1

    def give_up(self, block):
        """Remove an owner; a block without owners is free, and keeps its content."""
        self.owners[block] -= 1
        if self.owners[block] == 0:
            self.free[block] = None

    def name(self, table, tokens):
        """Make the full blocks of a table findable, unless a block with the same content is findable already."""
        number = 0
        for place, block in enumerate(table[: len(tokens) // self.size]):
            key = (number, tuple(tokens[place * self.size : (place + 1) * self.size]))
            if key not in self.block_of:
                self.block_of[key], self.key_of[block], self.number_of[block] = block, key, next(self.numbers)
            number = self.number_of[self.block_of[key]]


def _known(table, seq_id):
    if seq_id not in table:
        raise ValueError(f"there is no sequence {seq_id!r}")
    return table[seq_id]


def _attend(rows, k, v, scale=None, hidden=None):
    """Attention of rows (..., n, d) over k (..., N, d), in float32 at least: o (..., n, d_v) and lse (..., n)."""
    precise = torch.float32 if rows.dtype.itemsize == 2 else rows.dtype
    scale = rows.shape[-1] ** -0.5 if scale is None else scale
    scores = (scale * rows.to(precise)) @ k.to(precise).mT
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    weights, total, lse = _powers(scores, -1)
    return weights @ v.to(precise) / total, lse.squeeze(-1)


def _powers(scores, axis):
    """exp(score − largest), written over the scores, their sum (1 where nothing is seen), and the log-sum-exp."""
    fixed = scores.detach()  # neither result depends on the largest score, and so no gradient needs it
    top = fixed.amax(axis, keepdim=True) if fixed.shape[axis] else fixed.sum(axis, keepdim=True) - torch.inf
    weights = scores.sub_(top.masked_fill(top.isneginf(), 0)).exp_()
    total = weights.sum(axis, keepdim=True)
    return weights, total.masked_fill(total == 0, 1), top + total.log()


def _group_size(heads, q, k, v):
    """How many query heads read one key head."""
    kv_heads = k.shape[-3]
    if heads % kv_heads:
        raise ValueError(f"H_q = {heads} query heads cannot share H_kv = {kv_heads} key heads evenly")
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    return heads // kv_heads


def _check(least=1, **numbers):
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")


def _check_tokens(storage, k, v):
    shape = (storage.shape[0], k.shape[1] if k.dim() == 3 else 0, storage.shape[2])
    for name, x in (("k", k), ("v", v)):
        if tuple(x.shape) != shape or x.dtype != storage.dtype:
            raise ValueError(f"{name} must be {shape} of {storage.dtype}, got {tuple(x.shape)} of {x.dtype}")


### END SOLUTION
