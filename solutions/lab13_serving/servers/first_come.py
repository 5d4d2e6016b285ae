"""First come, first served: a request waits until all that it may ever need is free, and nothing is shared."""

BLOCKS = PlainBlocks


class Scheduler:
    def __init__(self, num_blocks, block_size, max_tokens):
        _check(num_blocks=num_blocks, block_size=block_size, max_tokens=max_tokens)
        self.num_blocks, self.size, self.max_tokens = num_blocks, block_size, max_tokens
        self.blocks = BLOCKS(num_blocks, block_size)
        self.requests = {}  # of each its tokens, how many it will have, how many are computed, and for how many is room
        self.served = []

    def submit(self, id, prompt, max_new, n=1):
        if id in self.requests:
            raise ValueError(f"request {id!r} is there already")
        if n > 1:
            raise ValueError(f"request {id!r} wants {n} completions: this server gives one")
        if not prompt or max_new < 1:
            raise ValueError(f"request {id!r} has {len(prompt)} tokens and max_new {max_new}: both are at least 1")
        if self._needed(len(prompt) + max_new) > self.num_blocks:
            raise ValueError(f"request {id!r} needs {self._needed(len(prompt) + max_new)} blocks of {self.num_blocks}")
        self.requests[id] = {"tokens": list(prompt), "final": len(prompt) + max_new, "computed": 0}

    def plan(self):
        self._admit()
        work, room = [], self.max_tokens
        for id in self.served:
            one = self.requests[id]
            tokens = one["tokens"][one["computed"] : one["computed"] + room]
            if tokens:
                table = self.blocks.block_table(id)
                work.append({"id": id, "start": one["computed"], "tokens": tokens, "blocks": table})
                one["computed"] += len(tokens)
                room -= len(tokens)
        return {"copies": [], "work": work}

    def advance(self, sampled):
        for id, token in sampled.items():
            one = self.requests[id]
            one["tokens"].append(token)
            if len(one["tokens"]) == one["final"]:
                self.served.remove(id)
                self.blocks.free(id)
                del self.requests[id]

    def _admit(self):
        for id, one in self.requests.items():
            if id in self.served:
                continue
            reserved = [0] * one["final"]  # the places are there from the beginning, whatever will lie in them
            if not self.blocks.can_allocate(reserved):
                return
            self.blocks.allocate(id, reserved)
            self.served.append(id)

    def _needed(self, n_tokens):
        return -(-n_tokens // self.size)
