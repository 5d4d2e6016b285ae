"""Lab 13: a server under a memory budget: its blocks, its compressed cache, its scheduler, and all of them together."""

import torch

Spec = dict[str, int]
"""A model: "layers", "heads" (of queries), "kv_heads", "head_dim" and "vocab"."""


def cache_plan(spec: Spec, nbytes: int, block_size: int, bits: int) -> int:
    """How many blocks of `block_size` tokens fit into `nbytes` bytes, with `bits` bits per number.

    A token has a key and a value for each layer and key head, vectors of head_dim numbers. With 2, 4 or 8 bits each
    vector takes head_dim · bits / 8 bytes for its codes and 4 for a scale and a zero, both float16; with 32 bits it is
    stored unchanged, 4 bytes per number.

    Raises:
        ValueError: naming `bits`, when it is not 2, 4, 8 or 32, or when a vector's codes do not fill whole bytes;
            naming `block_size`, when it is below 1; naming `nbytes`, when not even one block fits.

    Example:
        2 layers, 2 key heads of 16 numbers, 8 bits: 2 · 2 · 2 · (16 + 4) = 160 bytes per token, and 31 blocks of 8
        tokens in 40,000 bytes.
    """
    ### BEGIN SOLUTION
    width = spec["head_dim"]
    if bits not in (2, 4, 8, 32) or width * bits % 8:
        raise ValueError(f"bits must be 2, 4, 8 or 32, and fill whole bytes with {width} numbers; got {bits}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    vector = width * bits // 8 + (4 if bits <= 8 else 0)
    block = block_size * 2 * spec["layers"] * spec["kv_heads"] * vector
    if nbytes < block:
        raise ValueError(f"nbytes, {nbytes}, are too few for one block of {block} bytes")
    return nbytes // block
    ### END SOLUTION


class BlockManager:
    """Allocates the blocks of a paged cache, as in Lab 09, whose class may replace this one.

    A full block with the same tokens after the same prefix is shared, even after its owners have gone, until it is
    reused. Free blocks are taken in the order in which they became free (at first 0, 1, 2, …), the blocks of one freed
    sequence from its last to its first. Every method raises ValueError, naming the sequence, for an unknown seq_id, or
    for a new one that is taken.

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

        From its start on, existing full blocks are shared, as many as can be found, but never the last token's.
        Raises RuntimeError, and changes nothing, when there are too few; ValueError when token_ids is empty.
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


class PlainBlocks:
    """The course's own blocks, with the methods of `BlockManager`; only a fork shares any: see `BLOCKS`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """All blocks are free."""
        self._size, self._free = block_size, list(range(num_blocks))
        self._tables: dict[object, list[int]] = {}
        self._lengths: dict[object, int] = {}

    def can_allocate(self, token_ids: list[int]) -> bool:
        """Whether there are enough free blocks."""
        return -(-len(token_ids) // self._size) <= len(self._free)

    def allocate(self, seq_id: object, token_ids: list[int]) -> list[int]:
        """⌈tokens / block_size⌉ blocks for a new sequence; RuntimeError when there are too few."""
        if not self.can_allocate(token_ids):
            raise RuntimeError(f"too few blocks are free for sequence {seq_id!r}")
        self._tables[seq_id] = [self._free.pop(0) for _ in range(-(-len(token_ids) // self._size))]
        self._lengths[seq_id] = len(token_ids)
        return self.block_table(seq_id)

    def append(self, seq_id: object, token_id: int) -> tuple[int, int] | None:
        """Add one token, and a block if it needs one; RuntimeError when none is free."""
        table, copy = self._tables[seq_id], None
        is_full = self._lengths[seq_id] % self._size == 0
        if is_full or self._is_shared(table[-1]):
            if not self._free:
                raise RuntimeError(f"no block is free for sequence {seq_id!r}")
            block = self._free.pop(0)
            copy = None if is_full else (table.pop(), block)
            table.append(block)
        self._lengths[seq_id] += 1
        return copy

    def fork(self, parent: object, child: object) -> None:
        """Make a new sequence with the tokens and the blocks of `parent`."""
        self._tables[child], self._lengths[child] = self.block_table(parent), self._lengths[parent]

    def free(self, seq_id: object) -> None:
        """Forget a sequence and free its blocks, but those that a fork shares."""
        self._free += [block for block in self._tables[seq_id] if not self._is_shared(block)]
        del self._tables[seq_id], self._lengths[seq_id]

    def _is_shared(self, block: int) -> bool:
        return sum(block in table for table in self._tables.values()) > 1

    def block_table(self, seq_id: object) -> list[int]:
        """The blocks of a sequence, in order."""
        return list(self._tables[seq_id])

    def num_cached_tokens(self, seq_id: object) -> int:
        """0: nothing is found."""
        return 0

    def num_free_blocks(self) -> int:
        """Blocks that belong to no sequence."""
        return len(self._free)


class QuantizedBlocks:
    """Keys and values of all layers in blocks, in a few bits per number, and attention that reads them there.

    Each vector, a token's key or value in one layer and head, has its own scale and zero: its zero is its minimum and
    its scale (maximum − minimum) / (2^bits − 1), both rounded to float16 and stored that way. The code of x is the
    nearest whole number to (x − zero) / scale, with the rounded zero and scale, clipped to 0 … 2^bits − 1; where the
    scale is 0 all codes are 0. Attention reads code · scale + zero. You choose how codes are stored, but a vector takes
    exactly head_dim · bits / 8 + 4 bytes.
    """

    def __init__(self, num_blocks: int, block_size: int, layers: int, kv_heads: int, head_dim: int, bits: int) -> None:
        """Allocate memory for all blocks, once; ValueError naming `bits`, when it is not 2, 4 or 8."""
        ### BEGIN SOLUTION
        if bits not in (2, 4, 8) or head_dim * bits % 8:
            raise ValueError(f"bits must be 2, 4 or 8, and fill whole bytes with {head_dim} numbers; got {bits}")
        self._size, self._bits = block_size, bits
        shape = (layers, num_blocks, block_size, 2 * kv_heads)  # of each head first its key, then its value
        self._codes = torch.zeros(*shape, head_dim * bits // 8, dtype=torch.uint8)
        self._scales = torch.zeros(*shape, 2, dtype=torch.float16)
        ### END SOLUTION

    def write(self, layer: int, blocks: list[int], places: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the keys and values of n tokens, k and v (n, kv_heads, head_dim) in float32, in one layer.

        Token i goes to place places[i] of block blocks[i]. Nothing else changes.
        """
        ### BEGIN SOLUTION
        codes, scales = _codes(torch.cat([k, v], 1), self._bits)
        at = torch.tensor(blocks, dtype=torch.int64), torch.tensor(places, dtype=torch.int64)
        self._codes[layer][at] = codes
        self._scales[layer][at] = scales
        ### END SOLUTION

    def copy(self, old: int, new: int) -> None:
        """Copy the contents of block `old` to block `new`, in all layers."""
        ### BEGIN SOLUTION
        self._codes[:, new] = self._codes[:, old]
        self._scales[:, new] = self._scales[:, old]
        ### END SOLUTION

    def attend(self, layer: int, q: torch.Tensor, block_table: list[int], start: int) -> torch.Tensor:
        """Attention of the queries of n tokens of one sequence, q (n, H, head_dim), at positions start … start + n − 1.

        Token t of the sequence is at place t % block_size of block block_table[t // block_size]; the query at
        position p sees the keys 0 … p. Query head h reads key head h // (H / kv_heads), the scale is 1/√head_dim. Only
        the sequence's own blocks up to its last query are read, each once, a few at a time: the memory for dequantized
        numbers does not grow with the sequence. Other blocks, and places after the last query, may hold anything.

        Returns:
            (n, H, head_dim), float32.
        """
        ### BEGIN SOLUTION
        n, heads, d = q.shape
        group = heads // (self._codes.shape[3] // 2)
        rows = (q * d**-0.5).unflatten(1, (-1, group)).permute(1, 2, 0, 3).flatten(1, 2)  # (kv_heads, group · n, d)
        position = torch.arange(start, start + n).repeat(group)[:, None]
        m = rows.new_full((*rows.shape[:2], 1), -torch.inf)
        l, o = torch.zeros_like(m), torch.zeros_like(rows)
        at_once = max(1, _TOKENS_AT_ONCE // self._size)
        n_blocks = -(-(start + n) // self._size)
        for first in range(0, n_blocks, at_once):
            k, v = self._read(layer, block_table[first : min(first + at_once, n_blocks)])
            key = first * self._size + torch.arange(k.shape[1])
            k, v = (x[:, key < start + n] for x in (k, v))
            scores = (rows @ k.mT).masked_fill_(key[key < start + n] > position, -torch.inf)
            m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
            powers, shrink = torch.exp(scores - m_new), torch.exp(m - m_new)
            m, l, o = m_new, shrink * l + powers.sum(-1, keepdim=True), shrink * o + powers @ v
        return (o / l).unflatten(1, (group, n)).permute(2, 0, 1, 3).flatten(1, 2)

    def _read(self, layer, blocks):
        """The keys and the values of some blocks, each (kv_heads, tokens, d), dequantized."""
        at = torch.tensor(blocks)
        shifts = torch.arange(0, 8, self._bits, dtype=torch.uint8)
        codes = ((self._codes[layer][at][..., None] >> shifts) & (2**self._bits - 1)).flatten(-2, -1)
        scale, zero = self._scales[layer][at].float().split(1, -1)
        both = (codes * scale + zero).flatten(0, 1).transpose(0, 1)
        return both.split(both.shape[0] // 2)
        ### END SOLUTION


class PlainBlocksCache:
    """The course's own cache, with the methods of `QuantizedBlocks` and every number in float32: see `CACHE`."""

    def __init__(self, num_blocks: int, block_size: int, layers: int, kv_heads: int, head_dim: int, bits: int) -> None:
        """Memory for all blocks; `bits` must be 32."""
        if bits != 32:
            raise ValueError(f"bits must be 32, every number is kept as it is; got {bits}")
        self._size = block_size
        self._numbers = torch.zeros(2, layers, num_blocks, block_size, kv_heads, head_dim)

    def write(self, layer: int, blocks: list[int], places: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the keys and values of some tokens."""
        self._numbers[:, layer, torch.tensor(blocks), torch.tensor(places)] = torch.stack([k, v])

    def copy(self, old: int, new: int) -> None:
        """Copy the contents of block `old` to block `new`."""
        self._numbers[:, :, new] = self._numbers[:, :, old]

    def attend(self, layer: int, q: torch.Tensor, block_table: list[int], start: int) -> torch.Tensor:
        """Attention of q (n, H, head_dim) at positions start … start + n − 1 over all tokens up to their own."""
        end = start + len(q)
        blocks = torch.tensor(block_table[: -(-end // self._size)])
        k, v = self._numbers[:, layer, blocks].flatten(1, 2)[:, :end]
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        hidden = torch.arange(end) > torch.arange(start, end)[:, None]
        scores = (q.transpose(0, 1) @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)


# What Scheduler and Server are built from. Write PlainBlocks or PlainBlocksCache here to take a piece from the course
# instead of your own: the handout says which points that costs.
BLOCKS = BlockManager
CACHE = QuantizedBlocks


class Scheduler:
    """Decides which tokens of which requests a step computes, and which blocks hold them.

    It holds no keys or values. Blocks come from `BLOCKS(num_blocks, block_size)`. A completion is finished when all its
    max_new tokens have been generated; then its blocks are free. A request may ask for n completions of one prompt,
    each with tokens of its own. The prompt is computed once, under the request's name. From their first tokens on they
    are n sequences with names of their own: id, (id, 1), …, (id, n − 1).

    Example:
        s = Scheduler(4, 2, 8); s.submit("a", [5, 6, 7], 1); s.plan() is {"copies": [], "work": [{"id": "a",
        "start": 0, "tokens": [5, 6, 7], "blocks": [0, 1]}]}; s.advance({"a": 9}) ends the request.
    """

    def __init__(self, num_blocks: int, block_size: int, max_tokens: int) -> None:
        """Start without requests; ValueError naming an argument below 1."""
        ### BEGIN SOLUTION
        _check(num_blocks=num_blocks, block_size=block_size, max_tokens=max_tokens)
        self._num_blocks, self._size, self._max_tokens = num_blocks, block_size, max_tokens
        self._blocks = BLOCKS(num_blocks, block_size)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # in the order in which they came
        self._filled = [0] * num_blocks  # tokens of each block that have been computed
        ### END SOLUTION

    def submit(self, id: object, prompt: list[int], max_new: int, n: int = 1) -> None:
        """Add a request: `max_new` tokens are to follow `prompt`, in each of `n` completions.

        Raises:
            ValueError: naming the request, when its name is in use, the prompt is empty, max_new or n is below 1, or it
                can never fit: prompt and max_new tokens need more than num_blocks blocks. (That all n completions fit
                at once is not needed.)
        """
        ### BEGIN SOLUTION
        if any(one.request == id for one in (*self._waiting, *self._running)):
            raise ValueError(f"request {id!r} is there already")
        if not prompt or min(max_new, n) < 1:
            raise ValueError(f"request {id!r}: {len(prompt)} tokens, max_new {max_new}, n {n}: all are at least 1")
        needed = -(-(len(prompt) + max_new) // self._size)
        if needed > self._num_blocks:
            raise ValueError(f"request {id!r} needs {needed} blocks, and there are {self._num_blocks}")
        self._waiting.append(_Sequence(id, id, list(prompt), len(prompt) + max_new, n))
        ### END SOLUTION

    def plan(self) -> dict[str, list]:
        """What the next step copies and computes.

        Returns:
            "copies": a list of (old, new), blocks to be copied before anything is written. "work": a list of dicts, one
            per sequence: its "id"; "tokens", a list of its next tokens that are computed now, the first of them at
            position "start"; and "blocks", its block table, a list that covers them. All places before "start" hold
            this sequence's tokens after this sequence's prefix; within a step everything is written before anything
            is read. At most max_tokens tokens in all, at least one for each sequence in the list, and at least one in
            all while there are requests. A sequence whose last known token is computed gets its next one by `advance`.
        """
        ### BEGIN SOLUTION
        copies, work, room = [], [], self._max_tokens
        n_before = len(self._waiting)
        for one in list(self._running):
            count = min(len(one.tokens) - one.computed, room)
            if count and one in self._running and self._hold(one, one.computed + count, copies):
                work.append(self._compute(one, count))
                room -= count
        gave_way = len(self._waiting) > n_before
        while self._waiting and room and not gave_way and self._blocks.can_allocate(self._waiting[0].tokens):
            one = self._waiting.popleft()
            self._running.append(one)
            self._place(one)
            count = min(len(one.tokens) - one.computed, room)
            work.append(self._compute(one, count))
            room -= count
        return {"copies": copies, "work": work}
        ### END SOLUTION

    def advance(self, sampled: dict[object, int]) -> None:
        """The last plan was carried out: these sequences have new tokens, and may be finished.

        After the prompt of a request with n > 1 there is a token for each completion, under its own name.
        """
        ### BEGIN SOLUTION
        for one in list(self._running):
            if one.id in sampled:
                self._fork(one)
        for one in [each for each in self._running if each.id in sampled]:
            one.tokens.append(sampled[one.id])
            if len(one.tokens) == one.final:
                self._running.remove(one)
                self._blocks.free(one.id)

    def _fork(self, one):
        """Begin the other completions of a request whose prompt is computed, with the same tokens and blocks."""
        place = self._running.index(one) + 1
        for number in range(1, one.n):
            fork = _Sequence((one.id, number), one.id, list(one.tokens), one.final, 1)
            fork.computed, fork.held = one.computed, one.held
            self._blocks.fork(one.id, fork.id)
            self._running.insert(place + number - 1, fork)
        one.n = 1

    def _place(self, one):
        """Allocate blocks for a request's known tokens; tokens found there and computed already are skipped."""
        table = self._blocks.allocate(one.id, one.tokens)
        one.held = len(one.tokens)
        found = self._blocks.num_cached_tokens(one.id) // self._size
        for block in table[found:]:
            self._filled[block] = 0
        # A block is found as soon as somebody is to compute it: it counts once that has been planned.
        n_full = next((i for i in range(found) if self._filled[table[i]] < self._size), found)
        one.computed = n_full * self._size

    def _hold(self, one, n_tokens, copies):
        """Allocate blocks for the first `n_tokens` of a request, or preempt the last to come; False if that is it."""
        while one.held < n_tokens:
            n_blocks = len(self._blocks.block_table(one.id))
            try:
                copy = self._blocks.append(one.id, one.tokens[one.held])
            except RuntimeError:
                last = self._running.pop()
                self._blocks.free(last.id)
                self._waiting.appendleft(last)
                if last is one:
                    return False
                continue
            one.held += 1
            table = self._blocks.block_table(one.id)
            if copy is not None:
                copies.append(copy)
                self._filled[copy[1]] = self._filled[copy[0]]
            elif len(table) > n_blocks:
                self._filled[table[-1]] = 0
        return True

    def _compute(self, one, count):
        """The work for the next `count` tokens of a request."""
        start, end, table = one.computed, one.computed + count, self._blocks.block_table(one.id)
        for place in range(start // self._size, -(-end // self._size)):
            self._filled[table[place]] = max(self._filled[table[place]], min(self._size, end - place * self._size))
        one.computed = end
        return {"id": one.id, "start": start, "tokens": one.tokens[start:end], "blocks": table}
        ### END SOLUTION


class Server:
    """A scheduler and a cache under a budget of bytes, with which the engine serves a trace.

    Each step the engine calls `plan`, then `copy` for its copies, then for each layer `write` and, for each piece of
    work, `attend`; then `advance`. You choose bits and block size.
    """

    def __init__(self, spec: Spec, nbytes: int, max_tokens: int) -> None:
        """Make a server for the model `spec`, from `CACHE` and `Scheduler`; its cache takes at most `nbytes` bytes."""
        ### BEGIN SOLUTION
        self._settings = {"bits": 32 if CACHE is PlainBlocksCache else 8, "block_size": 8}
        bits, size = self._settings.values()
        num_blocks = self._settings["num_blocks"] = cache_plan(spec, nbytes, size, bits)
        self._cache = CACHE(num_blocks, size, spec["layers"], spec["kv_heads"], spec["head_dim"], bits)
        self._scheduler = Scheduler(num_blocks, size, max_tokens)
        ### END SOLUTION

    def settings(self) -> dict[str, int]:
        """The settings: "bits" (2, 4, 8, or 32 for `PlainBlocksCache`), "block_size" and "num_blocks"."""
        ### BEGIN SOLUTION
        return dict(self._settings)
        ### END SOLUTION

    def submit(self, id: object, prompt: list[int], max_new: int, n: int = 1) -> None:
        """As `Scheduler.submit`."""
        ### BEGIN SOLUTION
        self._scheduler.submit(id, prompt, max_new, n)
        ### END SOLUTION

    def plan(self) -> dict[str, list]:
        """As `Scheduler.plan`."""
        ### BEGIN SOLUTION
        return self._scheduler.plan()
        ### END SOLUTION

    def advance(self, sampled: dict[object, int]) -> None:
        """As `Scheduler.advance`."""
        ### BEGIN SOLUTION
        self._scheduler.advance(sampled)
        ### END SOLUTION

    def write(self, layer: int, blocks: list[int], places: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """As `QuantizedBlocks.write`."""
        ### BEGIN SOLUTION
        self._cache.write(layer, blocks, places, k, v)
        ### END SOLUTION

    def copy(self, old: int, new: int) -> None:
        """As `QuantizedBlocks.copy`."""
        ### BEGIN SOLUTION
        self._cache.copy(old, new)
        ### END SOLUTION

    def attend(self, layer: int, q: torch.Tensor, block_table: list[int], start: int) -> torch.Tensor:
        """As `QuantizedBlocks.attend`."""
        ### BEGIN SOLUTION
        return self._cache.attend(layer, q, block_table, start)
        ### END SOLUTION


### BEGIN SOLUTION
import itertools  # noqa: E402
from collections import OrderedDict, deque  # noqa: E402

_TOKENS_AT_ONCE = 128


class _Sequence:
    """A request until its prompt is computed; then one of its n completions."""

    def __init__(self, id, request, tokens, final, n):
        self.id, self.request, self.tokens, self.final, self.n = id, request, tokens, final, n
        self.computed = self.held = 0  # tokens in the cache, and tokens for which there are blocks


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


def _check(**numbers):
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def _codes(x, bits):
    """Codes of vectors x (..., d), packed into bytes, and the scale and zero of each, (..., 2) in float16."""
    levels = 2**bits - 1
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale, zero = ((high - low) / levels).half(), low.half()
    steps = ((x - zero.float()) / scale.float()).masked_fill_(scale == 0, 0)
    codes = steps.round_().clamp_(0, levels).to(torch.uint8).unflatten(-1, (-1, 8 // bits))
    packed = (codes << torch.arange(0, 8, bits, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    return packed, torch.cat([scale, zero], -1)


### END SOLUTION
