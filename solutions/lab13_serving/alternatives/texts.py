"""Whole texts instead of counts: what a block holds is kept as text; caches in lists by layer, read block by block."""


def cache_plan(spec, nbytes, block_size, bits):
    if bits not in (2, 4, 8, 32) or bits * spec["head_dim"] % 8 != 0:
        raise ValueError(f"no codes of {bits} bits for {spec['head_dim']} numbers")
    if block_size <= 0:
        raise ValueError(f"block_size is {block_size}")
    bits_a_vector = spec["head_dim"] * bits + (32 if bits != 32 else 0)
    bits_a_block = bits_a_vector * 2 * spec["kv_heads"] * spec["layers"] * block_size
    found = 8 * nbytes // bits_a_block
    if found == 0:
        raise ValueError(f"nbytes = {nbytes} is less than one block, {bits_a_block // 8} bytes")
    return found


class QuantizedBlocks:
    def __init__(self, num_blocks, block_size, layers, kv_heads, head_dim, bits):
        if bits not in (2, 4, 8) or bits * head_dim % 8 != 0:
            raise ValueError(f"no codes of {bits} bits for {head_dim} numbers")
        self.size, self.bits = block_size, bits
        self.shifts = torch.arange(0, 8, bits, dtype=torch.uint8)  # a constant, of one to four bytes
        shape = (2, num_blocks, kv_heads, block_size)
        self.codes = [torch.zeros(*shape, head_dim * bits // 8, dtype=torch.uint8) for _ in range(layers)]
        self.zeros = [torch.zeros(shape, dtype=torch.float16) for _ in range(layers)]
        self.scales = [torch.zeros(shape, dtype=torch.float16) for _ in range(layers)]

    def write(self, layer, blocks, places, k, v):
        levels, per_byte = 2**self.bits - 1, 8 // self.bits
        for which, x in enumerate((k, v)):
            low, high = x.amin(-1), x.amax(-1)
            zero, scale = low.half(), ((high - low) / levels).half()
            safe = torch.where(scale == 0, torch.ones_like(scale), scale).float()
            codes = ((x - zero.float()[..., None]) / safe[..., None]).round().clamp(0, levels).to(torch.uint8)
            part = codes.shape[-1] // per_byte  # neighbours in a byte are far apart in the vector
            packed = torch.zeros_like(codes[..., :part])
            for number in range(per_byte):
                packed |= codes[..., number * part : (number + 1) * part] << (number * self.bits)
            for kept, new in ((self.codes, packed), (self.zeros, zero), (self.scales, scale)):
                kept[layer][which].transpose(1, 2)[blocks, places] = new

    def copy(self, old, new):
        for kept in (*self.codes, *self.zeros, *self.scales):
            kept[:, new].copy_(kept[:, old])

    def attend(self, layer, q, block_table, start):
        n, heads, d = q.shape
        kv_heads = self.codes[layer].shape[2]
        rows = q.view(n, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3)  # (kv_heads, group, n, d)
        o, lse = torch.zeros(rows.shape), torch.full(rows.shape[:-1], -torch.inf)
        for number in range(-(-(start + n) // self.size)):
            first = number * self.size
            used = min(self.size, start + n - first)
            k, v = self._block(layer, block_table[number], used)
            scores = rows @ k[:, None].mT / d**0.5
            for i in range(n):
                scores[:, :, i, max(0, start + i + 1 - first) :] = -torch.inf
            more = scores.logsumexp(-1)
            both = torch.logaddexp(lse, more)
            part = torch.where(more.isneginf()[..., None], 0.0, scores.softmax(-1).nan_to_num(0.0)) @ v[:, None]
            o = o * torch.exp(lse - both)[..., None] + part * torch.exp(more - both)[..., None]
            lse = both
        return o.permute(2, 0, 1, 3).reshape(n, heads, d)

    def _block(self, layer, block, used):
        codes = self.codes[layer][:, block, :, :used]
        parts = [(codes >> shift) & (2**self.bits - 1) for shift in self.shifts]
        scales, zeros = (x[layer][:, block, :, :used].float()[..., None] for x in (self.scales, self.zeros))
        return (torch.cat(parts, -1) * scales + zeros).unbind()


class Scheduler:
    def __init__(self, num_blocks, block_size, max_tokens):
        _check(num_blocks=num_blocks, block_size=block_size, max_tokens=max_tokens)
        self.blocks = BLOCKS(num_blocks, block_size)
        self.n_blocks, self.size, self.most = num_blocks, block_size, max_tokens
        self.texts, self.final, self.order = {}, {}, {}
        self.holds = {}  # block -> the text up to the last of its tokens that is planned
        self.tables = {}  # of those that are served: how many tokens have a place, and how many are computed
        self.n_came, self.forks = 0, {}
        self.number_left = {}  # of a request's completions

    def submit(self, id, prompt, max_new, n=1):
        if self.number_left.get(id):
            raise ValueError(f"{id!r} is being served")
        if min(len(prompt), max_new, n) < 1:
            raise ValueError(f"{id!r} asks for nothing, or about nothing")
        if len(prompt) + max_new > self.n_blocks * self.size:
            raise ValueError(f"{id!r} has {len(prompt) + max_new} tokens and {self.n_blocks * self.size} places")
        self.texts[id], self.final[id], self.order[id] = tuple(prompt), len(prompt) + max_new, (self.n_came, 0)
        self.number_left[id], self.forks[id] = n, [(id, number) for number in range(1, n)]
        self.n_came += 1

    def plan(self):
        work, copies, room, lost, self.ends = [], [], self.most, False, {}
        for id in sorted(self.texts, key=self.order.get):
            if not room:
                break
            text = self.texts[id]
            if id not in self.tables:
                if lost or not self.blocks.can_allocate(list(text)):
                    break
                self.blocks.allocate(id, list(text))
                self.tables[id] = [len(text), self._begins(id)]
            held, start = self.tables[id]
            end = min(len(text), start + room)
            if end < len(text) and end - end % self.size > start:
                end -= end % self.size  # a piece ends with a block
            if end == start:
                continue
            while held < end and id in self.tables:
                try:
                    copy = self.blocks.append(id, text[held])
                    held += 1
                    if copy:
                        copies.append(copy)
                        self.holds[copy[1]] = self.holds[copy[0]]
                except RuntimeError:
                    last = max(self.tables, key=self.order.get)
                    self.blocks.free(last)
                    del self.tables[last]
                    lost = True
            if id not in self.tables:
                break
            self.tables[id], self.ends[id] = [held, start], end
            table = self.blocks.block_table(id)
            for number in range(start // self.size, -(-end // self.size)):
                upto = text[: min(end, (number + 1) * self.size)]
                if self.holds.get(table[number], ())[: len(upto)] != upto:
                    self.holds[table[number]] = upto
            work.append({"id": id, "start": start, "tokens": list(text[start:end]), "blocks": table})
            room -= end - start
        return {"copies": copies, "work": work}

    def advance(self, sampled):
        for id, end in self.ends.items():  # the plan was carried out: only now is this computed
            self.tables[id][1] = end
        for id in list(sampled):
            for number, fork in enumerate(self.forks.pop(id, []), 1):
                self.blocks.fork(id, fork)
                self.texts[fork], self.final[fork] = self.texts[id], self.final[id]
                self.tables[fork], self.order[fork] = [*self.tables[id]], (self.order[id][0], number)
        for id, token in sampled.items():
            self.texts[id] += (token,)
            if len(self.texts[id]) == self.final[id]:
                self.number_left[id[0] if isinstance(id, tuple) else id] -= 1
                self.blocks.free(id)
                for each in (self.texts, self.final, self.order, self.tables):
                    del each[id]

    def _begins(self, id):
        text, start = self.texts[id], 0
        for block in self.blocks.block_table(id):
            if start + self.size >= len(text) or self.holds.get(block) != text[: start + self.size]:
                break
            start += self.size
        return start


class Server(Scheduler):
    def __init__(self, spec, nbytes, max_tokens):
        self.chosen = {"bits": 8, "block_size": 4, "num_blocks": cache_plan(spec, nbytes, 4, 8)}
        super().__init__(self.chosen["num_blocks"], 4, max_tokens)
        self.cache = CACHE(self.n_blocks, 4, spec["layers"], spec["kv_heads"], spec["head_dim"], 8)
        self.write, self.copy, self.attend = self.cache.write, self.cache.copy, self.cache.attend

    def settings(self):
        return self.chosen
