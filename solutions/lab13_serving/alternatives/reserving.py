"""The board's second server: beginnings are shared, and a request waits until all that it may need is promised."""


class Scheduler:
    def __init__(self, num_blocks, block_size, max_tokens):
        _check(num_blocks=num_blocks, block_size=block_size, max_tokens=max_tokens)
        self.num_blocks, self.size, self.max_tokens = num_blocks, block_size, max_tokens
        self.blocks = BLOCKS(num_blocks, block_size)
        self.tokens, self.final = {}, {}
        self.computed, self.held = {}, {}  # of those that are served
        self.forks, self.left = {}, {}  # completions to come, and how many a request still has
        self.ready = {}  # block -> how many of its tokens are computed

    def submit(self, id, prompt, max_new, n=1):
        if self.left.get(id):
            raise ValueError(f"request {id!r} is served already")
        if len(prompt) < 1 or max_new < 1 or n < 1:
            raise ValueError(f"request {id!r}: prompt, max_new, n are at least 1: {len(prompt)}, {max_new}, {n}")
        if self._blocks_of(len(prompt) + max_new) > self.num_blocks:
            raise ValueError(f"request {id!r} does not fit into {self.num_blocks} blocks of {self.size}")
        self.tokens[id], self.final[id] = list(prompt), len(prompt) + max_new
        self.forks[id], self.left[id] = [(id, number) for number in range(1, n)], n

    def plan(self):
        self._admit()
        copies, work, room = [], [], self.max_tokens
        for id in list(self.computed):
            if not room:
                break
            if self.computed[id] is None:
                self.computed[id] = self._found(id)
            first, text = self.computed[id], self.tokens[id]
            end = min(len(text), first + room)
            if end == first:
                continue
            for token in text[self.held[id] : end]:
                copy = self.blocks.append(id, token)
                self.held[id] += 1
                if copy is not None:
                    copies.append(copy)
                    self.ready[copy[1]] = self.ready[copy[0]]
                elif self.held[id] % self.size == 1 % self.size:
                    self.ready[self.blocks.block_table(id)[-1]] = 0
            table = self.blocks.block_table(id)
            for position in range(first, end):
                block = table[position // self.size]
                self.ready[block] = max(self.ready[block], position % self.size + 1)
            work.append({"id": id, "start": first, "tokens": text[first:end], "blocks": table})
            self.computed[id] = end
            room -= end - first
        return {"copies": copies, "work": work}

    def advance(self, sampled):
        for id in list(sampled):
            if self.forks.get(id):
                self._fork(id)
        for id, token in sampled.items():
            self.tokens[id].append(token)
            if len(self.tokens[id]) == self.final[id]:
                self.left[id[0] if isinstance(id, tuple) else id] -= 1
                if id in self.computed:  # a fork of one token may never have been admitted
                    self.blocks.free(id)
                for each in (self.tokens, self.final, self.computed, self.held):
                    each.pop(id, None)

    def _fork(self, id):
        forks = self.forks.pop(id)
        tokens, self.tokens = self.tokens, {}
        for each, text in tokens.items():  # in the order in which they came
            self.tokens[each] = text
            if each == id:
                self.tokens.update((fork, list(text)) for fork in forks)
        for fork in forks:
            self.final[fork] = self.final[id]
            if self._promised() + self._blocks_of(self.final[id]) <= self.num_blocks:  # else it waits, as a new one
                self.blocks.fork(id, fork)
                self.computed[fork], self.held[fork] = self.computed[id], self.held[id]

    def _promised(self):
        return sum(self._blocks_of(self.final[each]) for each in self.computed)

    def _admit(self):
        for id, text in self.tokens.items():
            if id in self.computed:
                continue
            if self._promised() + self._blocks_of(self.final[id]) > self.num_blocks:
                return
            table = self.blocks.allocate(id, text)
            shared = self.blocks.num_cached_tokens(id) // self.size
            self.ready.update(dict.fromkeys(table[shared:], 0))
            self.computed[id], self.held[id] = None, len(text)  # what is there is told when its turn comes

    def _found(self, id):
        table, whole = self.blocks.block_table(id), 0
        shared = self.blocks.num_cached_tokens(id) // self.size
        while whole < shared and self.ready[table[whole]] == self.size:
            whole += 1
        return whole * self.size

    def _blocks_of(self, n_tokens):
        return (n_tokens + self.size - 1) // self.size
