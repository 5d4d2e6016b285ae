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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()
