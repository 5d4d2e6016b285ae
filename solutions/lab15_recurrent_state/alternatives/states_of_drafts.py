"""A state after each draft instead of a replay; a hit by common multiples; the system solved row by row."""

import math

import torch


def gated_delta_chunked(q, k, v, beta, g, state, chunk):
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    _check_tokens(q, k, v, beta, g, state)
    kind = _precise(v)
    S, o = _start(k, v, state), torch.empty_like(v)
    for start in range(0, k.shape[-2], chunk):
        at = slice(start, start + chunk)
        Q, K, V = q[..., at, :].to(kind), k[..., at, :].to(kind), v[..., at, :].to(kind)
        b, sums = beta[..., at, None].to(kind), g[..., at].to(kind).cumsum(-1)
        lower = torch.ones(K.shape[-2], K.shape[-2], device=k.device, dtype=kind).tril()
        # exp of 0 above the diagonal, and not of what may be large there
        ratio = ((sums[..., :, None] - sums[..., None, :]) * lower).exp() * lower
        below = b * (K @ K.mT) * ratio
        right = b * (V - sums.exp()[..., None] * (K @ S))
        U = right[..., :1, :]
        for i in range(1, K.shape[-2]):
            row = right[..., i : i + 1, :] - (below[..., i, :i, None] * U).sum(-2, keepdim=True)
            U = torch.cat((U, row), -2)
        o[..., at, :] = (sums.exp()[..., None] * (Q @ S) + (Q @ K.mT * ratio) @ U).to(v.dtype)
        S = sums[..., -1, None, None].exp() * S + (K.mT * (sums[..., -1:] - sums).exp()[..., None, :]) @ U
    return o, S


def longest_common_hit(groups, tokens, drafts=0):
    if not 0 <= drafts <= tokens:
        raise ValueError(f"drafts {drafts} of {tokens}")
    for kind, block, _ in groups:
        if block < 1:
            raise ValueError(f"block {block}")
        if kind != "attention" and kind != "state":
            raise ValueError(f"kind {kind}")
    unbroken = {i: 0 for i, group in enumerate(groups) if group[0] == "attention"}
    for i in unbroken:
        while unbroken[i] in groups[i][2]:
            unbroken[i] += 1
    limits = [n * groups[i][1] for i, n in unbroken.items()]
    step = math.lcm(*(block for _, block, _ in groups))
    hit = min([tokens - drafts - 1, *limits]) // step * step
    states = [(block, held) for kind, block, held in groups if kind == "state"]
    while hit > 0 and not all(hit // block - 1 in held for block, held in states):
        hit -= step
    return max(hit, 0)


class HybridCache:
    def __init__(self, num_blocks, block, every, heads, d_k, d_v):
        names = ("num_blocks", "block", "every", "heads", "d_k", "d_v")
        for name, size in zip(names, (num_blocks, block, every, heads, d_k, d_v), strict=True):
            if size < 1:
                raise ValueError(f"{name} is {size}")
        if every % block:
            raise ValueError(f"every {every}, block {block}")
        self.block, self.every, self.shape = block, every, (heads, d_k, d_v)
        self.pool = torch.zeros(num_blocks, block, heads, d_k + d_v)
        self.users = [set() for _ in range(num_blocks)]
        self.tables, self.lengths, self.states, self.saved, self.tail = {}, {}, {}, {}, {}

    def append(self, seq, k, v, beta, g, drafts=False):
        heads, d_k, d_v = self.shape
        n = k.shape[1]
        wanted = {"k": (heads, n, d_k), "v": (heads, n, d_v), "beta": (heads, n), "g": (heads, n)}
        for (name, shape), x in zip(wanted.items(), (k, v, beta, g), strict=True):
            if tuple(x.shape) != shape:
                raise ValueError(f"{name}: {tuple(x.shape)} is not {shape}")
        if seq in self.tail:
            raise ValueError(f"{seq}: drafts must be rolled back first")
        table, length = list(self.tables.get(seq, [])), self.lengths.get(seq, 0)
        empty = [b for b, users in enumerate(self.users) if not users]
        shared = length % self.block and len(self.users[table[-1]]) > 1
        n_new = math.ceil((length + n) / self.block) - len(table)
        if n_new + bool(shared) > len(empty):
            raise ValueError(f"num_blocks: {len(empty)} are free, {n_new} are needed")
        if shared:
            self.users[table[-1]].discard(seq)
            self.pool[empty[0]] = self.pool[table[-1]]
            table[-1] = empty.pop(0)
        table += empty[:n_new]
        for b in table:
            self.users[b].add(seq)
        both = torch.cat([k, v], -1)
        states = [self.states.get(seq, torch.zeros(heads, d_k, d_v))]
        saved = self.saved.setdefault(seq, {})
        for t in range(n):
            at = length + t
            self.pool[table[at // self.block], at % self.block] = both[:, t]
            here = slice(t, t + 1)
            states.append(_advanced(states[-1], k[:, here], v[:, here], beta[:, here], g[:, here]))
            if not drafts:
                states = states[-1:]
                if (at + 1) % self.every == 0:
                    saved[at + 1] = states[-1]
        self.tables[seq], self.lengths[seq], self.states[seq] = table, length + n, states[-1]
        if drafts:
            self.tail[seq] = states

    def rollback(self, seq, n_accepted):
        if seq not in self.tail:
            raise ValueError(f"{seq} has no drafts")
        states = self.tail[seq]
        if not 0 <= n_accepted < len(states):
            raise ValueError(f"n_accepted: {n_accepted}")
        del self.tail[seq]
        start = self.lengths[seq] - len(states) + 1
        for i in range(1, n_accepted + 1):
            if (start + i) % self.every == 0:
                self.saved[seq][start + i] = states[i]
        self.lengths[seq], self.states[seq] = start + n_accepted, states[n_accepted]
        kept = math.ceil(self.lengths[seq] / self.block)
        for b in self.tables[seq][kept:]:
            self.users[b].discard(seq)
        self.tables[seq] = self.tables[seq][:kept]

    def _begin(self, new, table, length, state, saved):
        if new in self.tables:
            raise ValueError(f"{new} is there")
        for b in table:
            self.users[b].add(new)
        self.tables[new], self.lengths[new], self.states[new], self.saved[new] = list(table), length, state, saved

    def fork(self, seq, new):
        if self.length(seq) and seq in self.tail:
            raise ValueError(f"{seq} has drafts")
        self._begin(new, self.tables[seq], self.lengths[seq], self.states[seq], dict(self.saved[seq]))

    def restore(self, seq, new, position):
        if not 0 <= position <= self.length(seq):
            raise ValueError(f"position {position}")
        length = max((at for at in self.saved[seq] if at <= position), default=0)
        state = self.saved[seq].get(length, torch.zeros(self.shape))
        saved = {at: x for at, x in self.saved[seq].items() if at <= length}
        self._begin(new, self.tables[seq][: length // self.block], length, state, saved)
        return length

    def free(self, seq):
        self.length(seq)
        for users in self.users:
            users.discard(seq)
        for owned in (self.tables, self.lengths, self.states, self.saved, self.tail):
            owned.pop(seq, None)

    def length(self, seq):
        if seq not in self.lengths:
            raise ValueError(f"{seq} is unknown")
        return self.lengths[seq]

    def keys(self, seq):
        return self._rows(seq)[..., : self.shape[1]]

    def values(self, seq):
        return self._rows(seq)[..., self.shape[1] :]

    def _rows(self, seq):
        n = self.length(seq)
        return self.pool[torch.tensor(self.tables[seq]).long()].flatten(0, 1)[:n].transpose(0, 1)

    def state(self, seq):
        self.length(seq)
        return self.states[seq]

    def num_free(self):
        return sum(not users for users in self.users)
