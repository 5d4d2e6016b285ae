"""What a step of decoding may read and hold, and the two tensors that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from labkit.testing.compare import assert_at_most, assert_tuple, require, require_own_work
from labkit.testing.decoding.grouped import GroupedCase
from labkit.testing.decoding.paging import PagedBatch


def two_results(name: str, got: Any) -> dict[str, Any]:
    """`o` and `lse` of what a function called `name` returned."""
    return dict(zip(("o", "lse"), assert_tuple(f"{name}'s result", got, ("o", "lse")), strict=True))


def assert_own_products(name: str, told: Mapping[str, Any]) -> None:
    """Fail where torch's own attention does the work, or where products cannot be seen."""
    require_own_work(not told["fused"], f"{name} calls torch's own attention ({', '.join(told['fused'])}): write it")
    require(told["flops"] > 0, f"{name} makes no matrix product: write products with @, so that they can be counted")


def assert_read_once(name: str, told: Mapping[str, Any], k: torch.Tensor, v: torch.Tensor, hint: str) -> None:
    """Fail unless all of K and V was read, and no byte twice."""
    for which, x in (("K", k), ("V", v)):
        read = told["read"][which.lower()]
        assert_at_most(f"what {name} reads of {which}, which holds {x.nbytes:,} bytes,", read, x.nbytes, hint=hint)
        require(read >= x.nbytes, f"{name} reads {read:,} of {x.nbytes:,} bytes of {which}: every key counts")


def assert_never_expanded(name: str, told: Mapping[str, Any], case: GroupedCase) -> None:
    """Fail where keys or values of float32 are made for every query head, or read by each again."""
    assert_own_products(name, told)
    hint = (
        "K and V are expanded to H_q heads, by repeat_interleave or by a product that broadcasts them: let the "
        "queries of a group be rows of one product with their K"
    )
    assert_at_most(f"the peak of {name}", told["peak_bytes"], case.k.nbytes // 2, hint=hint)
    hint = "each query head reads its K again: the heads of a group share one read"
    assert_read_once(name, told, case.k, case.v, hint)


def assert_a_split_at_a_time(told: Mapping[str, Any], case: GroupedCase, num_splits: int) -> None:
    """Fail where split_kv_decode copies keys, reads them again, or multiplies with more than a split of them.

    `told` are besides the `shapes` of its products. The case has one query a head, in float32, and d_v = d.
    """
    heads, (n_keys, d) = case.Q.shape[-3], case.k.shape[-2:]
    name = f"split_kv_decode ({heads} heads on {case.kv_heads}, N_k = {n_keys}, {num_splits} splits)"
    assert_own_products(name, told)
    assert_read_once(name, told, case.k, case.v, "keys are read again: once in all, each split its own part")
    longest, part = max(max(shape) for shape in told["shapes"]), -(-n_keys // num_splits)
    hint = f"a split has ⌈{n_keys} / {num_splits}⌉ keys: are they split at all?"
    assert_at_most("the most keys that one product meets", longest, max(part, d), unit="keys", hint=hint)
    partials, scores = 4 * num_splits * heads * (d + 1), 4 * heads * n_keys
    hint = "K or V is copied: a split is a slice; beyond scores there are splits · H_q · (d_v + 1) numbers"
    assert_at_most(f"the peak of {name}", told["peak_bytes"], 4 * partials + 4 * scores, hint=hint)


def assert_own_blocks_read(told: Mapping[str, Any], batch: PagedBatch) -> None:
    """Fail where paged_attention gathers the keys of the whole batch, or reads more than each sequence's blocks.

    The batch is of float32, with d_v = d.
    """
    assert_own_products("paged_attention", told)
    lengths, (size, kv_heads, d) = batch.context_lens.tolist(), batch.k_cache.shape[-3:]
    longest = 2 * max(lengths) * kv_heads * d * 4
    hint = "the keys of the whole batch are gathered into one dense tensor: that is what a table does without"
    name = f"the peak of paged_attention, {len(lengths)} sequences"
    assert_at_most(name, told["peak_bytes"], 3 * longest, hint=hint)
    whole = sum(-(-n // size) * size for n in lengths) * kv_heads * d * 4
    hint = "a sequence reads its own tokens, H_kv · d numbers each, of K and of V: blocks of others, or again?"
    for which in "kv":
        assert_at_most(f"what paged_attention reads of {which}_cache", told["read"][which], whole, hint=hint)


def far_inputs(n_heads: int, n_keys: int) -> tuple[torch.Tensor, ...]:
    """q with one query a head, and k and v with one head, so long that nobody can hold them once for each head of q."""
    generator = torch.Generator().manual_seed(9)
    shapes = (n_heads, 1, 64), (1, n_keys, 64), (1, n_keys, 64)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def assert_far_output(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Compare o with attention computed plainly, for what `far_inputs` gives."""
    want = (q[:, 0] @ k[0].T / 8).softmax(-1) @ v[0]
    off = float((o[:, 0] - want).abs().max())
    require(off < 1e-4, f"o is off by {off:.3g} at N_k = {k.shape[-2]:,}")
