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
    # YOUR CODE HERE
    raise NotImplementedError()


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
        # YOUR CODE HERE
        raise NotImplementedError()

    def can_allocate(self, token_ids: list[int]) -> bool:
        """Whether `allocate` would find enough blocks; a block shared with a live sequence needs no new one."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def allocate(self, seq_id: object, token_ids: list[int]) -> list[int]:
        """Give a new sequence, a prompt of at least one token, its blocks: ⌈tokens / block_size⌉, in order.

        From its start on, existing full blocks are shared, as many as can be found, but never the last token's.
        Raises RuntimeError, and changes nothing, when there are too few; ValueError when token_ids is empty.
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
        # YOUR CODE HERE
        raise NotImplementedError()

    def write(self, layer: int, blocks: list[int], places: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the keys and values of n tokens, k and v (n, kv_heads, head_dim) in float32, in one layer.

        Token i goes to place places[i] of block blocks[i]. Nothing else changes.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def copy(self, old: int, new: int) -> None:
        """Copy the contents of block `old` to block `new`, in all layers."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def attend(self, layer: int, q: torch.Tensor, block_table: list[int], start: int) -> torch.Tensor:
        """Attention of the queries of n tokens of one sequence, q (n, H, head_dim), at positions start … start + n − 1.

        Token t of the sequence is at place t % block_size of block block_table[t // block_size]; the query at
        position p sees the keys 0 … p. Query head h reads key head h // (H / kv_heads), the scale is 1/√head_dim. Only
        the sequence's own blocks up to its last query are read, each once, a few at a time: the memory for dequantized
        numbers does not grow with the sequence. Other blocks, and places after the last query, may hold anything.

        Returns:
            (n, H, head_dim), float32.
        """
        # YOUR CODE HERE
        raise NotImplementedError()


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
        # YOUR CODE HERE
        raise NotImplementedError()

    def submit(self, id: object, prompt: list[int], max_new: int, n: int = 1) -> None:
        """Add a request: `max_new` tokens are to follow `prompt`, in each of `n` completions.

        Raises:
            ValueError: naming the request, when its name is in use, the prompt is empty, max_new or n is below 1, or it
                can never fit: prompt and max_new tokens need more than num_blocks blocks. (That all n completions fit
                at once is not needed.)
        """
        # YOUR CODE HERE
        raise NotImplementedError()

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
        # YOUR CODE HERE
        raise NotImplementedError()

    def advance(self, sampled: dict[object, int]) -> None:
        """The last plan was carried out: these sequences have new tokens, and may be finished.

        After the prompt of a request with n > 1 there is a token for each completion, under its own name.
        """
        # YOUR CODE HERE
        raise NotImplementedError()


class Server:
    """A scheduler and a cache under a budget of bytes, with which the engine serves a trace.

    Each step the engine calls `plan`, then `copy` for its copies, then for each layer `write` and, for each piece of
    work, `attend`; then `advance`. You choose bits and block size.
    """

    def __init__(self, spec: Spec, nbytes: int, max_tokens: int) -> None:
        """Make a server for the model `spec`, from `CACHE` and `Scheduler`; its cache takes at most `nbytes` bytes."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def settings(self) -> dict[str, int]:
        """The settings: "bits" (2, 4, 8, or 32 for `PlainBlocksCache`), "block_size" and "num_blocks"."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def submit(self, id: object, prompt: list[int], max_new: int, n: int = 1) -> None:
        """As `Scheduler.submit`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def plan(self) -> dict[str, list]:
        """As `Scheduler.plan`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def advance(self, sampled: dict[object, int]) -> None:
        """As `Scheduler.advance`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def write(self, layer: int, blocks: list[int], places: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """As `QuantizedBlocks.write`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def copy(self, old: int, new: int) -> None:
        """As `QuantizedBlocks.copy`."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def attend(self, layer: int, q: torch.Tensor, block_table: list[int], start: int) -> torch.Tensor:
        """As `QuantizedBlocks.attend`."""
        # YOUR CODE HERE
        raise NotImplementedError()
