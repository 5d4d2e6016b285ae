"""Lab 11: attention over a sequence that is split over ranks: what each sends, how many bytes, and which one waits."""

from collections.abc import Sequence

import torch

from labkit.ranks.comm import Comm


def shard(x: torch.Tensor, world_size: int, layout: str = "contiguous", dim: int = -2) -> list[torch.Tensor]:
    """Cut a tensor whose axis `dim` is a sequence of N tokens into one shard per rank, n = N / world_size tokens each.

    - "contiguous": rank r holds tokens r · n to (r + 1) · n − 1.
    - "zigzag": the sequence is cut into 2 · world_size equal runs; rank r holds run r and run 2 · world_size − 1 − r,
      in this order.
    - "striped": rank r holds tokens r, r + world_size, r + 2 · world_size, …

    Args:
        x: any tensor, of any dtype.
        world_size: number of ranks, at least 1.
        layout: one of the three.
        dim: the axis of the tokens; negative ones count from the end.

    Returns:
        The shards, rank by rank, in x's dtype; their other axes are x's.

    Raises:
        ValueError: naming the layout, when it is unknown; naming N and world_size, when N is not a multiple of
            world_size ("zigzag": of 2 · world_size), or world_size is below 1.

    Example:
        With tokens 0 to 7 and 2 ranks, rank 0 holds 0 1 2 3 (contiguous), 0 1 6 7 (zigzag), 0 2 4 6 (striped).
    """
    ### BEGIN SOLUTION
    positions = _positions(x.shape[dim], world_size, layout)
    return [x.index_select(dim, rows.to(x.device)) for rows in positions]
    ### END SOLUTION


def unshard(shards: Sequence[torch.Tensor], layout: str = "contiguous", dim: int = -2) -> torch.Tensor:
    """The whole tensor from the ranks' shards: `unshard(shard(x, P, layout, dim), layout, dim)` is x.

    Args:
        shards: one tensor for each rank, rank by rank, all of one shape and dtype.
        layout: how the sequence was split: "contiguous", "zigzag" or "striped".
        dim: the axis of the tokens.

    Returns:
        A tensor whose axis `dim` is as long as those of all shards together.

    Raises:
        ValueError: naming the layout, when it is unknown; naming both shapes, when two shards differ in shape; naming
            the length of a shard, when it cannot be two equal runs ("zigzag"); when there are no shards.

    Example:
        [0 1 6 7] and [2 3 4 5] are 0 to 7 in "zigzag".
    """
    ### BEGIN SOLUTION
    if not shards:
        raise ValueError("shards is empty: there is at least one rank")
    for other in shards:
        if other.shape != shards[0].shape:
            raise ValueError(f"shards must be of one shape: {tuple(shards[0].shape)} and {tuple(other.shape)}")
    joined = torch.cat(list(shards), dim)
    where_from = torch.cat(_positions(joined.shape[dim], len(shards), layout))
    return joined.index_select(dim, where_from.argsort().to(joined.device))
    ### END SOLUTION


def causal_work(seq_len: int, world_size: int, layout: str) -> torch.Tensor:
    """How many pairs of a query and a key each rank must compute in each step of the ring, when attention is causal.

    In step t = 0, 1, …, world_size − 1 rank r holds the keys of rank (r − t) mod world_size. A pair (i, j) of positions
    in the whole sequence counts when j ≤ i.

    Args:
        seq_len: N, tokens of the whole sequence; it may be millions.
        world_size: number of ranks.
        layout: "contiguous", "zigzag" or "striped".

    Returns:
        (world_size, world_size), int64: of rank r in step t. In sum N (N + 1) / 2.

    Raises:
        ValueError: as `shard`.

    Example:
        8 tokens, 2 ranks: contiguous [[10, 0], [10, 16]], zigzag [[10, 8], [10, 8]], striped [[10, 6], [10, 10]].
    """
    ### BEGIN SOLUTION
    positions = _positions(seq_len, world_size, layout)
    work = torch.empty(world_size, world_size, dtype=torch.int64)
    for rank in range(world_size):
        for step in range(world_size):
            keys = positions[(rank - step) % world_size]  # in order, so that a search counts those up to a query
            work[rank, step] = torch.searchsorted(keys, positions[rank], right=True).sum()
    return work
    ### END SOLUTION


def ring_attention_forward(
    comm: Comm,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    layout: str = "zigzag",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of this rank's queries over the keys of all ranks, whose blocks make P − 1 hops around a ring.

    Every rank calls it with its own shards. The result is this rank's rows of
    O = softmax(Q Kᵀ / √d) V and L = log Σ exp(scores) over the whole sequence.

    Args:
        comm: the rank's connection with the others (`rank`, `world_size`, `send_recv`, …).
        q: this rank's queries, (..., H, n, d), float64, float32, bfloat16 or float16.
        k: its keys, (..., H_kv, n, d); query head h reads key head h // (H / H_kv).
        v: its values, (..., H_kv, n, d_v).
        causal: the query at position i of the whole sequence sees the key at position j when j ≤ i. Tiles that are
            hidden entirely are not computed.
        layout: how the sequence is split, as in `shard`.

    Returns:
        (o, lse): o (..., H, n, d_v) in q's dtype; lse (..., H, n), natural, float32 for half precision and otherwise
        in q's dtype, as are all sums. The scores never exist all at once: at most n · 512 per head.

    Raises:
        ValueError: before anything is sent: naming H and H_kv when H_kv does not divide H; both shapes when q and k
            differ in d, or k and v in more than the width; the layout when it is unknown.

    Example:
        2 ranks with one query, key and value each, d = 1: q = 0 on both, values 1 and 3. Every o is 2, every lse
        log 2 = 0.6931; causal, rank 0 gets 1 and 0.
    """
    ### BEGIN SOLUTION
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    rows = _Rows(q, k, v)
    for step in range(comm.world_size):
        source = (comm.rank - step) % comm.world_size
        on_its_way = comm.send_recv((k, v), to, from_) if step < comm.world_size - 1 else None
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(k, v, *tile)
        if on_its_way is not None:
            k, v = on_its_way.wait()
    return rows.result(q)
    ### END SOLUTION


def ring_attention_backward(
    comm: Comm,
    dO: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    causal: bool = False,
    layout: str = "zigzag",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of Σ O ∘ dO over the whole sequence with respect to this rank's q, k and v.

    Keys and values make P − 1 hops as in the forward pass. The sums dK and dV of a block follow it from rank to rank,
    P hops, the last of which returns them to the owner. With p = exp(s − lse), the weights of the whole row,
    D = rowsum(dO ∘ o) and ds = p ∘ (dO vᵀ − D): dV = pᵀ dO, dQ = ds K / √d, dK = dsᵀ Q / √d.

    Args:
        comm: as in `ring_attention_forward`.
        dO: this rank's rows of the gradient of O, (..., H, n, d_v), in q's dtype.
        q: as given to `ring_attention_forward`.
        k: likewise.
        v: likewise.
        o: what it returned.
        lse: what it returned.
        causal: as given to it.
        layout: as given to it.

    Returns:
        (dq, dk, dv), of the shapes and the dtype of q, k and v. Sums, even while they are sent, are kept in lse's
        dtype.

    Raises:
        ValueError: as `ring_attention_forward`.

    Example:
        2 ranks with one query, key and value each, d = 1: q = 0, k = 1 on both, values 1 and 3, dO = 1. Every dv is 1;
        every dk is 0; dq is 0 too.
    """
    ### BEGIN SOLUTION
    _check(q, k, v, layout)
    to, from_ = _neighbours(comm)
    slopes = _Slopes(dO, q, k, v, o, lse)
    sums = None
    for step in range(comm.world_size):
        source = (comm.rank - step) % comm.world_size
        on_its_way = comm.send_recv((k, v), to, from_) if step < comm.world_size - 1 else None
        own = slopes.of_block(k, v, _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout))
        if sums is not None:  # what the ranks before have added up for this block
            for mine, theirs in zip(own, sums.wait(), strict=True):
                mine += theirs
        sums = comm.send_recv(own, to, from_)
        if on_its_way is not None:
            k, v = on_its_way.wait()
    dk, dv = sums.wait()
    return slopes.dq(q), dk.to(k.dtype), dv.to(v.dtype)
    ### END SOLUTION


def all_gather_attention(
    comm: Comm,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    layout: str = "zigzag",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `ring_attention_forward` by another method: each rank gathers all keys and values, then computes.

    As many bytes are sent as in the ring. All blocks are held at once, and nothing is computed during the transfer.

    Args:
        comm: the rank's connection; its `all_gather` sends a tensor to all others.
        q: as in `ring_attention_forward`.
        k: likewise.
        v: likewise.
        causal: likewise: tiles that are hidden entirely are not computed.
        layout: likewise.

    Returns:
        (o, lse), as `ring_attention_forward`. The scores never exist all at once: at most n · n per head.

    Raises:
        ValueError: as `ring_attention_forward`.

    Example:
        As `ring_attention_forward`'s.
    """
    ### BEGIN SOLUTION
    _check(q, k, v, layout)
    keys, values = comm.all_gather(k), comm.all_gather(v)
    rows = _Rows(q, k, v)
    for source in range(comm.world_size):
        for tile in _tiles(comm.rank, source, comm.world_size, q.shape[-2], causal, layout):
            rows.attend(keys[source], values[source], *tile)
    return rows.result(q)
    ### END SOLUTION


def ulysses_attention(
    comm: Comm,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    layout: str = "zigzag",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `ring_attention_forward` by a third method: ranks exchange tokens for heads, and back.

    Rank r gets the whole sequence of heads r · H / P to (r + 1) · H / P − 1, attends, and sends each rank its rows.

    Args:
        comm: the rank's connection; its `all_to_all` sends a different tensor to each rank.
        q: as in `ring_attention_forward`.
        k: likewise.
        v: likewise.
        causal: likewise.
        layout: likewise.

    Returns:
        (o, lse), as `ring_attention_forward`. The scores never exist all at once: at most N · n per head.

    Raises:
        ValueError: as `ring_attention_forward`; and naming the number of heads and of ranks, when the ranks do not
            divide H or H_kv.

    Example:
        As `ring_attention_forward`'s, with two heads that are alike.
    """
    ### BEGIN SOLUTION
    _check(q, k, v, layout)
    n_ranks = comm.world_size
    for name, x in (("q", q), ("k", k)):
        if x.shape[-3] % n_ranks:
            raise ValueError(f"{x.shape[-3]} heads of {name} cannot be shared out to {n_ranks} ranks")
    whole = [unshard(comm.all_to_all(x.chunk(n_ranks, -3)), layout) for x in (q, k, v)]
    rows = _Rows(*whole)
    rows.attend(*whole[1:], *_tiles(0, 0, 1, whole[0].shape[-2], causal, "contiguous")[0])
    o, lse = rows.result(whole[0])
    mine = comm.all_to_all(shard(o, n_ranks, layout))
    my_lse = comm.all_to_all(shard(lse, n_ranks, layout, dim=-1))
    return torch.cat(mine, -3), torch.cat(my_lse, -2)
    ### END SOLUTION


def communication_bytes(
    method: str,
    world_size: int,
    seq_len: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype_bytes: int,
    backward: bool = False,
) -> int:
    """The exact bytes that one rank sends to others for one attention; keys and values have the same width.

    What is sent, in blocks of a rank's own n = N / world_size tokens; sums and log-sum-exps take at least 4 bytes per
    number, everything else `dtype_bytes`. A single rank sends nothing.

    - "ring": K and V, world_size − 1 hops. Backward: again, and dK and dV, as sums, world_size hops.
    - "all_gather": K and V to every other rank. Backward: again, and to each its part of dK and dV, as sums.
    - "ulysses": for each other rank its heads' share of q, k and v, and of o and lse on the way back. Backward: of q,
      k, v, dO, lse and D (like lse one number per row), and on the way back of dq, dk and dv, which are complete.

    Args:
        method: one of the three.
        world_size: number of ranks.
        seq_len: N, tokens of the whole sequence.
        heads: H, query heads.
        kv_heads: H_kv, heads of keys and values.
        head_dim: d, the width of queries, keys and values.
        dtype_bytes: of one number of the inputs: 2, 4 or 8.
        backward: of the backward pass alone, instead of the forward pass.

    Returns:
        Bytes.

    Raises:
        ValueError: naming the method, when it is unknown; naming both numbers, when one does not divide the other:
            world_size N, kv_heads heads, and for "ulysses" world_size heads and kv_heads.

    Example:
        4 ranks, N = 16, H = 8, H_kv = 4, d = 8, 2 bytes: "ring" sends 3 · 2 · (4 · 4 · 8) · 2 = 1536, backward 1536 +
        4 · 2 · (4 · 4 · 8) · 4 = 5632; "ulysses" 1248, backward 2112.
    """
    ### BEGIN SOLUTION
    if method not in ("ring", "all_gather", "ulysses"):
        raise ValueError(f"method={method!r}: there are 'ring', 'all_gather' and 'ulysses'")
    divisions = [("seq_len", seq_len, "world_size", world_size), ("heads", heads, "kv_heads", kv_heads)]
    if method == "ulysses":
        divisions += [(name, n, "world_size", world_size) for name, n in (("heads", heads), ("kv_heads", kv_heads))]
    for name, number, divisor_name, divisor in divisions:
        if divisor < 1 or number % divisor:
            raise ValueError(f"{name}={number} is no multiple of {divisor_name}={divisor}")
    n, others = seq_len // world_size, world_size - 1
    sum_bytes = max(dtype_bytes, 4)
    kv, q, one_a_row = n * kv_heads * head_dim, n * heads * head_dim, n * heads  # numbers of a rank's own tokens
    if world_size == 1:
        return 0
    if method == "ring":
        block = 2 * kv
        return others * block * dtype_bytes + (world_size * block * sum_bytes if backward else 0)
    if method == "all_gather":
        return others * 2 * kv * (dtype_bytes + sum_bytes if backward else dtype_bytes)
    if backward:
        whole = (3 * q + 4 * kv) * dtype_bytes + 2 * one_a_row * sum_bytes
    else:
        whole = (2 * q + 2 * kv) * dtype_bytes + one_a_row * sum_bytes
    return others * whole // world_size
    ### END SOLUTION


def minimal_block(flops: float, bandwidth: float) -> int:
    """The smallest number of tokens on a rank for which the ring's transfer takes no longer than its arithmetic.

    In a step a rank with c tokens computes 4 · c² · d FLOPs per head and sends a block of K and one of V, 2 · c · d
    numbers of two bytes per head: in a forward pass without a mask, with as many key heads as query heads. Both run at
    the same time, each at its own speed.

    Args:
        flops: FLOP/s of a rank.
        bandwidth: bytes/s from a rank to the next.

    Returns:
        The smallest c for which computing takes no less time than sending, at least 1.

    Raises:
        ValueError: naming the argument, when it is not above 0.

    Example:
        312 · 10¹² FLOP/s and 12.5 · 10⁹ bytes/s: 24,960.
    """
    ### BEGIN SOLUTION
    import math

    for name, number in (("flops", flops), ("bandwidth", bandwidth)):
        if not number > 0:
            raise ValueError(f"{name}={number} is not above 0")
    return math.ceil(flops / bandwidth)  # 4 c² d / flops ≥ 4 c d / bandwidth
    ### END SOLUTION


### BEGIN SOLUTION
STRIP = 256
"""Keys that a rank's queries meet at a time: scores are n × STRIP, and memory grows with n."""


def _positions(seq_len, world_size, layout):
    """The positions of each rank's tokens in the whole sequence, in the order in which it holds them."""
    multiple = 2 * world_size if layout == "zigzag" else world_size
    if world_size < 1 or seq_len % multiple:
        raise ValueError(f"{seq_len} tokens cannot be shared out to world_size={world_size} in the layout {layout!r}")
    tokens = torch.arange(seq_len)
    if layout == "contiguous":
        return list(tokens.chunk(world_size))
    if layout == "zigzag":
        runs = tokens.view(2 * world_size, -1)
        return [torch.cat([runs[rank], runs[2 * world_size - 1 - rank]]) for rank in range(world_size)]
    if layout == "striped":
        return [tokens[rank::world_size].contiguous() for rank in range(world_size)]
    raise ValueError(f"layout={layout!r}: there are 'contiguous', 'zigzag' and 'striped'")


def _tiles(rank, source, world_size, n, causal, layout):
    """The visible tiles of the queries of `rank` and the keys of `source`: (rows, columns, shift).

    In a tile row a sees column b when b ≤ a + shift, both counted inside it, and everything where shift is None.
    """
    everything = slice(0, n)
    if not causal:
        return [(everything, everything, None)]
    if layout == "striped":  # a · P + rank ≥ b · P + source
        return [(everything, everything, 0 if source <= rank else -1)]
    tiles = []
    for run, rows in _runs(rank, world_size, n, layout):
        for other, columns in _runs(source, world_size, n, layout):
            if other <= run:
                tiles.append((rows, columns, 0 if other == run else None))
    return tiles


def _runs(rank, world_size, n, layout):
    """The runs of neighbouring tokens that a rank holds: (number of the run, its rows)."""
    if layout == "contiguous":
        return [(rank, slice(0, n))]
    return [(rank, slice(0, n // 2)), (2 * world_size - 1 - rank, slice(n // 2, n))]


def _strips(rows, columns, shift):
    """Cut a tile into strips of columns, each with the rows that see any of it: (rows, columns, hidden or None)."""
    for start in range(columns.start, columns.stop, STRIP):
        stop = min(start + STRIP, columns.stop)
        if shift is None:
            yield rows, slice(start, stop), None
            continue
        first = max(start - columns.start - shift, 0)
        a = torch.arange(first, rows.stop - rows.start)
        b = torch.arange(start - columns.start, stop - columns.start)
        if len(a):
            yield slice(rows.start + first, rows.stop), slice(start, stop), b > a[:, None] + shift


class _Rows:
    """Attention of some queries, one block of keys and values at a time; keeps an output and a log-sum-exp per row."""

    def __init__(self, q, k, v):
        precise = torch.float32 if q.dtype.itemsize == 2 else q.dtype
        self.q = q.unflatten(-3, (k.shape[-3], -1))  # (..., H_kv, group, n, d)
        self.o = torch.zeros(*self.q.shape[:-1], v.shape[-1], dtype=precise)
        self.lse = torch.full(self.q.shape[:-1], -torch.inf, dtype=precise)

    def attend(self, k, v, rows, columns, shift):
        """Let the queries `rows` attend to the keys `columns` of a block."""
        for part, strip, hidden in _strips(rows, columns, shift):
            scores = _scores(self.q[..., part, :], k[..., strip, :], hidden, self.lse.dtype)
            lse = scores.logsumexp(-1)
            weights = scores.sub_(lse[..., None]).exp_()
            o = _of_groups(weights.flatten(-3, -2) @ v[..., strip, :].to(weights.dtype), weights)
            self._merge(part, o, lse)

    def _merge(self, part, o, lse):
        before = self.lse[..., part]
        both = torch.logaddexp(before, lse)
        self.o[..., part, :] *= torch.exp(before - both)[..., None]
        self.o[..., part, :] += o.mul_(torch.exp(lse - both)[..., None])
        self.lse[..., part] = both

    def result(self, q):
        return self.o.flatten(-4, -3).to(q.dtype), self.lse.flatten(-3, -2)


class _Slopes:
    """The gradients of some queries' attention, one block of keys and values at a time."""

    def __init__(self, dO, q, k, v, o, lse):
        group = (k.shape[-3], -1)
        self.q, self.dO = q.unflatten(-3, group), dO.unflatten(-3, group).to(lse.dtype)
        self.lse = lse.unflatten(-2, group)
        self.D = (self.dO * o.unflatten(-3, group)).sum(-1)
        self.scale = q.shape[-1] ** -0.5
        self._dq = torch.zeros_like(self.q, dtype=lse.dtype)

    def of_block(self, k, v, tiles):
        """(dk, dv) of a block of keys and values from these queries only; dq is summed here."""
        dk, dv = (torch.zeros_like(x, dtype=self.lse.dtype) for x in (k, v))
        for tile in tiles:
            for part, strip, hidden in _strips(*tile):
                k_strip, v_strip = (x[..., strip, :].to(self.lse.dtype) for x in (k, v))
                rows, dO = self.q[..., part, :].to(dk.dtype).flatten(-3, -2), self.dO[..., part, :].flatten(-3, -2)
                p = _scores(self.q[..., part, :], k_strip, hidden, self.lse.dtype)
                p = p.sub_(self.lse[..., part, None]).exp_().flatten(-3, -2)
                dv[..., strip, :] += p.mT @ dO
                ds = (dO @ v_strip.mT).sub_(self.D[..., part].flatten(-2, -1)[..., None]).mul_(p).mul_(self.scale)
                dk[..., strip, :] += ds.mT @ rows
                self._dq[..., part, :] += _of_groups(ds @ k_strip, self._dq[..., part, :])
        return dk, dv

    def dq(self, q):
        return self._dq.flatten(-4, -3).to(q.dtype)


def _scores(q, k, hidden, dtype):
    """(..., H_kv, group, rows, columns): the queries of a group are rows of one product with their keys."""
    rows = q.to(dtype).flatten(-3, -2)
    scores = _of_groups(rows @ k.to(dtype).mT, q).mul_(q.shape[-1] ** -0.5)
    return scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)


def _of_groups(x, like):
    """Rows (..., group · rows, width) as (..., group, rows, width)."""
    return x.unflatten(-2, like.shape[-3:-1])


def _neighbours(comm):
    """The rank to which a rank sends, and the one from which it receives."""
    return (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size


def _check(q, k, v, layout):
    if q.shape[-3] % k.shape[-3]:
        raise ValueError(f"{q.shape[-3]} query heads cannot share {k.shape[-3]} key heads")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same d: q is {tuple(q.shape)}, k is {tuple(k.shape)}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v may differ in the width alone: k is {tuple(k.shape)}, v is {tuple(v.shape)}")
    _positions(q.shape[-2], 1, layout)  # there is such a layout, and a shard can be two runs where it must


### END SOLUTION
