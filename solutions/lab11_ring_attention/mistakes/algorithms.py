"""Other algorithms: mistakes that no edit of the solution makes."""

import numpy as np
import torch


def unshard_without_folding(shards, layout="contiguous", dim=-2):
    n_ranks = len(shards)
    if layout != "zigzag" or not shards or any(x.shape != shards[0].shape for x in shards):
        return _in_order(shards, layout, dim)
    halves = [x.chunk(2, dim) for x in shards]
    _positions(n_ranks * shards[0].shape[dim], n_ranks, layout)
    return torch.cat([pair[half] for half in (0, 1) for pair in halves], dim)


def _in_order(shards, layout, dim):
    if not shards:
        raise ValueError("no shards")
    for other in shards:
        if other.shape != shards[0].shape:
            raise ValueError(f"{tuple(shards[0].shape)} and {tuple(other.shape)}")
    joined = torch.cat(list(shards), dim)
    return joined.index_select(dim, torch.cat(_positions(joined.shape[dim], len(shards), layout)).argsort())


def ring_reads_early(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    rows = _Rows(q, k, v)
    for tile in _tiles(comm.rank, comm.rank, comm.world_size, q.shape[-2], causal, layout):
        rows.attend(k, v, *tile)
    for step in range(1, comm.world_size):
        on_its_way = comm.send_recv((k, v), to, from_)
        source = (comm.rank - step) % comm.world_size
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(*on_its_way.tensors, *tile)
        k, v = on_its_way.wait()
    return rows.result(q)


def ring_sends_first(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    rows = _Rows(q, k, v)
    for step in range(comm.world_size):
        source = (comm.rank - step) % comm.world_size
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(k, v, *tile)
        if step < comm.world_size - 1:
            comm.send_recv((k, v), to, None).wait()
            k, v = comm.send_recv((k, v), None, from_).wait()
    return rows.result(q)


def ring_gathers_first(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    rows = _Rows(q, k, v)
    blocks = [(k, v)]
    while len(blocks) < comm.world_size:
        blocks.append(comm.send_recv(blocks[-1], to, from_).wait())
    for step, (keys, values) in enumerate(blocks):
        source = (comm.rank - step) % comm.world_size
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(keys, values, *tile)
    return rows.result(q)


def ring_waits_at_once(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    rows = _Rows(q, k, v)
    for step in range(comm.world_size):
        source = (comm.rank - step) % comm.world_size
        following = comm.send_recv((k, v), to, from_).wait() if step < comm.world_size - 1 else (k, v)
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(k, v, *tile)
        k, v = following
    return rows.result(q)


def _masked(q, k, v, hidden):
    """Attention with a mask over a whole block: (o, lse) of each query, 0 and −inf where it sees nothing."""
    group = q.shape[-3] // k.shape[-3]
    precise = torch.float32 if q.dtype.itemsize == 2 else q.dtype
    k, v = (x.to(precise).repeat_interleave(group, -3) for x in (k, v))
    scores = (q.to(precise) @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None]) @ v, lse


def _hidden(rank, source, comm, n, causal, layout):
    places = _positions(n * comm.world_size, comm.world_size, layout)
    return (places[source] > places[rank][:, None]) if causal else torch.zeros(n, n, dtype=torch.bool)


def _put_together(parts, q):
    outputs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    lse = lses.logsumexp(0)
    return (torch.exp(lses - lse)[..., None] * outputs).sum(0).to(q.dtype), lse


def ring_masks_everything(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    parts = []
    for step in range(comm.world_size):
        on_its_way = comm.send_recv((k, v), to, from_) if step < comm.world_size - 1 else None
        source = (comm.rank - step) % comm.world_size
        parts.append(_masked(q, k, v, _hidden(comm.rank, source, comm, q.shape[-2], causal, layout)))
        if on_its_way is not None:
            k, v = on_its_way.wait()
    return _put_together(parts, q)


def gather_masks_everything(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    parts = [
        _masked(q, *block, _hidden(comm.rank, source, comm, q.shape[-2], causal, layout))
        for source, block in enumerate(zip(comm.all_gather(k), comm.all_gather(v), strict=True))
    ]
    return _put_together(parts, q)


def ring_averages(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    outputs, lses = [], []
    for step in range(comm.world_size):
        on_its_way = comm.send_recv((k, v), to, from_) if step < comm.world_size - 1 else None
        source = (comm.rank - step) % comm.world_size
        o, lse = _masked(q, k, v, _hidden(comm.rank, source, comm, q.shape[-2], causal, layout))
        outputs.append(o)
        lses.append(lse)
        if on_its_way is not None:
            k, v = on_its_way.wait()
    return torch.stack(outputs).mean(0).to(q.dtype), torch.stack(lses).logsumexp(0)


def ring_heads_modulo(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    heads = torch.arange(q.shape[-3]) % k.shape[-3]
    rows = _Rows(q, k[..., heads, :, :], v[..., heads, :, :])
    for step in range(comm.world_size):
        source = (comm.rank - step) % comm.world_size
        on_its_way = comm.send_recv((k, v), to, from_) if step < comm.world_size - 1 else None
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(k[..., heads, :, :], v[..., heads, :, :], *tile)
        if on_its_way is not None:
            k, v = on_its_way.wait()
    return rows.result(q)


def gather_whole_matrix(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    n, P = q.shape[-2], comm.world_size
    places = _positions(n * P, P, layout)
    keys, values = torch.cat(comm.all_gather(k), -2), torch.cat(comm.all_gather(v), -2)
    hidden = (torch.cat(places) > places[comm.rank][:, None]) & causal
    o, lse = _masked(q, keys, values, hidden)
    return o.to(q.dtype), lse


def ulysses_whole_matrix(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    P = comm.world_size
    for x in (q, k):
        if x.shape[-3] % P:
            raise ValueError(f"{x.shape[-3]} heads cannot be shared out to {P} ranks")
    q, k, v = (unshard(comm.all_to_all(x.chunk(P, -3)), layout) for x in (q, k, v))
    tokens = torch.arange(q.shape[-2])
    o, lse = _masked(q, k, v, (tokens > tokens[:, None]) & causal)
    mine = comm.all_to_all(shard(o.to(q.dtype), P, layout))
    return torch.cat(mine, -3), torch.cat(comm.all_to_all(shard(lse, P, layout, dim=-1)), -2)


def _in_numpy(q, k, v, hidden):
    """Attention with a mask in NumPy, which meters of tensors do not see: (o, lse) of each query."""
    group, precise = q.shape[-3] // k.shape[-3], torch.float32 if q.dtype.itemsize == 2 else q.dtype
    k, v = (x.to(precise).repeat_interleave(group, -3) for x in (k, v))
    scores = np.matmul(q.to(precise).numpy(), k.mT.numpy()) * np.asarray(q.shape[-1] ** -0.5, k.numpy().dtype)
    scores[..., hidden.numpy()] = -np.inf
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    return torch.from_numpy(powers / total @ v.numpy()), torch.from_numpy((top + np.log(total))[..., 0])


def gather_in_numpy(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    n, P = q.shape[-2], comm.world_size
    places = _positions(n * P, P, layout)
    keys, values = torch.cat(comm.all_gather(k), -2), torch.cat(comm.all_gather(v), -2)
    o, lse = _in_numpy(q, keys, values, (torch.cat(places) > places[comm.rank][:, None]) & causal)
    return o.to(q.dtype), lse


def ulysses_in_numpy(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    P = comm.world_size
    for x in (q, k):
        if x.shape[-3] % P:
            raise ValueError(f"{x.shape[-3]} heads cannot be shared out to {P} ranks")
    q, k, v = (unshard(comm.all_to_all(x.chunk(P, -3)), layout) for x in (q, k, v))
    tokens = torch.arange(q.shape[-2])
    o, lse = _in_numpy(q, k, v, (tokens > tokens[:, None]) & causal)
    mine = comm.all_to_all(shard(o.to(q.dtype), P, layout))
    return torch.cat(mine, -3), torch.cat(comm.all_to_all(shard(lse, P, layout, dim=-1)), -2)
