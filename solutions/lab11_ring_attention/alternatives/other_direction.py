"""The ring turns the other way, keys and values travel as one tensor, and layouts are slices; work in closed form."""


def shard(x, world_size, layout="contiguous", dim=-2):
    n_tokens = x.shape[dim]
    _refuse(n_tokens, world_size, layout)
    if layout == "zigzag":
        runs = x.chunk(2 * world_size, dim)
        return tuple(torch.cat([runs[rank], runs[-1 - rank]], dim) for rank in range(world_size))
    n = n_tokens // world_size
    if layout == "contiguous":
        return tuple(x.narrow(dim, rank * n, n) for rank in range(world_size))
    by_stripe = x.unflatten(dim, (n, world_size))
    axis = dim + 1 if dim >= 0 else dim
    return tuple(by_stripe.select(axis, rank) for rank in range(world_size))


def unshard(shards, layout="contiguous", dim=-2):
    if len(shards) == 0:
        raise ValueError("there is no shard")
    shapes = [tuple(x.shape) for x in shards]
    different = [shape for shape in shapes if shape != shapes[0]]
    if different:
        raise ValueError(f"shards of {shapes[0]} and {different[0]}")
    _refuse(shapes[0][dim] * len(shards), len(shards), layout)
    if layout == "striped":
        return torch.stack(list(shards), dim + 1 if dim >= 0 else dim).flatten(
            *((dim, dim + 1) if dim >= 0 else (dim - 1, dim))
        )
    if layout == "contiguous":
        return torch.cat(tuple(shards), dim)
    early, late = zip(*(x.chunk(2, dim) for x in shards), strict=True)
    return torch.cat((*early, *reversed(late)), dim)


def _refuse(n_tokens, world_size, layout):
    if layout not in ("contiguous", "zigzag", "striped"):
        raise ValueError(f"there is no layout {layout!r}")
    least = 2 * world_size if layout == "zigzag" else world_size
    if world_size < 1 or n_tokens % least != 0:
        raise ValueError(f"{n_tokens} tokens on world_size={world_size}, {layout}")


def causal_work(seq_len, world_size, layout):
    _refuse(seq_len, world_size, layout)
    n = seq_len // world_size
    triangle = n * (n + 1) // 2
    work = []
    for rank in range(world_size):
        sources = [(rank - step) % world_size for step in range(world_size)]
        if layout == "contiguous":
            work.append([triangle if s == rank else n * n * (s < rank) for s in sources])
        elif layout == "striped":
            work.append([triangle if s <= rank else triangle - n for s in sources])
        else:  # of two shards of two runs each, half of the pairs are seen
            work.append([triangle if s == rank else n * n // 2 for s in sources])
    return torch.tensor(work)


def ring_attention_forward(comm, q, k, v, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    to, from_ = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
    rows = _Rows(q, k, v)
    widths = (k.shape[-1], v.shape[-1])
    block = torch.cat((k, v), -1)
    source = comm.rank
    while True:
        last = source == (comm.rank - 1) % comm.world_size
        transfer = None if last else comm.send_recv([block], to, from_)
        keys, values = block.split(widths, -1)
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(keys, values, *tile)
        if transfer is None:
            return rows.result(q)
        (block,) = transfer.wait()
        source = (source + 1) % comm.world_size


def ring_attention_backward(comm, dO, q, k, v, o, lse, causal=False, layout="zigzag"):
    """The sums of a block are asked for before its part is computed."""
    _check(q, k, v, layout)
    to, from_ = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
    slopes = _Slopes(dO, q, k, v, o, lse)
    dtypes = k.dtype, v.dtype
    before = None
    for step in range(comm.world_size):
        source = (comm.rank + step) % comm.world_size
        keys = comm.send_recv([k], to, from_) if step < comm.world_size - 1 else None
        values = comm.send_recv([v], to, from_) if step < comm.world_size - 1 else None
        tiles = _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout)
        dk, dv = slopes.of_block(k, v, tiles)
        if before is not None:
            of_others = before.wait()
            dk, dv = dk + of_others[0], dv + of_others[1]
        before = comm.send_recv([dk, dv], to, from_)
        if keys is not None:
            (k,), (v,) = keys.wait(), values.wait()
    dk, dv = before.wait()
    return slopes.dq(q), dk.to(dtypes[0]), dv.to(dtypes[1])


def communication_bytes(method, world_size, seq_len, heads, kv_heads, head_dim, dtype_bytes, backward=False):
    if method not in ("ring", "all_gather", "ulysses"):
        raise ValueError(method)
    if world_size < 1 or seq_len % world_size:
        raise ValueError(f"{seq_len} tokens on {world_size} ranks")
    if heads % kv_heads:
        raise ValueError(f"{heads} heads on {kv_heads}")
    if method == "ulysses" and kv_heads % world_size:
        raise ValueError(f"{kv_heads} heads on {world_size} ranks")
    tokens, sums = seq_len // world_size, dtype_bytes if dtype_bytes > 4 else 4
    a_token = 2 * kv_heads * head_dim
    if method == "ulysses":
        a_token = (2 * heads * head_dim + a_token) * dtype_bytes + heads * sums
        if backward:
            a_token = (3 * heads + 4 * kv_heads) * head_dim * dtype_bytes + 2 * heads * sums
        return a_token // world_size * tokens * (world_size - 1)
    total = a_token * tokens * (world_size - 1) * dtype_bytes
    if backward and world_size > 1:
        total += a_token * tokens * (world_size if method == "ring" else world_size - 1) * sums
    return total


def minimal_block(flops, bandwidth):
    if flops <= 0:
        raise ValueError(f"flops={flops}")
    if bandwidth <= 0:
        raise ValueError(f"bandwidth={bandwidth}")
    quotient, rest = divmod(int(flops), int(bandwidth))
    return quotient + (rest > 0)
