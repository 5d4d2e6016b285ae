"""A block's key is the whole text up to its end; a rolling cache written twice, so that its window is always a view."""


class KVCache:
    def __init__(self, max_len, kv_heads, head_dim, dtype):
        for name, size in (("max_len", max_len), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if size < 1:
                raise ValueError(f"{name} is {size}")
        self.both = torch.zeros(2, kv_heads, max_len, head_dim, dtype=dtype)
        self.n = 0

    def append(self, k, v):
        heads, room, width = self.both.shape[1:]
        for x in (k, v):
            if x.dtype != self.both.dtype or x.shape != (heads, k.shape[1], width):
                raise ValueError(f"tokens of {tuple(x.shape)} and {x.dtype} in a cache of {heads} heads of {width}")
        if self.n + k.shape[1] > room:
            raise ValueError(f"max_len is {room}, and {self.n} + {k.shape[1]} are more")
        for half, x in zip(self.both, (k, v), strict=True):
            half.narrow(1, self.n, x.shape[1]).copy_(x)
        self.n += k.shape[1]

    @property
    def keys(self):
        return self.both[0].narrow(1, 0, self.n)

    @property
    def values(self):
        return self.both[1].narrow(1, 0, self.n)

    def __len__(self):
        return self.n

    def truncate(self, n):
        if n < 0 or n > self.n:
            raise ValueError(f"{n} of {self.n}")
        self.n = n


class RollingKVCache(KVCache):
    """Token t is at t mod W and at t mod W + W: W neighbours hold the window in order, wherever it begins."""

    def __init__(self, window, kv_heads, head_dim, dtype):
        if window < 1:
            raise ValueError(f"window is {window}")
        super().__init__(2 * window, kv_heads, head_dim, dtype)
        self.window = window

    def append(self, k, v):
        heads, _, width = self.both.shape[1:]
        for x in (k, v):
            if x.dtype != self.both.dtype or x.shape != (heads, k.shape[1], width):
                raise ValueError(f"tokens of {tuple(x.shape)} and {x.dtype}")
        skipped = max(0, k.shape[1] - self.window)
        at = (self.n + skipped) % self.window
        before_seam = min(k.shape[1] - skipped, self.window - at)
        for half, x in zip(self.both, (k[:, skipped:], v[:, skipped:]), strict=True):
            for piece, place in ((x[:, :before_seam], at), (x[:, before_seam:], 0)):
                half.narrow(1, place, piece.shape[1]).copy_(piece)
                half.narrow(1, place + self.window, piece.shape[1]).copy_(piece)
        self.n += k.shape[1]

    def _window_of(self, half):
        return half.narrow(1, max(0, self.n - self.window) % self.window, len(self))

    @property
    def keys(self):
        return self._window_of(self.both[0])

    @property
    def values(self):
        return self._window_of(self.both[1])

    def __len__(self):
        return min(self.n, self.window)

    def truncate(self, n):
        if self.n > self.window:
            raise ValueError(f"{self.n} tokens have gone through a window of {self.window}")
        super().truncate(n)


class BlockManager:
    def __init__(self, num_blocks, block_size):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size are {num_blocks} and {block_size}")
        self.size = block_size
        self.owners = {block: set() for block in range(num_blocks)}
        self.queue = list(range(num_blocks))
        self.text, self.table, self.found_at_start = {}, {}, {}
        self.holds = {}  # block → the whole text up to its end, when it is full

    def _known(self, seq_id):
        if seq_id not in self.table:
            raise ValueError(f"no sequence {seq_id!r}")

    def _hits(self, text):
        hits = []
        for n in range(self.size, len(text), self.size):
            same = [block for block, held in self.holds.items() if held == tuple(text[:n])]
            if not same:
                break
            hits.append(max(same, key=lambda block: len(self.owners[block])))
        return hits

    def _missing(self, text):
        hits = self._hits(text)
        new = -(-len(text) // self.size) - sum(bool(self.owners[block]) for block in hits)
        return new - len(self.queue)

    def can_allocate(self, token_ids):
        return self._missing(token_ids) <= 0

    def allocate(self, seq_id, token_ids):
        if seq_id in self.table:
            raise ValueError(f"{seq_id!r} is there")
        if not token_ids:
            raise ValueError("no tokens")
        if self._missing(token_ids) > 0:
            raise RuntimeError(f"{self._missing(token_ids)} blocks too few")
        table = self._hits(token_ids)
        self.found_at_start[seq_id] = len(table) * self.size
        self.queue = [block for block in self.queue if block not in table]
        while len(table) * self.size < len(token_ids):
            table.append(self._next())
        for block in table:
            self.owners[block].add(seq_id)
        self.table[seq_id], self.text[seq_id] = table, list(token_ids)
        self._note(seq_id)
        return table[:]

    def _next(self):
        if not self.queue:
            raise RuntimeError("all blocks are in use")
        block = self.queue.pop(0)
        self.holds.pop(block, None)
        return block

    def _note(self, seq_id):
        text = self.text[seq_id]
        for n, block in enumerate(self.table[seq_id], 1):
            if n * self.size <= len(text):
                self.holds[block] = tuple(text[: n * self.size])

    def append(self, seq_id, token_id):
        self._known(seq_id)
        table, text, copy = self.table[seq_id], self.text[seq_id], None
        if len(text) == len(table) * self.size:
            table.append(self._next())
        elif self.owners[table[-1]] != {seq_id}:
            old, new = table[-1], self._next()
            self.owners[old].discard(seq_id)
            table[-1], copy = new, (old, new)
        self.owners[table[-1]].add(seq_id)
        text.append(token_id)
        self._note(seq_id)
        return copy

    def fork(self, parent, child):
        self._known(parent)
        if child in self.table:
            raise ValueError(f"{child!r} is there")
        self.table[child], self.text[child] = self.table[parent][:], self.text[parent][:]
        self.found_at_start[child] = len(self.text[parent])
        for block in self.table[child]:
            self.owners[block].add(child)

    def free(self, seq_id):
        self._known(seq_id)
        for block in self.table.pop(seq_id)[::-1]:
            self.owners[block].discard(seq_id)
            if not self.owners[block]:
                self.queue.append(block)
        del self.text[seq_id], self.found_at_start[seq_id]

    def block_table(self, seq_id):
        self._known(seq_id)
        return self.table[seq_id][:]

    def num_cached_tokens(self, seq_id):
        self._known(seq_id)
        return self.found_at_start[seq_id]

    def num_free_blocks(self):
        return len(self.queue)
