"""Lab 11's suite: attention over a sequence that ranks share, what they send, hold and compute, and who waits."""

import itertools
import math
from typing import ClassVar

import pytest
import torch
from ring_attention import causal_work, communication_bytes, minimal_block, shard, unshard

from labkit.testing.compare import assert_at_most, assert_dtype, assert_raises, assert_refused, require
from labkit.testing.contracts.attention import Memory, Numbers, Shapes
from labkit.testing.rings import LAYOUTS, cut, positions
from labkit.testing.unchanged import left_alone

from .probes import on_ranks, peak_of_work
from .support import (
    BACKWARD,
    FORWARD,
    RingCase,
    alike_on_ranks,
    assert_block,
    assert_bytes,
    assert_each_rank_at_most,
    assert_layout,
    assert_no_hidden_pair,
    assert_traffic,
    assert_whole,
    assert_work,
    numbered,
)

robust, cost, refuses = (pytest.mark.kind(kind) for kind in ("robust", "cost", "refuses"))
by_layout = pytest.mark.parametrize("layout", LAYOUTS)
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
POISON = (
    "a buffer holds NaN until its wait() has returned: it was read before; or a row saw nothing in a block, and "
    "−inf − (−inf) is NaN"
)


BAD_SPLITS = [
    ((8, 2, "folded"), "for the layout 'folded'", ["folded"]),
    ((9, 2, "contiguous"), "for 9 tokens on 2 ranks", ["9", "2"]),
    ((10, 4, "striped"), "for 10 tokens on 4 ranks", ["10", "4"]),
    ((6, 2, "zigzag"), "for 6 tokens on 2 ranks, in zigzag order", ["6", "2"]),
    ((8, 0, "contiguous"), "for 0 ranks", ["0"]),
]
"""Tokens, ranks and layout that do not fit, when that is, and what the message names."""


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
    def test_random_sizes(self, rng, layout):
        for world_size in range(1, 7):
            n_runs = world_size * (2 if layout == "zigzag" else 1)
            for tokens_of_a_run in (1, int(rng.integers(2, 9))):
                self.check(n_runs * tokens_of_a_run, world_size, layout)


class EitherWay(EveryLayout):
    """What is asked of `shard` and of `unshard`."""

    def assert_moved(self, x, dim, *options):
        """Compare what the task makes of a tensor, or of its shards, with its shards, or with the tensor."""
        raise NotImplementedError

    @pytest.mark.parametrize("dim", [-3, -1, 0, 1])
    def test_any_axis(self, rng, dim):
        self.assert_moved(torch.from_numpy(rng.standard_normal((12, 24, 12))), dim, "zigzag", dim)

    def test_layout_and_axis_may_be_left_out(self, rng):
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
        assert_refused(lambda n_tokens, *others: shard(numbered(n_tokens), *others), BAD_SPLITS)


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
            (([numbered(4), numbered(4)], "folded"), "for the layout 'folded'", ["folded"]),
            (([numbered(4), numbered(6)],), "for shards of 4 and 6 tokens", ["(4, 2)", "(6, 2)"]),
            (([numbered(3), numbered(3)], "zigzag"), "for shards of 3 tokens in zigzag order", []),
            (([],), "for no shards", []),
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

    @cost
    @by_layout
    def test_no_table_of_pairs(self, layout):
        n_tokens = 2**12
        hint = "all n × n pairs of a step are there at once: count for each query the keys up to it"
        peak = peak_of_work(n_tokens, 2, layout)
        assert_at_most(f"causal_work's peak memory at {n_tokens:,} tokens", peak, 64 * 8 * n_tokens, hint=hint)

    @refuses
    def test_bad_arguments(self):
        assert_refused(causal_work, BAD_SPLITS)


# Attention


class EveryAttention(Memory, Numbers, Shapes):
    """What is asked of attention whichever way its ranks share the sequence."""

    task: ClassVar[str]
    method: ClassVar[str] = "ring"
    """What `communication_bytes` calls it."""
    names: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    """What a rank is given."""
    results: ClassVar[tuple[str, ...]] = FORWARD
    usual_cause: ClassVar[str] = ""
    variants: ClassVar = {"causal": {"causal": True}}
    lengths = (2, 63)
    batches = ((2, 1), (2, 3, 1))  # the last leading axis of Q is that of its heads
    logit_scales = (300,)
    long_sums = ((300, 300),)
    test_unequal_lengths = None  # the queries and the keys are those of one sequence
    test_uninitialised_memory_is_written_over = None  # ranks are threads, and buffers hold NaN in every test

    def case(self, rng, *, n=0, n_queries=0, n_keys=0, world_size=None, layout=None, **sizes):
        """Ranks and layout are drawn, unless given; the length is rounded up to what the ranks can share."""
        world_size, layout = world_size or int(rng.integers(2, 5)), layout or str(rng.choice(LAYOUTS))
        n_runs = world_size * (2 if layout == "zigzag" else 1)
        n_tokens = math.ceil(max(n, n_queries, n_keys) / n_runs) * n_runs
        if self.method == "ulysses":
            sizes["kv_heads"] = world_size * sizes.get("kv_heads", 1)
        return RingCase.drawn(rng, n_tokens=n_tokens, world_size=world_size, layout=layout, **sizes)

    def worked_case(self):
        """Two ranks with one token each, and two heads alike."""
        zeros, ones = torch.zeros(2, 2, 1), torch.ones(2, 2, 1)
        values = torch.tensor([1.0, 3.0])[:, None].expand(2, 2, 1)
        return RingCase(zeros, ones, values, ones, world_size=2, layout="contiguous")

    def check(self, case, hint="", nan_hint=POISON):
        """Run the task, compare its results with attention over the whole sequence; returns what it took."""
        found = on_ranks(self.task, case.shards(self.names), **case.options)
        case.check(found, self.results, hint=hint or self.usual_cause, nan_hint=nan_hint)
        return found

    def arguments(self, case):
        shards = case.shards(self.names)
        names = [f"rank {rank}'s {name}" for rank in range(len(shards)) for name in self.names]
        return dict(zip(names, itertools.chain(*shards), strict=True))

    def call(self, *tensors):
        n = len(self.names)
        return on_ranks(self.task, [tensors[i : i + n] for i in range(0, len(tensors), n)], layout="striped")

    @by_layout
    @causal_or_not
    def test_four_ranks(self, rng, layout, causal):
        self.check(self.case(rng, n=40, world_size=4, layout=layout, causal=causal, d_v=5))

    @pytest.mark.parametrize(("layout", "world_size"), [("zigzag", 1), ("zigzag", 3), ("striped", 5), ("zigzag", 8)])
    def test_one_token_a_run(self, rng, layout, world_size):
        self.check(self.case(rng, n=1, world_size=world_size, layout=layout, causal=True))

    @cost
    @pytest.mark.parametrize(("world_size", "dtype"), [(2, "bfloat16"), (4, "float32")], ids=["P2-bf16", "P4"])
    def test_what_is_sent(self, rng, world_size, dtype):
        sizes = {"kv_heads": 4, "group": 3, "causal": True, "dtype": dtype, "layout": "zigzag"}
        case = self.case(rng, n=8 * world_size, world_size=world_size, **sizes)
        assert_traffic(case, self.check(case), self.method, self.results == BACKWARD)

    @refuses
    def test_bad_arguments(self):
        three_heads = {"k": torch.zeros(3, 6, 5), "v": torch.zeros(3, 6, 3)}
        self.assert_refuses(three_heads, "for 4 query heads on 3 key heads", ("4", "3"))
        self.assert_refuses({"k": torch.zeros(2, 6, 7)}, "when q and k differ in d", ("(4, 6, 5)", "(2, 6, 7)"))
        fewer_tokens = {"v": torch.zeros(2, 4, 3)}
        self.assert_refuses(fewer_tokens, "when k and v differ in their tokens", ("(2, 6, 5)", "(2, 4, 3)"))
        self.assert_refuses({"layout": "folded"}, "for the layout 'folded'", ("folded",))

    def assert_refuses(self, change, when, mentions):
        """Fail unless every rank raises a ValueError before it sends anything."""
        fitting = {"q": torch.zeros(4, 6, 5), "k": torch.zeros(2, 6, 5), "v": torch.zeros(2, 6, 3)}
        fitting |= {"dO": torch.zeros(4, 6, 3), "o": torch.zeros(4, 6, 3), "lse": torch.zeros(4, 6)}
        given = {**fitting, "layout": "zigzag", **change}

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

    @cost
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = self.case(rng, n=64, world_size=4, layout=layout, causal=True, d_v=5)
        assert_no_hidden_pair(case, self.check(case), self.task, self.numbers_a_pair)


class EitherPass(ByBlocks):
    """What is asked of the ring in both passes."""

    blocks_held: ClassVar[int]
    peak: ClassVar[tuple[int, int]]
    """The tensors of a rank's rows, and of strips of scores, that fit into the peak memory."""

    @cost
    def test_blocks_travel_while_others_are_computed(self, rng):
        found = self.check(self.case(rng, n=32, world_size=4, layout="zigzag"))
        cause = "the next block is waited for before the one at hand is computed: ask, compute, wait"
        for rank, (hidden, asked) in enumerate(zip(found["hidden_transfers"], found["messages_asked"], strict=True)):
            told = f"rank {rank} computes during {hidden} of its {asked} transfers, expected 3 at least"
            require(hidden >= 3, f"{told}\nUsual cause: {cause}")

    @cost
    def test_blocks_that_passed_are_let_go(self, rng):
        case = self.case(rng, n=64, world_size=8, d=16, kv_heads=2, group=2, layout="zigzag")
        held, block = self.check(case)["held_bytes"], (case.K.nbytes + case.V.nbytes) // 8
        hint = "every block that passed by is kept: the ring needs the one at hand and the one that comes"
        hint += " (a third may still have a name)"
        what = f"what is held of what was received, a block is {block:,} bytes"
        assert_each_rank_at_most(what, held, self.blocks_held * block, hint=hint)

    @cost
    @causal_or_not
    def test_scores_are_never_there_all_at_once(self, causal):
        found = on_ranks(self.task, alike_on_ranks(self.names, 1024, 2, 4), causal=causal, layout="zigzag")
        require(not found["trouble"], found["trouble"])
        hint = "a rank's own n × n scores grow with n²: let its queries meet the keys of a block in strips"
        what = f"the largest tensor of {self.task}, 1024 tokens and one head"
        assert_each_rank_at_most(what, found["largest_bytes"], 4 * (1024 * 512 + 4096), hint=hint)

    @cost
    @pytest.mark.parametrize("world_size", [2, 6], ids="P{}".format)
    def test_memory_falls_as_there_are_more_ranks(self, world_size):
        n, (n_rows, n_strips) = 1536 // world_size, self.peak
        given = alike_on_ranks(self.names, n, world_size, 64)
        found = on_ranks(self.task, given, causal=False, layout="zigzag")
        require(not found["trouble"], found["trouble"])
        hint = "what a rank holds must be its own rows, the two blocks at hand, and strips of scores, whatever P is"
        limit = 4 * (n * (64 * n_rows + n_strips * min(n, 512)) + 4096)
        assert_each_rank_at_most(f"the peak memory, {n} tokens", found["peak_bytes"], limit, hint=hint)


class TestRingAttentionForward(EitherPass):
    """Blocks of keys pass by; nobody ever holds all of them."""

    task = "ring_attention_forward"
    blocks_held = 3
    peak = (10, 3)

    @cost
    def test_keys_and_values_travel_whole(self, rng):
        found = self.check(self.case(rng, n=40, world_size=5, causal=True))
        hint = "in each hop one tensor of keys and one of values, or both in one"
        assert_each_rank_at_most("the tensors that are sent", found["messages"], 2 * 4, unit="", hint=hint)

    @pytest.mark.memory_limit(mib=160)
    @cost
    def test_far_from_whole(self, memory_limit):
        generator = torch.Generator().manual_seed(11)
        q, k, v = (torch.randn(1, 8192, 4, generator=generator) for _ in range(3))
        places = positions(8192, 2, "contiguous")
        shards = [list(each) for each in zip(*(cut(x, places) for x in (q, k, v)), strict=True)]
        found = memory_limit(on_ranks, self.task, shards, causal=False, layout="contiguous")
        rows = torch.tensor([0, 4095, 4096, 8191])
        want = (q[:, rows] @ k.mT / 2).softmax(-1) @ v
        got = torch.cat([result[0] for result in found["results"]], -2)[:, rows]
        off = float((got - want).abs().max())
        require(off < 1e-4, f"o is off by {off:.3g} at N = 8192 on 2 ranks")


class TestRingAttentionBackward(EitherPass):
    """Sums of gradients travel with their block, and come home."""

    task = "ring_attention_backward"
    names = ("dO", "q", "k", "v", "o", "lse")
    results = BACKWARD
    numbers_a_pair = 3 * 8 + 2 * 5
    blocks_held = 6
    peak = (20, 6)

    @robust
    def test_row_sums_of_half_precision_are_kept_in_float32(self, rng):
        """All scores are 0 and values are 64 ± 1/2, so that o is exactly 64 and D is far above every dP − D."""
        case = self.case(rng, n=32, world_size=2, dtype="bfloat16")
        signs = torch.arange(32)[:, None] % 2 - 0.5
        case.Q, case.K, case.V = 0 * case.Q, case.K.abs(), (64 + 0 * case.V + signs).to(torch.bfloat16)
        self.check(case, hint="D = rowsum(dO ∘ O) is a sum: it is kept in float32")


class TestAllGatherAttention(ByBlocks):
    """All keys at once: the same bytes, other memory."""

    task, method = "all_gather_attention", "all_gather"

    @cost
    def test_keys_are_gathered(self, rng):
        found = self.check(self.case(rng, n=8, world_size=2))
        require(all(found["collective_calls"]), "keys and values are to be gathered by comm.all_gather: this is a ring")


class TestUlyssesAttention(EveryAttention):
    """Tokens for heads, and back."""

    task, method = "ulysses_attention", "ulysses"
    usual_cause = (
        "rank r attends with heads r · H / P and those that follow, in this order, and each key head with its group"
    )

    @cost
    def test_every_rank_computes_its_heads_alone(self, rng):
        found = self.check(self.case(rng, n=32, world_size=4, kv_heads=1, group=2))
        pairs = [flops // (4 * 8) for flops in found["flops"]]
        hint = "a rank computes heads of other ranks too"
        assert_each_rank_at_most("the pairs computed with 2 of 8 heads", pairs, 32 * 32 * 2, unit="pairs", hint=hint)

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
    def test_random_sizes(self, rng, method, backward):
        """One rank, which sends nothing, is among them; the heads fit the ranks only where they must."""
        for world_size in range(1, 9):
            group, kv_heads, n, d = rng.integers(1, 9, 4).tolist()
            kv_heads *= world_size if method == "ulysses" else 1
            sizes = (world_size, world_size * n, kv_heads * group, kv_heads, d, int(rng.choice([2, 4, 8])))
            assert_bytes(communication_bytes, method, *sizes, backward=backward)

    @refuses
    def test_bad_arguments(self):
        table = [
            (("star", 2, 8, 4, 2, 8, 2), "for the method 'star'", ["star"]),
            (("ring", 3, 8, 4, 2, 8, 2), "for 8 tokens on 3 ranks", ["8", "3"]),
            (("all_gather", 2, 8, 5, 2, 8, 2), "for 5 query heads on 2", ["5", "2"]),
            (("ulysses", 4, 8, 4, 2, 8, 2), "for 2 key heads on 4 ranks of Ulysses", ["2", "4"]),
        ]
        assert_refused(communication_bytes, table)


class TestMinimalBlock:
    """When the transfer hides behind the arithmetic."""

    @pytest.mark.parametrize(("flops", "bandwidth"), [
        (312 * 10**12, 300 * 10**9), (312 * 10**12, 125 * 10**8), (1000, 10), (1001, 10), (3, 100),
    ])  # fmt: skip
    def test_worked_example_and_rounding_up(self, flops, bandwidth):
        assert_block(minimal_block, flops, bandwidth)

    def test_random_speeds(self, rng):
        for _ in range(20):
            bandwidth = int(rng.integers(10**9, 10**12))
            assert_block(minimal_block, int(rng.integers(10**13, 10**15)), bandwidth)

    @refuses
    def test_bad_arguments(self):
        table = [((0, 1), "for 0 FLOPs", {"flops": 0}), ((1, 0), "for bandwidth 0", {"bandwidth": 0})]
        assert_refused(minimal_block, [*table, ((-5, 1), "for −5 FLOPs", {"flops": -5})])
