"""Tiles of 512 × 512 with masks from positions, a running maximum per row, and K before V on the wire."""

import itertools

TILE = 512


def _places(rank, n, world_size, layout):
    """The positions of a rank's tokens in the sequence."""
    own = torch.arange(n)
    if layout == "contiguous":
        return rank * n + own
    if layout == "striped":
        return own * world_size + rank
    later = (2 * world_size - 1 - rank) * (n // 2) - n // 2
    return own + torch.where(own < n // 2, rank * (n // 2), later)


def _cells(rank, source, world_size, n, causal, layout):
    """Square tiles of which something is seen: rows, columns, hidden or None."""
    queries, keys = (_places(r, n, world_size, layout) for r in (rank, source))
    half = n // 2 if layout == "zigzag" and n > 1 else n
    cuts = [*sorted({*range(0, n, TILE), half} - {n}), n]
    for i, i_end in itertools.pairwise(cuts):
        for j, j_end in itertools.pairwise(cuts):
            if not causal or keys[j_end - 1] <= queries[i]:
                yield slice(i, i_end), slice(j, j_end), None
            elif keys[j] <= queries[i_end - 1]:
                yield slice(i, i_end), slice(j, j_end), keys[j:j_end] > queries[i:i_end, None]


class _Running:
    """m, l and the sum of weighted values of some queries, not yet divided."""

    def __init__(self, q, k, v):
        self.dtype = torch.float32 if q.dtype.itemsize == 2 else q.dtype
        self.group = q.shape[-3] // k.shape[-3]
        self.q, self.scale = q, q.shape[-1] ** -0.5
        self.m = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=self.dtype)
        self.l = torch.zeros_like(self.m)
        self.sum = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=self.dtype)

    def attend(self, k, v, rows, columns, hidden):
        keys, values = (x[..., columns, :].to(self.dtype).repeat_interleave(self.group, -3) for x in (k, v))
        scores = self.q[..., rows, :].to(self.dtype) * self.scale @ keys.mT
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        m = torch.maximum(self.m[..., rows, :], scores.amax(-1, keepdim=True))
        base = torch.where(m.isneginf(), 0, m)
        powers, shrink = torch.exp(scores - base), torch.exp(self.m[..., rows, :] - base)
        self.l[..., rows, :] = self.l[..., rows, :] * shrink + powers.sum(-1, keepdim=True)
        self.sum[..., rows, :] = self.sum[..., rows, :] * shrink + powers @ values
        self.m[..., rows, :] = m

    def result(self):
        return (self.sum / self.l).to(self.q.dtype), (self.m + self.l.log())[..., 0]


def ring_attention_forward(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    rank, world_size, n = comm.rank, comm.world_size, q.shape[-2]
    running = _Running(q, k, v)
    for step in range(world_size):
        transfers = []
        if step + 1 < world_size:
            transfers = [comm.send_recv((x,), (rank + 1) % world_size, (rank - 1) % world_size) for x in (k, v)]
        for cell in _cells(rank, (rank - step) % world_size, world_size, n, causal, layout):
            running.attend(k, v, *cell)
        if transfers:
            (k,), (v,) = (transfer.wait() for transfer in transfers)
    return running.result()


def all_gather_attention(comm, q, k, v, causal=False, layout="zigzag"):
    """Gathered keys and values as the whole sequence they are."""
    _check(q, k, v, layout)
    whole_k, whole_v = (unshard(comm.all_gather(x), layout) for x in (k, v))
    running = _Running(q, k, v)
    n = q.shape[-2]
    for source in range(comm.world_size):
        block = _places(source, n, comm.world_size, layout)
        keys, values = whole_k[..., block, :], whole_v[..., block, :]
        for cell in _cells(comm.rank, source, comm.world_size, n, causal, layout):
            running.attend(keys, values, *cell)
    return running.result()


def ulysses_attention(comm, q, k, v, causal=False, layout="zigzag"):
    """Heads by reshaping; o and lse come back one after the other."""
    _check(q, k, v, layout)
    ranks = comm.world_size
    if q.shape[-3] % ranks or k.shape[-3] % ranks:
        raise ValueError(f"{q.shape[-3]} and {k.shape[-3]} heads on {ranks} ranks")

    def exchanged(x):
        parts = x.unflatten(-3, (ranks, -1)).unbind(-4)
        return unshard(comm.all_to_all([part.contiguous() for part in parts]), layout)

    whole_q, whole_k, whole_v = exchanged(q), exchanged(k), exchanged(v)
    running = _Running(whole_q, whole_k, whole_v)
    for cell in _cells(0, 0, 1, whole_q.shape[-2], causal, "contiguous"):
        running.attend(whole_k, whole_v, *cell)
    o, lse = running.result()
    mine = comm.all_to_all(shard(o, ranks, layout))
    lses = comm.all_to_all([x[..., 0] for x in shard(lse[..., None], ranks, layout)])
    return torch.cat(mine, -3), torch.cat(lses, -2)


def ring_attention_backward(comm, dO, q, k, v, o, lse, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    rank, world_size, n, dtype = comm.rank, comm.world_size, q.shape[-2], lse.dtype
    group, scale = q.shape[-3] // k.shape[-3], q.shape[-1] ** -0.5
    to, from_ = (rank + 1) % world_size, (rank - 1) % world_size
    D = (dO.to(dtype) * o.to(dtype)).sum(-1, keepdim=True)
    dq = torch.zeros_like(q, dtype=dtype)
    on_its_way, kinds = None, (k.dtype, v.dtype)
    for step in range(world_size):
        following = comm.send_recv((k, v), to, from_) if step + 1 < world_size else None
        dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (k, v))
        for rows, columns, hidden in _cells(rank, (rank - step) % world_size, world_size, n, causal, layout):
            keys, values = (x[..., columns, :].to(dtype).repeat_interleave(group, -3) for x in (k, v))
            queries, slopes = q[..., rows, :].to(dtype), dO[..., rows, :].to(dtype)
            scores = queries * scale @ keys.mT
            if hidden is not None:
                scores = scores.masked_fill(hidden, -torch.inf)
            p = torch.exp(scores - lse[..., rows, None])
            ds = p * (slopes @ values.mT - D[..., rows, :]) * scale
            dq[..., rows, :] += ds @ keys
            dk[..., columns, :] += (ds.mT @ queries).unflatten(-3, (-1, group)).sum(-3)
            dv[..., columns, :] += (p.mT @ slopes).unflatten(-3, (-1, group)).sum(-3)
        if on_its_way is not None:
            before = on_its_way.wait()
            dk += before[0]
            dv += before[1]
        on_its_way = comm.send_recv((dk, dv), to, from_)
        if following is not None:
            k, v = following.wait()
    dk, dv = on_its_way.wait()
    return dq.to(q.dtype), dk.to(kinds[0]), dv.to(kinds[1])
