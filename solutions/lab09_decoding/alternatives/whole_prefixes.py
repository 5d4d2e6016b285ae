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


def simulate_serving(requests, num_slots, policy, block_size):
    """One list of slots says who has each; the rest is counted from it."""
    if num_slots < 1 or block_size < 1:
        raise ValueError(f"num_slots={num_slots}, block_size={block_size}")
    if policy not in POLICIES:
        raise ValueError(f"{policy!r} is none of {POLICIES}")
    usable = num_slots // block_size * block_size if policy == "paged" else num_slots
    sizes = [_size_of(request, policy) for request in requests]
    for request, size in zip(requests, sizes, strict=True):
        if request[0] < 1 or request[1] < 1 or request[0] + request[1] > request[2] or size > usable:
            raise ValueError(f"request {request} cannot be served")
    free_blocks = usable // block_size
    queue, placed, regions, blocks, length = list(range(len(requests))), [], {}, {}, {}
    counts, n_steps = {"token": 0, "reserved": 0, "internal": 0, "external": 0, "free": 0}, 0

    def fits(number, n_tokens):
        nonlocal free_blocks
        more = -(-n_tokens // block_size) - blocks.get(number, 0)
        if more > free_blocks:
            return False
        free_blocks -= more
        blocks[number] = blocks.get(number, 0) + more
        return True

    def drop(number):
        nonlocal free_blocks
        placed.remove(number)
        regions.pop(number, None)
        free_blocks += blocks.pop(number, 0)

    while queue or placed:
        for number in placed[:]:
            while policy == "paged" and number in placed and not fits(number, length[number] + 1):
                queue.insert(0, placed[-1])
                drop(placed[-1])
            length[number] += 1
        while queue:
            number = queue[0]
            if policy == "paged":
                if not fits(number, requests[number][0] + 1):
                    break
            else:
                ends = sorted([0, *(start + size for start, size in regions.values())])
                starts = [*sorted(start for start, _ in regions.values()), num_slots]
                holes = [end for end, start in zip(ends, starts, strict=True) if start - end >= sizes[number]]
                if not holes:
                    break
                regions[number] = (holes[0], sizes[number])
            length[number] = requests[number][0] + 1
            placed.append(queue.pop(0))
        held = 0
        for number in placed:
            mine = blocks[number] * block_size if policy == "paged" else sizes[number]
            final = sum(requests[number][:2])
            counts["token"] += length[number]
            counts["internal"] += max(0, mine - final)
            counts["reserved"] += mine - length[number] - max(0, mine - final)
            held += mine
        stuck = queue and policy != "paged" and num_slots - held >= sizes[queue[0]]
        counts["external" if stuck else "free"] += num_slots - held
        n_steps += 1
        for number in placed[:]:
            if length[number] == sum(requests[number][:2]):
                drop(number)
    if n_steps == 0:
        counts["free"] = n_steps = 1
        return {name: float(count) for name, count in counts.items()}
    return {name: count / n_steps / num_slots for name, count in counts.items()}


def _size_of(request, policy):
    prompt, output, limit = request
    if policy == "max":
        return limit
    if policy == "pow2":
        power = 1
        while power < output:
            power *= 2
        return min(limit, prompt + power)
    return prompt + output
