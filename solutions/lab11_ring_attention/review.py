"""What every right ring_attention.py does, and no wrong one."""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import ring_attention as lab
import torch

from labkit.meters.calls import measured
from labkit.ranks.threads import run_ranks

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
TOLERANCES = {F64: 1e-7, F32: 1e-4, BF16: 1e-2, F16: 2e-3}
LAYOUTS = ("contiguous", "zigzag", "striped")
SPLITS = [(n, ranks) for ranks in (1, 2, 3, 4, 7) for n in (2 * ranks, 6 * ranks, 10 * ranks)]


def refuses(function, *calls):
    """Each call's arguments, and after them what its error names."""
    for *args, match in calls:
        with pytest.raises(ValueError, match=match):
            function(*args)


def positions(n, n_ranks, layout):
    """The tokens that each rank holds."""
    if layout == "striped":
        return [torch.arange(rank, n, n_ranks) for rank in range(n_ranks)]
    runs = torch.arange(n).chunk(n_ranks * (2 if layout == "zigzag" else 1))
    return [torch.cat([x, y]) for x, y in zip(runs, runs[::-1], strict=True)][:n_ranks] if layout == "zigzag" else runs


def cut(x, n_ranks, layout, dim=-2):
    return [x.index_select(dim, each) for each in positions(x.shape[dim], n_ranks, layout)]


def joined(shards, layout, dim=-2):
    n = sum(x.shape[dim] for x in shards)
    return torch.cat(shards, dim).index_select(dim, torch.cat([*positions(n, len(shards), layout)]).argsort())


BAD_SPLITS = [(8, 2, "folded", "folded"), (9, 2, "contiguous", "9.*2"), (10, 4, "striped", "10.*4")]
BAD_SPLITS += [(6, 2, "zigzag", "6.*2"), (8, 0, "contiguous", "world_size|0")]


def sharded(split, back):
    """Check that `split` of a tensor, and `back` of what comes, are as by hand, along each axis and in each dtype."""
    for (n, n_ranks), layout, dtype, dim in product(SPLITS, LAYOUTS, (torch.bool, BF16, torch.int64), (-2, 0, -1, 2)):
        x = torch.randint(2 if dtype == torch.bool else 100, (n, n, n)).to(dtype)
        shards = cut(x, n_ranks, layout, dim)
        before = [each.clone() for each in shards]
        for got, want in zip(split(x, n_ranks, layout, dim), back(shards, layout, dim), strict=True):
            assert got.dtype == dtype and torch.equal(got, want)
        assert all(map(torch.equal, shards, before))


def test_shard():
    sharded(lab.shard, lambda shards, layout, dim: shards)
    x = torch.randn(4, 6, 8)
    assert all(map(torch.equal, lab.shard(x, 3), cut(x, 3, "contiguous")))
    refuses(lambda n, *others: lab.shard(torch.zeros(n, 2), *others), *BAD_SPLITS)


def test_unshard():
    sharded(lambda x, *_: [x], lambda shards, layout, dim: [lab.unshard(shards, layout, dim)])
    x = torch.randn(4, 6, 8)
    assert torch.equal(lab.unshard(cut(x, 3, "contiguous")), x)
    a, b, c = torch.zeros(4, 2), torch.zeros(6, 2), torch.zeros(2, 4)
    refuses(lab.unshard, ([a, a], "folded", "folded"), ([a, b], "4, 2.*6, 2"), ([a, c], "4, 2.*2, 4"), ([], "."))
    refuses(lab.unshard, ([torch.zeros(3, 2)] * 2, "zigzag", "3|6"), ([a, torch.zeros(4, 3)], "4, 2.*4, 3"))


def test_causal_work():
    for (n, n_ranks), layout in product([*SPLITS, (8 * 32_775, 4)], LAYOUTS):
        held = positions(n, n_ranks, layout)
        pairs = [
            [torch.searchsorted(held[r - t], held[r], right=True).sum() for t in range(n_ranks)] for r in range(n_ranks)
        ]
        got = lab.causal_work(n, n_ranks, layout)
        assert got.dtype == torch.int64 and torch.equal(got, torch.tensor(pairs))
    for layout in LAYOUTS:
        assert measured(lab.causal_work, 4096, 2, layout)[1]["peak_bytes"] <= 64 * 8 * 4096
    refuses(lab.causal_work, *BAD_SPLITS)


def draw(dtype, n, heads=4, kv_heads=2, d=8, d_v=5, batch=()):
    """q, k, v and dO of the whole sequence."""
    sizes = [(heads, n, d), (kv_heads, n, d), (kv_heads, n, d_v), (heads, n, d_v)]
    return [torch.randn(*batch, *size, dtype=F64).to(dtype) for size in sizes]


def plain(q, k, v, dO, causal):
    """O and lse, and the gradients from O and lse as they are rounded; all in float64, rounded to the dtypes asked."""
    dtype, precise = q.dtype, F32 if q.dtype.itemsize == 2 else q.dtype
    group, scale = q.shape[-3] // k.shape[-3], q.shape[-1] ** -0.5
    q, k, v, dO = (x.to(F64) for x in (q, k, v, dO))
    K, V = (x.repeat_interleave(group, -3) for x in (k, v))
    hidden = torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool() & causal
    S = (q @ K.mT * scale).masked_fill(hidden, -torch.inf)
    o, lse = (S.softmax(-1) @ V).to(dtype), S.logsumexp(-1).to(precise)
    P = (S - lse.to(F64)[..., None]).exp()
    dS = P * (dO @ V.mT - (dO * o.to(F64)).sum(-1, keepdim=True)) * scale
    dK, dV = (x.unflatten(-3, (-1, group)).sum(-3) for x in (dS.mT @ q, P.mT @ dO))
    return [o, lse], [x.to(dtype) for x in (dS @ K, dK, dV)]


def on_ranks(function, q, k, v, o, dO, lse, n_ranks, causal, layout):
    """Run it on ranks with what it needs of this, and check that their shards are left alone."""
    given = [(q, -2), (k, -2), (v, -2)]
    if function is lab.ring_attention_backward:
        given = [(dO, -2), *given, (o, -2), (lse, -1)]
    shards = [cut(x, n_ranks, layout, dim) for x, dim in given]
    before = [[x.clone() for x in each] for each in shards]
    ran = run_ranks(function, [[*mine, causal, layout] for mine in zip(*shards, strict=True)])
    for each, old in zip(shards, before, strict=True):
        assert all(map(torch.equal, each, old))
    assert not any(ran.fused)
    return ran


def attend(function, inputs, n_ranks, causal, layout):
    """Run it on ranks, and compare the results; what the run took."""
    (o, lse), gradients = plain(*inputs, causal)
    ran = on_ranks(function, *inputs[:3], o, inputs[3], lse, n_ranks, causal, layout)
    wants = gradients if function is lab.ring_attention_backward else [o, lse]
    for shards, want in zip(zip(*ran.results, strict=True), wants, strict=True):
        got, tolerance = joined(shards, layout, -1 if want is lse else -2), TOLERANCES[want.dtype]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert torch.allclose(got.to(F64), want.to(F64), tolerance, tolerance * want.abs().max().clamp(max=1).item())
    return ran


def check_method(function, heads_of=lambda n_ranks: (4, 2)):
    """Results in all layouts; `heads_of` a number of ranks that the method can share."""
    for causal, layout in product((False, True), LAYOUTS):
        for n, n_ranks, batch in ((40, 4, ()), (24, 2, (2, 3)), (6, 1, ()), (6, 3, ())):
            attend(function, draw(F64, n, *heads_of(n_ranks), batch=batch), n_ranks, causal, layout)
    for layout in LAYOUTS:
        attend(function, draw(F32, 1040, 2, 2, d=4), 2, True, layout)  # several strips, the last one short
        for far in (1e3, 1e7):
            inputs = draw(F64, 24, *heads_of(2))
            inputs[0][..., 0], inputs[1][..., 0] = far, -1  # all scores are far below 0
            attend(function, inputs, 2, True, layout)
    q, *others = draw(F64, 24, *heads_of(2))
    attend(function, [300 * q, *others], 2, True, "zigzag")
    for dtype, causal in product((F32, BF16, F16), (False, True)):
        attend(function, draw(dtype, 300, *heads_of(2)), 2, causal, "zigzag")
    comm = SimpleNamespace(rank=0, world_size=2)  # nothing can be sent
    shapes, dO = ((4, 6, 5), (2, 6, 5), (2, 6, 3)), torch.zeros(4, 6, 3)
    wrong = [((shapes[0], (3, 6, 5), (3, 6, 3)), "zigzag", "4.*3"), (shapes, "folded", "folded")]
    wrong += [((shapes[0], (2, 6, 7), shapes[2]), "zigzag", "4, 6, 5.*2, 6, 7")]
    for sizes, layout, match in [*wrong, ((*shapes[:2], (2, 4, 3)), "zigzag", "2, 6, 5.*2, 4, 3")]:
        args = [*map(torch.zeros, sizes)]
        args = [dO, *args, dO, torch.zeros(4, 6)] if function is lab.ring_attention_backward else args
        refuses(function, (comm, *args, False, layout, match))


def check_pairs(function, products):
    """No hidden tile is computed; `products` are the multiplications for each pair and head."""
    for layout, n_ranks in product(LAYOUTS, (2, 4)):
        n = 128 // n_ranks
        ran = attend(function, draw(F32, 128), n_ranks, True, layout)
        seen = torch.cat([torch.arange(128)[each][None] + 1 for each in positions(128, n_ranks, layout)]).sum(-1)
        for rank, flops in enumerate(ran.flops):
            most = {
                "contiguous": (rank + 1) * n * n,
                "zigzag": (2 * n_ranks + 1) * (n // 2) ** 2,
                "striped": n_ranks * n * n,
            }
            assert seen[rank] <= flops / (2 * 4 * products) <= most[layout]


def check_ring(function, sums, rows, strips):
    """What a ring sends, overlaps and holds: `sums` blocks of sums for each of K and V, peak in rows and strips."""
    for n_ranks, dtype in ((3, BF16), (4, F32), (8, F32)):
        ran = attend(function, draw(dtype, 16 * n_ranks, d_v=24), n_ranks, False, "zigzag")
        of_k, of_v = (2 * 16 * width * dtype.itemsize for width in (8, 24))
        block, sums_block = of_k + of_v, sums * 2 * 16 * (8 + 24) * 4
        for traffic, operations in zip(ran.traffic, ran.operations, strict=True):
            assert traffic.sent_bytes == (n_ranks - 1) * block + n_ranks * sums_block
            assert traffic.messages <= 2 * (n_ranks - 1) + 2 * sums * n_ranks
            assert traffic.held_bytes <= 3 * (block + sums_block)
            waited = {each.transfer: each.flops for each in operations if each.kind == "waits"}
            hidden = [each.sends for each in operations if each.kind == "asks" and waited[each.transfer] > each.flops]
            if dtype == BF16:  # K and V take other bytes than the sums, by which their transfers are known
                assert sum(sends for sends in hidden if sends in (of_k, of_v, block)) == (n_ranks - 1) * block
            assert len(hidden) >= n_ranks - 1
    for n, causal in ((1024, False), (1024, True), (2560, False)):
        q, k, v, dO = draw(F32, 2 * n, 1, 1, 4, 4)
        ran = on_ranks(function, q, k, v, v, dO, torch.zeros(1, 2 * n), 2, causal, "zigzag")
        assert max(ran.largest_bytes) <= 4 * (n * 512 + 4096)
    for n_ranks in (2, 6):
        n = 1536 // n_ranks
        q, k, v, dO = draw(F32, 1536, 1, 1, 64, 64)
        ran = on_ranks(function, q, k, v, v, dO, torch.zeros(1, 1536), n_ranks, False, "zigzag")
        assert max(ran.peak_bytes) <= 4 * (n * (64 * rows + strips * min(n, 512)) + 4096)


def test_ring_attention_forward():
    check_method(lab.ring_attention_forward)
    check_pairs(lab.ring_attention_forward, 8 + 5)
    check_ring(lab.ring_attention_forward, 0, rows=10, strips=3)


def test_ring_attention_backward():
    check_method(lab.ring_attention_backward)
    check_pairs(lab.ring_attention_backward, 3 * 8 + 2 * 5)
    check_ring(lab.ring_attention_backward, 1, rows=20, strips=6)
    q, k, v, dO = draw(BF16, 32)
    v = (64 + 0 * v + torch.arange(32)[:, None] % 2 - 0.5).to(BF16)  # o is exactly 64, and D far above its differences
    attend(lab.ring_attention_backward, [0 * q, k.abs(), v, dO], 2, False, "zigzag")


def test_all_gather_attention():
    check_method(lab.all_gather_attention)
    check_pairs(lab.all_gather_attention, 8 + 5)
    for n_ranks, dtype in ((3, BF16), (4, F32)):
        ran = attend(lab.all_gather_attention, draw(dtype, 16 * n_ranks, d_v=8), n_ranks, True, "zigzag")
        assert {each.sent_bytes for each in ran.traffic} == {(n_ranks - 1) * 2 * 16 * 2 * 8 * dtype.itemsize}
        assert all(any(each.is_collective for each in operations) for operations in ran.operations)


def test_ulysses_attention():
    check_method(lab.ulysses_attention, lambda n_ranks: (4 * n_ranks, 2 * n_ranks))
    for n_ranks, dtype in ((3, BF16), (4, F32)):
        ran = attend(
            lab.ulysses_attention, draw(dtype, 8 * n_ranks, 2 * n_ranks, n_ranks, d_v=8), n_ranks, False, "zigzag"
        )
        share = 8 * (8 * dtype.itemsize * (2 + 1 + 1 + 2) + 2 * 4)  # of a rank's 8 tokens: q, k, v and o, and lse
        assert {each.sent_bytes for each in ran.traffic} == {(n_ranks - 1) * share}
        assert max(ran.flops) <= 4 * 8 * (8 * n_ranks) ** 2 * 2
    comm = SimpleNamespace(rank=0, world_size=2)
    for heads, kv_heads in ((7, 7), (14, 7)):
        k = torch.zeros(kv_heads, 6, 5)
        refuses(lab.ulysses_attention, (comm, torch.zeros(heads, 6, 5), k, k, "7.*2|14.*2"))


def test_communication_bytes(rng):
    for group, kv_heads, n, d, e_at in rng.integers(1, (9, 9, 9, 9, 4), (60, 5)).tolist():
        for ranks, e in product(range(1, 9), [2**e_at]):
            s, kv, h = max(e, 4), kv_heads * ranks, kv_heads * ranks * group
            rows = {"ring": (2 * (ranks - 1) * n * kv * d * e, 2 * ranks * n * kv * d * s * (ranks > 1))}
            rows["all_gather"] = (rows["ring"][0], 2 * (ranks - 1) * n * kv * d * s)
            back = rows["ring"][0] + rows["ring"][1], rows["ring"][0] + rows["all_gather"][1]
            share = (ranks - 1) * n * kv // ranks
            forward = share * (2 * group + 2) * d * e + share * group * s
            want = {
                ("ring", False): rows["ring"][0],
                ("all_gather", False): rows["ring"][0],
                ("ulysses", False): forward,
            }
            want |= {("ring", True): back[0], ("all_gather", True): back[1]}
            want["ulysses", True] = share * (3 * group + 4) * d * e + 2 * share * group * s
            for (method, backward), n_bytes in want.items():
                got = lab.communication_bytes(method, ranks, ranks * n, h, kv, d, e, backward)
                assert type(got) is int and got == n_bytes
    wrong = [("star", 2, 8, 4, 2, 8, 2, "star"), ("ring", 3, 8, 4, 2, 8, 2, "8.*3|3.*8")]
    wrong += [("all_gather", 2, 8, 5, 2, 8, 2, "5.*2|2.*5"), ("ulysses", 4, 8, 4, 2, 8, 2, "2.*4|4.*2")]
    refuses(lab.communication_bytes, *wrong)


def test_minimal_block():
    for flops, bandwidth in [
        (312e12, 12.5e9),
        (312e12, 300e9),
        (990, 10),
        (1009, 10),
        (1001, 10),
        (3, 100),
    ]:
        got = lab.minimal_block(flops, bandwidth)
        assert type(got) is int and got == max(1, math.ceil(flops / bandwidth))
    refuses(lab.minimal_block, (0, 5, "flops"), (-1, 5, "flops"), (5, 0, "bandwidth"), (5, -2.5, "bandwidth"))
