"""Lab 11's suite: attention over a sequence that ranks share, what they send, hold and compute, and who waits."""

import functools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from ring_attention import causal_work, communication_bytes, minimal_block, shard, unshard

from labkit.testing.attention.tensor_cases import strided
from labkit.testing.compare import assert_at_most, assert_dtype, assert_equal, assert_raises, require
from labkit.testing.rings import LAYOUTS, cut, positions
from labkit.testing.unchanged import left_alone

from .probes import on_ranks, peak_of_work, results_on_ranks
from .support import (
    BACKWARD,
    FORWARD,
    RingCase,
    assert_block,
    assert_bytes,
    assert_held,
    assert_layout,
    assert_no_hidden_pair,
    assert_overlap,
    assert_peak,
    assert_strips,
    assert_traffic,
    assert_whole,
    assert_work,
    numbered,
    random_ranks,
)

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
by_layout = pytest.mark.parametrize("layout", LAYOUTS)
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
POISON = (
    "a buffer holds NaN until its wait() has returned: it was read before; or a row saw nothing in a block, and "
    "−inf − (−inf) is NaN"
)
OVERFLOW = "exp overflows: no score and no log-sum-exp may enter exp without a maximum taken from it"
SHORT_SUMS = "sums of half-precision inputs belong in float32, D and those that travel too"
SHARED_HEADS = "query head h reads key head h // (H / H_kv), and what its gradient adds to goes there too"
STRIDED = "a tensor whose heads and tokens are exchanged in memory: its rows are not adjacent"


def assert_refused(function, table):
    """Fail unless the function raises a ValueError for each row of (arguments, what the message mentions)."""
    for arguments, mentions in table:
        shown = ", ".join(repr(x) if isinstance(x, int | str) else f"shards {[*map(len, x)]}" for x in arguments)
        assert_raises(ValueError, functools.partial(function, *arguments), when=f"for {shown}", mentions=mentions)


# Who holds what, and has how much to do


class EveryLayout:
    """What is asked of all that follows from who holds what: tokens cut, put together, and the work with them."""

    def check(self, n_tokens, world_size, layout):
        """Compare what the task returns for so many tokens on so many ranks."""
        raise NotImplementedError

    @by_layout
    @pytest.mark.parametrize(("n_tokens", "world_size"), [(8, 2), (32, 4)], ids=["N8-P2", "N32-P4"])
    def test_worked_example(self, n_tokens, world_size, layout):
        self.check(n_tokens, world_size, layout)

    @by_layout
    def test_sizes_drawn_at_random(self, rng, layout):
        for _ in range(6):
            world_size = int(rng.integers(1, 7))
            self.check(2 * world_size * int(rng.integers(1, 9)), world_size, layout)

    @robust
    @pytest.mark.parametrize(("n_tokens", "world_size", "layout"), [(5, 5, "contiguous"), (5, 5, "striped"),
                                                                    (6, 1, "zigzag")])  # fmt: skip
    def test_one_token_a_rank_or_one_rank(self, n_tokens, world_size, layout):
        self.check(n_tokens, world_size, layout)


class EitherWay(EveryLayout):
    """What is asked of `shard` and of `unshard`."""

    def assert_moved(self, x, dim, *options):
        """Compare what the task makes of a tensor, or of its shards, with its shards, or with the tensor."""
        raise NotImplementedError

    @by_layout
    @pytest.mark.parametrize("dim", [-3, -1, 0, 1])
    def test_any_axis(self, rng, layout, dim):
        self.assert_moved(torch.from_numpy(rng.standard_normal((12, 24, 12))), dim, layout, dim)

    def test_the_axis_is_the_last_but_one(self, rng):
        self.assert_moved(torch.from_numpy(rng.standard_normal((4, 6, 8))), -2)

    @robust
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16], ids=str)
    def test_any_dtype(self, dtype):
        self.assert_moved(torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1])[:, None].to(dtype), 0, "zigzag")


def assert_same(name, got, want):
    told = f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    require(got.shape == want.shape, told)
    assert_dtype(name, got, want.dtype)
    require(torch.equal(got, want), f"{name} does not hold the tokens that it should, in their order")


class TestShard(EitherWay):
    """Who holds which tokens."""

    def check(self, n_tokens, world_size, layout):
        assert_layout(shard(numbered(n_tokens), world_size, layout), n_tokens, world_size, layout)

    def assert_moved(self, x, dim, *options):
        places = positions(x.shape[dim], 3, options[0] if options else "contiguous")
        for rank, (got, want) in enumerate(zip(shard(x, 3, *options), cut(x, places, dim), strict=True)):
            assert_same(f"rank {rank}'s shard along axis {dim} of {tuple(x.shape)}", got, want)

    @refuses
    def test_bad_arguments(self):
        table = [
            ((8, 2, "folded"), ["folded"]),
            ((9, 2, "contiguous"), ["9", "2"]),
            ((10, 4, "striped"), ["10", "4"]),
            ((6, 2, "zigzag"), ["6", "2"]),
            ((8, 0, "contiguous"), ["0"]),
        ]
        assert_refused(lambda n_tokens, *others: shard(numbered(n_tokens), *others), table)


class TestUnshard(EitherWay):
    """Back in order."""

    def check(self, n_tokens, world_size, layout):
        shards = cut(numbered(n_tokens), positions(n_tokens, world_size, layout))
        with left_alone((f"shard {rank}" for rank in range(world_size)), shards):
            assert_whole(unshard(shards, layout), n_tokens, world_size, layout)

    def assert_moved(self, x, dim, *options):
        shards = cut(x, positions(x.shape[dim], 3, options[0] if options else "contiguous"), dim)
        assert_same(f"the tensor put together along axis {dim} of {tuple(x.shape)}", unshard(shards, *options), x)

    @refuses
    def test_bad_arguments(self):
        table = [
            (([numbered(4), numbered(4)], "folded"), ["folded"]),
            (([numbered(4), numbered(6)],), ["(4, 2)", "(6, 2)"]),
            (([numbered(3), numbered(3)], "zigzag"), []),
            (([],), []),
        ]
        assert_refused(unshard, table)


class TestCausalWork(EveryLayout):
    """Pairs of every rank and step, exactly."""

    def check(self, n_tokens, world_size, layout):
        assert_work(causal_work(n_tokens, world_size, layout), n_tokens, world_size, layout)

    @robust
    @by_layout
    def test_many_tokens(self, layout):
        self.check(2**18, 4, layout)

    @small
    @by_layout
    def test_no_table_of_pairs(self, layout):
        n_tokens = 2**12
        hint = "all n × n pairs of a step are there at once: count for each query the keys up to it"
        peak = peak_of_work(n_tokens, 2, layout)
        assert_at_most(f"causal_work's peak memory at {n_tokens:,} tokens", peak, 64 * 8 * n_tokens, hint=hint)

    @refuses
    def test_bad_arguments(self):
        table = [((8, 2, "folded"), ["folded"]), ((9, 2, "striped"), ["9"]), ((6, 2, "zigzag"), ["6"]),
                 ((8, 0, "contiguous"), ["0"])]  # fmt: skip
        assert_refused(causal_work, table)


# Attention


class EveryAttention:
    """What is asked of attention whichever way its ranks share the sequence."""

    task: ClassVar[str]
    method: ClassVar[str] = "ring"
    """What `communication_bytes` calls it."""
    names: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    """What a rank is given."""
    results: ClassVar[tuple[str, ...]] = FORWARD
    logit_scale: ClassVar[int] = 300
    usual_cause: ClassVar[str] = ""

    def check(self, case, hint="", nan_hint=POISON):
        """Run the task, compare its results with attention over the whole sequence; returns what it took."""
        found = on_ranks(self.task, case.shards(self.names), **case.options)
        case.check(found, self.results, hint=hint or self.usual_cause, nan_hint=nan_hint)
        return found

    def test_sizes_drawn_at_random(self, rng):
        for world_size in (1, 2, 3, 4):
            sizes = {"kv_heads": world_size * int(rng.integers(1, 3))} if self.method == "ulysses" else {}
            self.check(RingCase.drawn(rng, [world_size], **sizes))

    @robust
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_other_dtypes(self, rng, dtype):
        self.check(RingCase(rng, n_tokens=160, world_size=2, d=16, causal=True, dtype=dtype), hint=SHORT_SUMS)

    @robust
    def test_large_logits(self, rng):
        case = RingCase(rng, n_tokens=24, world_size=2, logit_scale=self.logit_scale, causal=True)
        self.check(case, hint=OVERFLOW, nan_hint=OVERFLOW)

    @small
    @pytest.mark.parametrize(("world_size", "dtype"), [(2, torch.bfloat16), (4, torch.float32)], ids=["P2-bf16", "P4"])
    def test_what_is_sent(self, rng, world_size, dtype):
        sizes = {"kv_heads": 4, "group": 3, "causal": True, "dtype": dtype}
        case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, **sizes)
        found = self.check(case)
        assert_traffic(case, found, self.method, self.results == BACKWARD)

    @refuses
    @pytest.mark.parametrize(
        ("change", "when", "mentions"),
        [
            ({"k": torch.zeros(3, 6, 5), "v": torch.zeros(3, 6, 3)}, "for 4 query heads on 3 key heads", ("4", "3")),
            ({"k": torch.zeros(2, 6, 7)}, "when q and k differ in d", ("(4, 6, 5)", "(2, 6, 7)")),
            ({"v": torch.zeros(2, 4, 3)}, "when k and v differ in their tokens", ("(2, 6, 5)", "(2, 4, 3)")),
            ({"layout": "folded"}, "for the layout 'folded'", ("folded",)),
        ],
        ids=["heads", "d", "rows", "layout"],
    )
    def test_bad_arguments(self, change, when, mentions):
        self.assert_refuses(change, when, mentions)

    def assert_refuses(self, change, when, mentions):
        """Fail unless every rank raises a ValueError before it sends anything."""
        given = {"q": torch.zeros(4, 6, 5), "k": torch.zeros(2, 6, 5), "v": torch.zeros(2, 6, 3), "layout": "zigzag",
                 "dO": torch.zeros(4, 6, 3), "o": torch.zeros(4, 6, 3), "lse": torch.zeros(4, 6)} | change  # fmt: skip

        def call():
            arguments = [[given[name] for name in self.names]] * 2
            found = on_ranks(self.task, arguments, causal=False, layout=given["layout"])
            require(not found["trouble"], found["trouble"])
            return "results"

        assert_raises(ValueError, call, when=when, mentions=mentions)


class ByBlocks(EveryAttention):
    """What is asked where a rank's queries meet the keys of every rank, block by block."""

    numbers_a_pair: ClassVar[int] = 8 + 5
    """Multiplications for a query, a key and a head, with d = 8 and d_v = 5."""

    @pytest.mark.parametrize(("layout", "causal"), [*((layout, True) for layout in LAYOUTS), ("zigzag", False)])
    def test_four_ranks(self, rng, layout, causal):
        self.check(RingCase(rng, n_tokens=40, world_size=4, layout=layout, causal=causal, d_v=5))

    @small
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = RingCase(rng, n_tokens=64, world_size=4, layout=layout, causal=True, d_v=5)
        assert_no_hidden_pair(case, self.check(case), self.task, self.numbers_a_pair)


class EitherPass(ByBlocks):
    """What is asked of the ring in both passes."""

    blocks_held: ClassVar[int]
    peak: ClassVar[dict[str, int]]

    @pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8], ids="P{}".format)
    def test_rings_of_any_size(self, rng, world_size):
        for layout in LAYOUTS if world_size < 4 else ["zigzag"]:
            self.check(RingCase(rng, n_tokens=4 * world_size, world_size=world_size, layout=layout, causal=True))

    @pytest.mark.parametrize(("kv_heads", "group"), [(1, 4), (3, 2), (4, 1)])
    def test_groups(self, rng, kv_heads, group):
        case = RingCase(rng, n_tokens=24, world_size=3, kv_heads=kv_heads, group=group, causal=True)
        self.check(case, hint=SHARED_HEADS)

    @pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=["B3", "B2x3"])
    def test_leading_axes(self, rng, batch):
        hint = "heads are the third axis from the end; those before it are a batch"
        self.check(RingCase(rng, n_tokens=16, world_size=2, batch=batch, causal=True), hint=hint)

    @robust
    @pytest.mark.parametrize("layout", ["contiguous", "striped"])
    def test_one_token_a_rank(self, rng, layout):
        self.check(RingCase(rng, n_tokens=5, world_size=5, layout=layout, causal=True))

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = RingCase(rng, n_tokens=24, world_size=3, batch=(2,), causal=True)
        shards = [[strided(x)[0] if x.dim() == 4 else x for x in shard] for shard in case.shards(self.names)]
        theirs = (f"rank {rank}'s {name}" for rank in range(3) for name in self.names)
        with left_alone(theirs, (x for shard in shards for x in shard)):
            found = on_ranks(self.task, shards, **case.options)
            case.check(found, self.results, hint=STRIDED, nan_hint=POISON)

    @small
    def test_blocks_travel_while_others_are_computed(self, rng):
        assert_overlap(self.check(RingCase(rng, n_tokens=32, world_size=4)), 3)

    @small
    def test_blocks_that_passed_are_let_go(self, rng):
        case = RingCase(rng, n_tokens=64, world_size=8, d=16)
        assert_held(case, self.check(case), self.blocks_held)

    @small
    @causal_or_not
    def test_scores_are_never_there_all_at_once(self, causal):
        found = on_ranks(self.task, random_ranks(self.names, 1024, 2, 4), causal=causal, layout="zigzag")
        assert_strips(self.task, found, 1024)

    @small
    def test_memory_falls_as_there_are_more_ranks(self):
        for world_size in (2, 6):
            n = 1536 // world_size
            given = random_ranks(self.names, n, world_size, 64)
            found = on_ranks(self.task, given, causal=False, layout="zigzag")
            assert_peak(found, n, world_size, **self.peak)

    def assert_worked_example(self, ranks, causal, want):
        """Compare the results of two ranks with one token each."""
        found = on_ranks(self.task, ranks, causal=causal, layout="contiguous")
        require(not found["trouble"], found["trouble"])
        got = [tuple(round(float(x), 4) for x in result) for result in found["results"]]
        near = np.allclose(np.array(got), np.array(want), atol=2e-4)
        require(near, f"({', '.join(self.results)}) of two ranks with one token each are {got}, expected {want}")


class TestRingAttentionForward(EitherPass):
    """Blocks of keys pass by; nobody ever holds all of them."""

    task = "ring_attention_forward"
    blocks_held = 3
    peak: ClassVar = {"widths": 10, "strips": 3}

    @pytest.mark.parametrize(("causal", "want"), [(False, [(2, 0.6931), (2, 0.6931)]), (True, [(1, 0), (2, 0.6931)])])
    def test_worked_example(self, causal, want):
        one = torch.ones(1, 1, 1)
        self.assert_worked_example([[0 * one, one, one], [0 * one, one, 3 * one]], causal, want)

    @small
    def test_keys_and_values_travel_whole(self, rng):
        found = self.check(RingCase(rng, n_tokens=40, world_size=5, causal=True))
        hint = "in each hop one tensor of keys and one of values, or both in one"
        for rank, messages in enumerate(found["messages"]):
            assert_at_most(f"the tensors that rank {rank} sends", messages, 2 * 4, unit="", hint=hint)

    @pytest.mark.outside(mib=160)
    @small
    def test_far_from_whole(self, outside):
        generator = torch.Generator().manual_seed(11)
        q, k, v = (torch.randn(1, 8192, 4, generator=generator) for _ in range(3))
        places = positions(8192, 2, "contiguous")
        shards = [list(each) for each in zip(*(cut(x, places) for x in (q, k, v)), strict=True)]
        results = outside(results_on_ranks, self.task, shards, False, "contiguous")
        rows = torch.tensor([0, 4095, 4096, 8191])
        want = (q[:, rows] @ k.mT / 2).softmax(-1) @ v
        got = torch.cat([result[0] for result in results], -2)[:, rows]
        off = float((got - want).abs().max())
        require(off < 1e-4, f"o is off by {off:.3g} at N = 8192 on 2 ranks")


class TestRingAttentionBackward(EitherPass):
    """Sums of gradients travel with their block, and come home."""

    task = "ring_attention_backward"
    names = ("dO", "q", "k", "v", "o", "lse")
    results = BACKWARD
    logit_scale = 100
    numbers_a_pair = 3 * 8 + 2 * 5
    blocks_held = 6
    peak: ClassVar = {"widths": 20, "strips": 6}

    def test_worked_example(self):
        one = torch.ones(1, 1, 1)
        o, lse = 2 * one, torch.full((1, 1), math.log(2))
        ranks = [[one, 0 * one, one, value * one, o, lse] for value in (1, 3)]
        self.assert_worked_example(ranks, False, [(0, 0, 1)] * 2)

    @robust
    def test_row_sums_of_half_precision_are_kept_in_float32(self, rng):
        """All scores are 0 and values are 64 ± 1/2, so that o is exactly 64 and D is far above every dP − D."""
        case = RingCase(rng, n_tokens=32, world_size=2, dtype=torch.bfloat16)
        signs = torch.arange(32)[:, None] % 2 - 0.5
        case.q, case.k, case.v = 0 * case.q, case.k.abs(), (64 + 0 * case.v + signs).to(torch.bfloat16)
        self.check(case, hint="D = rowsum(dO ∘ O) is a sum: it is kept in float32")


class TestAllGatherAttention(ByBlocks):
    """All keys at once: the same bytes, other memory."""

    task, method = "all_gather_attention", "all_gather"

    @pytest.mark.parametrize("world_size", [1, 2, 5], ids="P{}".format)
    def test_any_number_of_ranks(self, rng, world_size):
        self.check(RingCase(rng, n_tokens=4 * world_size, world_size=world_size, causal=True, batch=(2,)))

    @small
    def test_keys_are_gathered(self, rng):
        found = self.check(RingCase(rng, n_tokens=8, world_size=2))
        require(all(found["collective_calls"]), "keys and values are to be gathered by comm.all_gather: this is a ring")


class TestUlyssesAttention(EveryAttention):
    """Tokens for heads, and back."""

    task, method = "ulysses_attention", "ulysses"
    usual_cause = (
        "rank r attends with heads r · H / P and those that follow, in this order, and each key head with its group"
    )

    @pytest.mark.parametrize(("layout", "causal"), [*((layout, True) for layout in LAYOUTS), ("zigzag", False)])
    def test_two_ranks(self, rng, layout, causal):
        case = RingCase(rng, n_tokens=24, world_size=2, layout=layout, causal=causal, d_v=5)
        self.check(case)

    @pytest.mark.parametrize(("world_size", "kv_heads", "group"), [(1, 2, 2), (3, 3, 2), (2, 4, 3), (4, 8, 1)])
    def test_heads_shared_out(self, rng, world_size, kv_heads, group):
        sizes = {"kv_heads": kv_heads, "group": group, "causal": True, "batch": (2,)}
        case = RingCase(rng, n_tokens=4 * world_size, world_size=world_size, **sizes)
        self.check(case)

    @small
    def test_every_rank_computes_its_heads_alone(self, rng):
        found = self.check(RingCase(rng, n_tokens=32, world_size=4, kv_heads=4, group=2))
        for rank, flops in enumerate(found["flops"]):
            about = f"the pairs that rank {rank} of 4 computes with its 2 of 8 heads"
            hint = "a rank computes heads of other ranks too"
            assert_at_most(about, flops // (4 * 8), 32 * 32 * 2, unit="pairs", hint=hint)

    @refuses
    @pytest.mark.parametrize(("heads", "kv_heads"), [(7, 7), (14, 7)])
    def test_heads_that_cannot_be_shared_out(self, heads, kv_heads):
        q, k = torch.zeros(heads, 6, 5), torch.zeros(kv_heads, 6, 5)
        self.assert_refuses({"q": q, "k": k, "v": k}, f"for {heads} and {kv_heads} heads on 2 ranks", ("7", "2"))


# In closed form


class TestCommunicationBytes:
    """To the byte."""

    @pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
    @pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
    def test_worked_example(self, method, backward):
        assert_bytes(communication_bytes, method, 4, 16, 8, 4, 8, 2, backward=backward)
        assert_bytes(communication_bytes, method, 8, 2**20, 128, 8, 128, 2, backward=backward)

    @pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
    @pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
    def test_sizes_drawn_at_random(self, rng, method, backward):
        for _ in range(12):
            world_size, group, n, d = rng.integers(1, 9, 4).tolist()
            kv_heads = world_size * int(rng.integers(1, 5))
            given = (method, world_size, world_size * n, kv_heads * group, kv_heads, d, int(rng.choice([2, 4, 8])))
            assert_bytes(communication_bytes, *given, backward=backward)

    @pytest.mark.parametrize("method", ["ring", "all_gather"])
    def test_heads_need_not_fit_the_ranks(self, method):
        assert_bytes(communication_bytes, method, 5, 20, 6, 3, 4, 2)

    @robust
    def test_a_rank_alone_sends_nothing(self):
        for method in ("ring", "all_gather", "ulysses"):
            for backward in (False, True):
                assert_equal("the bytes of one rank", communication_bytes(method, 1, 64, 4, 2, 8, 4, backward), 0)

    @refuses
    def test_bad_arguments(self):
        table = [
            (("star", 2, 8, 4, 2, 8, 2), ["star"]),
            (("ring", 3, 8, 4, 2, 8, 2), ["8", "3"]),
            (("all_gather", 2, 8, 5, 2, 8, 2), ["5", "2"]),
            (("ulysses", 4, 8, 4, 2, 8, 2), ["2", "4"]),
        ]
        assert_refused(communication_bytes, table)


class TestMinimalBlock:
    """When the transfer hides behind the arithmetic."""

    @pytest.mark.parametrize(
        ("flops", "bandwidth"), [(312 * 10**12, 300 * 10**9), (312 * 10**12, 125 * 10**8), (989 * 10**12, 450 * 10**9)]
    )
    def test_real_machines(self, flops, bandwidth):
        assert_block(minimal_block, flops, bandwidth)

    def test_speeds_drawn_at_random(self, rng):
        for _ in range(20):
            bandwidth = int(rng.integers(10**9, 10**12))
            assert_block(minimal_block, int(rng.integers(10**13, 10**15)), bandwidth)

    @pytest.mark.parametrize(("flops", "bandwidth"), [(1000, 10), (1001, 10), (1009, 10), (3, 100)])
    def test_rounding_up(self, flops, bandwidth):
        assert_block(minimal_block, flops, bandwidth)

    @refuses
    def test_bad_arguments(self):
        table = [((0, 1), ["flops"]), ((1, 0), ["bandwidth"]), ((-5, 1), ["flops"])]
        assert_refused(minimal_block, table)
