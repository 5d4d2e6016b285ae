"""What attention over ranks sends, holds and computes: closed forms, and assertions about what was counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from labkit.testing.compare import assert_at_most, assert_equal, assert_type, require, require_own_work
from labkit.testing.rings.shards import RingCase, positions


def work(seq_len: int, world_size: int, layout: str) -> npt.NDArray[np.int64]:
    """Pairs (i, j), j ≤ i, of each rank's queries and the keys that it holds in each step."""
    places = positions(seq_len, world_size, layout)
    found = [
        [
            np.searchsorted(places[(rank - step) % world_size], places[rank], side="right").sum()
            for step in range(world_size)
        ]
        for rank in range(world_size)
    ]
    return np.array(found, dtype=np.int64)


def tiles_not_hidden(seq_len: int, world_size: int, layout: str) -> npt.NDArray[np.int64]:
    """Pairs in those tiles of each rank and step of which some pair is seen; a tile is a run by a run of neighbours.

    A contiguous shard is one run, one in zigzag two; of a striped one, in which no two are neighbours, the whole shard
    is taken for a run.
    """
    n, seen = seq_len // world_size, np.zeros((world_size, world_size), dtype=np.int64)
    for rank, step in np.ndindex(world_size, world_size):
        source = (rank - step) % world_size
        if layout == "contiguous":
            seen[rank, step] = n * n if source <= rank else 0
        elif layout == "striped":
            seen[rank, step] = n * n
        else:
            mine, theirs = ((each, 2 * world_size - 1 - each) for each in (rank, source))
            seen[rank, step] = sum(key <= query for query in mine for key in theirs) * (n // 2) ** 2
    return seen


class Sizes(NamedTuple):
    """An attention that ranks share, as `communication_bytes` is asked for it."""

    method: str
    world_size: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int


def sent_bytes(sizes: Sizes, backward: bool) -> int:
    """The bytes that a rank sends, part by part; what is no whole number of tokens or heads is not asked for."""
    method, world_size, seq_len, heads, kv_heads, head_dim, dtype_bytes = sizes
    n, sums = seq_len // world_size, max(dtype_bytes, 4)
    block = 2 * n * kv_heads * head_dim
    hops = world_size - 1
    if world_size == 1:
        return 0
    if method == "ring":
        there = hops * block * dtype_bytes
        return there + world_size * block * sums if backward else there
    if method == "all_gather":
        return hops * block * (dtype_bytes + backward * sums)
    share = n * heads // world_size, n * kv_heads // world_size
    q, kv, rows = share[0] * head_dim, share[1] * head_dim, share[0]
    if backward:
        parts = [q * dtype_bytes] * 3 + [kv * dtype_bytes] * 4 + [rows * sums] * 2
    else:
        parts = [q * dtype_bytes] * 2 + [kv * dtype_bytes] * 2 + [rows * sums]
    return hops * sum(parts)


def bytes_suspects(sizes: Sizes, backward: bool) -> dict[str, Any]:
    """Usual mistakes with the bytes, and what they come to."""
    method, ranks, seq_len, heads, kv_heads, d, e = sizes
    right, forward = sent_bytes(sizes, backward), sent_bytes(sizes, False)
    of_query_heads, of_all_tokens = sizes._replace(kv_heads=heads), sizes._replace(seq_len=seq_len * ranks)
    found = {
        "the bytes of all ranks are counted: those that one rank sends are asked for": right * ranks,
        "bits are counted": 8 * right,
        "numbers are counted, not bytes": right // e,
        "query heads are counted for keys and values, where H_kv is meant": sent_bytes(of_query_heads, backward),
        "the whole sequence is counted where a rank sends its own N / P tokens": sent_bytes(of_all_tokens, backward),
        "the forward pass is counted in place of the backward pass": forward,
        "forward and backward are added up": right + forward,
    }
    if ranks > 1:
        found["what stays with the rank is counted: it sends to P − 1 others"] = right * ranks // (ranks - 1)
    if method != "ulysses":
        found["K is counted and V forgotten"] = right // 2
    else:
        n, sums = seq_len // ranks, max(e, 4)
        rows = (ranks - 1) * n * (heads // ranks) * sums * (2 if backward else 1)
        found["numbers that each row has one of are left out: lse, and D in the backward pass"] = right - rows
        back = heads // ranks * (d * e + (0 if backward else sums)) + (
            2 * (kv_heads // ranks) * d * e if backward else 0
        )
        found["nothing comes back: o and lse, or the gradients, travel too"] = right - (ranks - 1) * n * back
    if backward:
        n = seq_len // ranks
        block = 2 * n * kv_heads * d
        sums = max(e, 4)
        if method == "ring":
            found["dK and dV make P hops: the last brings them home"] = right - block * sums
            found["K and V travel again in the backward pass"] = right - (ranks - 1) * block * e
        if method != "ulysses" and e < 4:
            found["dK and dV travel as sums, of 4 bytes a number at least"] = (ranks - 1) * block * e + (
                ranks if method == "ring" else ranks - 1
            ) * block * e
    return _one_text_a_value({text: value for text, value in found.items() if value != right})


def _one_text_a_value(found: Mapping[str, int]) -> dict[str, int]:
    """Mistakes that lead to the same number are told together: none of them is sure."""
    texts: dict[int, list[str]] = {}
    for text, value in found.items():
        texts.setdefault(value, []).append(text)
    return {"; or when ".join(several): value for value, several in texts.items()}


def assert_bytes(function: Callable[..., Any], *given: Any, backward: bool = False) -> None:
    """Compare `communication_bytes` with the closed form."""
    call = f"communication_bytes({', '.join(map(repr, given))}{', backward=True' if backward else ''})"
    sizes = Sizes(*given)
    got = function(*given, backward=backward)
    assert_equal(call, got, sent_bytes(sizes, backward), suspects=bytes_suspects(sizes, backward))


def assert_traffic(case: RingCase, told: Mapping[str, Any], method: str, backward: bool = False) -> None:
    """Fail unless every rank sends what the closed form says, in as many tensors at most."""
    batch = int(np.prod(case.Q.shape[:-3]))
    heads, (n, d), P = case.Q.shape[-3], case.Q.shape[-2:], case.world_size
    sizes = Sizes(method, P, n, heads, case.kv_heads, d, case.Q.itemsize)
    want = batch * sent_bytes(sizes, backward)
    block = batch * 2 * (n // P) * case.kv_heads * d
    e, sums = case.Q.itemsize, max(case.Q.itemsize, 4)
    expanded = batch * sent_bytes(sizes._replace(kv_heads=heads), backward)
    wide = batch * sent_bytes(sizes._replace(dtype_bytes=4), backward)
    names = {
        "keys and values are converted to float32 before they travel": wide,
        "keys and values are expanded to all query heads before they travel": expanded,
    }
    if method == "ring":
        names[f"K and V make P = {P} hops: the last one carries them home, where they are already"] = want + block * e
        names["K and V make one hop too few"] = want - block * e
    if backward:
        names["dK and dV travel in the inputs' dtype: they are sums, of 4 bytes a number at least"] = (
            want - P * block * (sums - e)
        )
        names[f"dK and dV make P − 1 hops: {P} bring them home"] = want - block * sums
    names = _one_text_a_value({text: value for text, value in names.items() if value != want})
    for rank, sent in enumerate(told["sent_bytes"]):
        about = f"what rank {rank} of {P} sends in the {'backward' if backward else 'forward'} pass, in bytes,"
        assert_equal(about, sent, want, suspects=names)


def assert_no_hidden_pair(
    case: RingCase, told: Mapping[str, Any], name: str, numbers_a_pair: int, work_too: bool = True
) -> None:
    """Fail where a rank computes pairs of a tile that is hidden as a whole, or fewer than are seen.

    `numbers_a_pair` is the multiplications for a pair and query head: d + d_v in a forward pass.
    """
    n, heads = case.Q.shape[-2], int(np.prod(case.Q.shape[:-2]))
    most = tiles_not_hidden(n, case.world_size, case.layout).sum(1)
    least = work(n, case.world_size, case.layout).sum(1)
    require_own_work(not any(told["fused"]), f"{name} calls torch's own attention: write it")
    for rank, flops in enumerate(told["flops"]):
        pairs = flops / (2 * heads * numbers_a_pair)
        about = f"the pairs that rank {rank} of {case.world_size} computes ({case.layout})"
        hint = "tiles in which no query sees any key are computed and masked: leave them out"
        assert_at_most(about, round(pairs, 2), int(most[rank]), unit="pairs a head", hint=hint)
        if work_too:
            require(
                pairs >= least[rank] - 1e-6,
                f"{about} are {pairs:,.0f}, and {least[rank]:,} are seen: write products with @, so that they count",
            )


def block_bytes(case: RingCase) -> int:
    """The bytes of a rank's own keys and values."""
    return (case.k.nbytes + case.v.nbytes) // case.world_size


def assert_held(case: RingCase, found: Mapping[str, Any], blocks: int) -> None:
    """Fail where a rank holds more than so many of the blocks that it receives."""
    hint = (
        "every block that passed by is kept: the ring needs the one at hand and the one that comes (a third may still "
        "have a name)"
    )
    for rank, held in enumerate(found["held_bytes"]):
        about = f"what rank {rank} of {case.world_size} holds of what it received, a block is {block_bytes(case):,},"
        assert_at_most(about, held, blocks * block_bytes(case), hint=hint)


def assert_overlap(found: Mapping[str, Any], hops: int, cause: str) -> None:
    """Fail where a rank multiplies matrices during fewer of its transfers."""
    for rank, hidden in enumerate(found["hidden_transfers"]):
        asked = found["messages_asked"][rank]
        require(
            hidden >= hops,
            f"rank {rank} computes during {hidden} of its {asked} transfers, expected {hops} at least\n"
            f"Usual cause: {cause}",
        )


def assert_strips(name: str, found: Mapping[str, Any], n: int) -> None:
    """Fail where a rank of n tokens and one head makes a tensor as large as all its scores."""
    require(not found["trouble"], found["trouble"])
    hint = "a rank's own n × n scores grow with n²: let its queries meet the keys of a block in strips"
    for rank, largest in enumerate(found["largest_bytes"]):
        about = f"the largest tensor of {name} on rank {rank}, {n} tokens there and one head,"
        assert_at_most(about, largest // 4, n * 512 + 4096, unit="numbers", hint=hint)


def assert_peak(found: Mapping[str, Any], n: int, world_size: int, widths: int, strips: int) -> None:
    """Fail where a rank of n tokens, one head, needs more than `widths` tensors of n rows and `strips` of scores."""
    hint = "what a rank holds must be its own rows, the two blocks at hand, and strips of scores, whatever P is"
    for rank, peak in enumerate(found["peak_bytes"]):
        about = f"the peak memory of rank {rank} of {world_size}, {n} tokens there, in float32 numbers,"
        assert_at_most(about, peak // 4, n * (64 * widths + strips * min(n, 512)) + 4096, unit="", hint=hint)


def assert_block(minimal_block: Callable[..., Any], flops: float, bandwidth: float) -> None:
    """Compare `minimal_block` with the quotient, rounded up."""
    want = -(-int(flops) // int(bandwidth))
    suspects = {
        "the quotient is rounded down: then sending takes longer": int(flops) // int(bandwidth),
        "FLOPs and bytes have changed places": max(1, -(-int(bandwidth) // int(flops))),
        "a multiplication and an addition are counted as one FLOP": -(-2 * int(flops) // int(bandwidth)),
        "K is sent and V forgotten": -(-int(flops) // (2 * int(bandwidth))),
        "numbers are sent, of one byte each": -(-int(flops) // (2 * int(bandwidth))),
        "numbers have four bytes": -(-2 * int(flops) // int(bandwidth)),
        "scores are computed and their product with V forgotten": -(-2 * int(flops) // int(bandwidth)),
        "the quotient is rounded to the nearest": round(flops / bandwidth),
    }
    got = minimal_block(flops, bandwidth)
    about = f"minimal_block({flops:g}, {bandwidth:g})"
    assert_type(about, got, int, "an int")
    assert_equal(about, got, want, suspects={text: value for text, value in suspects.items() if value != want})
