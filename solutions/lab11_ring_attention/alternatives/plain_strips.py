"""The backward pass in strips of 512 keys, every step of the formulas a tensor with a name."""


def ring_attention_backward(comm, dO, q, k, v, o, lse, causal=False, layout="zigzag"):
    _check(q, k, v, layout)
    n, world_size, dtype = q.shape[-2], comm.world_size, lse.dtype
    group, scale = q.shape[-3] // k.shape[-3], q.shape[-1] ** -0.5
    to, from_ = (comm.rank + 1) % world_size, (comm.rank - 1) % world_size
    places = _positions(n * world_size, world_size, layout)
    own = places[comm.rank]
    queries, slopes = q.to(dtype), dO.to(dtype)
    D = (slopes * o.to(dtype)).sum(-1, keepdim=True)
    dq = torch.zeros_like(q, dtype=dtype)
    arriving = None
    for step in range(world_size):
        keys_at = places[(comm.rank - step) % world_size]
        block = comm.send_recv((k, v), to, from_) if step + 1 < world_size else None
        dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (k, v))
        half = n // 2 if causal and layout == "zigzag" else n
        for rows in (slice(0, half), slice(half, n)):
            for first in range(0, n, half):
                for start in range(first, first + half, 512):
                    columns = slice(start, min(start + 512, first + half))
                    hidden = keys_at[columns] > own[rows, None]
                    if rows.start == n or (causal and hidden.all()):
                        continue
                    keys, values = (x[..., columns, :].to(dtype).repeat_interleave(group, -3) for x in (k, v))
                    s = queries[..., rows, :] @ keys.mT * scale
                    if causal:
                        s = s.masked_fill(hidden, -torch.inf)
                    p = torch.exp(s - lse[..., rows, None])
                    dp = slopes[..., rows, :] @ values.mT
                    ds = p * (dp - D[..., rows, :])
                    dq[..., rows, :] += ds @ keys * scale
                    dk[..., columns, :] += (ds.mT @ queries[..., rows, :] * scale).unflatten(-3, (-1, group)).sum(-3)
                    dv[..., columns, :] += (p.mT @ slopes[..., rows, :]).unflatten(-3, (-1, group)).sum(-3)
        if arriving is not None:
            before = arriving.wait()
            dk, dv = dk + before[0], dv + before[1]
        arriving = comm.send_recv((dk, dv), to, from_)
        if block is not None:
            k, v = block.wait()
    dk, dv = arriving.wait()
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _try_it():
    """Two ranks with one token each, as the handout suggests."""
    from labkit.ranks.threads import run_ranks

    q = torch.zeros(1, 1, 1)
    values = torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0)
    for o, lse in run_ranks(ring_attention_forward, [(q, q, v, False, "contiguous") for v in values]).results:
        print(o, lse)


if __name__ == "__main__":
    _try_it()
