"""Lab 11's suite: attention over a sequence that ranks share, what they send, hold and compute, and who waits."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from ring_attention import (
    all_gather_attention,
    causal_work,
    communication_bytes,
    minimal_block,
    ring_attention_backward,
    ring_attention_forward,
    shard,
    ulysses_attention,
    unshard,
)

from labkit.meters.tensors import AllocationMeter
from labkit.ranks.measure import run_measured
from labkit.testing.attention.tensor_cases import strided
from labkit.testing.compare import (
    assert_at_most,
    assert_dtype,
    assert_equal,
    assert_raises,
    require,
)
from labkit.testing.probes import probe
from labkit.testing.rings.counts import (
    assert_block,
    assert_bytes,
    assert_held,
    assert_no_hidden_pair,
    assert_overlap,
    assert_peak,
    assert_strips,
    assert_traffic,
)
from labkit.testing.rings.layouts import assert_layout, assert_whole, assert_work, numbered
from labkit.testing.rings.shards import BACKWARD, FORWARD, LAYOUTS, RingCase, cut, positions
from labkit.testing.rings.suspects import ring_backward_suspects, ring_suspects
from labkit.testing.unchanged import left_alone

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
by_layout = pytest.mark.parametrize("layout", LAYOUTS)
causal_or_not = pytest.mark.parametrize("causal", [False, True])
HALF = [torch.float16, torch.bfloat16]
POISON = (
    "a buffer holds NaN until its wait() has returned: it was read before; or a row saw nothing in a block, and "
    "−inf − (−inf) is NaN"
)
OVERFLOW = "exp overflows: no score and no log-sum-exp may enter exp without a maximum taken from it"
SHORT_SUMS = "sums of half-precision inputs belong in float32, those that travel too"
SHARED_HEADS = "query head h reads key head h // (H / H_kv), and what its gradient adds to goes there too"


# Ranks, where the answer is

FUNCTIONS = {
    "ring_attention_forward": ring_attention_forward,
    "ring_attention_backward": ring_attention_backward,
    "all_gather_attention": all_gather_attention,
    "ulysses_attention": ulysses_attention,
}


@probe
def on_ranks(task, arguments, **options):
    """What a task returns on each rank for `arguments`, a list for each, and what that took."""
    return run_measured(FUNCTIONS[task], arguments, **options)


@probe
def on_ranks_from_outside(task, arguments, causal, layout):
    """What a task returns on each rank."""
    return run_measured(FUNCTIONS[task], arguments, causal=causal, layout=layout)["results"]


@probe
def peak_of_work(seq_len, world_size, layout):
    """The bytes that `causal_work` holds at its peak."""
    with AllocationMeter() as memory:
        causal_work(seq_len, world_size, layout)
    return memory.peak_bytes


def run(task, case):
    """What came of a task on all ranks of a case."""
    names = ("dO", "q", "k", "v", "o", "lse") if task == "ring_attention_backward" else ("q", "k", "v")
    return on_ranks(task, case.shards(*names), **case.options)


def assert_right(task, case, hint="", nan_hint=POISON):
    """Run a task, compare its results with attention over the whole sequence; what it took."""
    found = run(task, case)
    if task == "ring_attention_backward":
        suspects = {} if found["trouble"] else ring_backward_suspects(case)
        case.check_ranks(found, BACKWARD, suspects, hint=hint, nan_hint=nan_hint)
    else:
        suspects = {} if found["trouble"] else ring_suspects(case)
        case.check_ranks(found, FORWARD, suspects, hint=hint, nan_hint=nan_hint)
    return found


def assert_inputs_stay(task, case, names):
    """Run a task on shards whose heads and tokens are exchanged in memory; its results, and that they stay."""
    shards = [
        [strided(x)[0] if x.dim() > 2 and name != "lse" else x for name, x in zip(names, shard, strict=True)]
        for shard in case.shards(*names)
    ]
    theirs = (f"rank {rank}'s {name}" for rank in range(len(shards)) for name in names)
    with left_alone(theirs, (x for shard in shards for x in shard)):
        found = on_ranks(task, shards, **case.options)
        hint = "a tensor whose heads and tokens are exchanged in memory: its rows are not adjacent"
        case.check_ranks(found, BACKWARD if "dO" in names else FORWARD, hint=hint, nan_hint=POISON)


def assert_refuses(task, change, when, mentions):
    """Fail unless every rank raises a ValueError before it sends anything, for shards that `change` has changed."""
    q, k, v = torch.zeros(4, 6, 5), torch.zeros(2, 6, 5), torch.zeros(2, 6, 3)
    options = {"causal": False, "layout": "zigzag"}
    given = {"q": q, "k": k, "v": v, "dO": torch.zeros(4, 6, 3), "o": torch.zeros(4, 6, 3), "lse": torch.zeros(4, 6)}
    for name, value in change.items():
        (options if name in options else given)[name] = value
    names = ("dO", "q", "k", "v", "o", "lse") if task == "ring_attention_backward" else ("q", "k", "v")
    arguments = [[given[name] for name in names]] * 2

    def call():
        found = on_ranks(task, arguments, **options)
        require(not found["trouble"], found["trouble"])
        return "results"

    assert_raises(ValueError, call, when=when, mentions=mentions)


BAD_SHAPES = [
    ({"k": torch.zeros(3, 6, 5), "v": torch.zeros(3, 6, 3)}, "for 4 query heads on 3 key heads", ("4", "3")),
    ({"k": torch.zeros(2, 6, 7)}, "when q and k differ in d", ("(4, 6, 5)", "(2, 6, 7)")),
    ({"v": torch.zeros(2, 4, 3)}, "when k and v differ in their tokens", ("(2, 6, 5)", "(2, 4, 3)")),
    ({"layout": "folded"}, "for the layout 'folded'", ("folded",)),
]
by_bad_shape = pytest.mark.parametrize(("change", "when", "mentions"), BAD_SHAPES, ids=["heads", "d", "rows", "layout"])


# Who holds what


class EveryLayout:
    """What is asked of all that follows from who holds what: tokens cut, put together, and the work with them."""

    def check(self, n_tokens, world_size, layout):
        """Compare what the task makes of so many tokens on so many ranks."""
        raise NotImplementedError

    @by_layout
    def test_worked_example(self, layout):
        self.check(8, 2, layout)

    @by_layout
    def test_sizes_drawn_at_random(self, rng, layout):
        for _ in range(6):
            world_size = int(rng.integers(1, 7))
            self.check(2 * world_size * int(rng.integers(1, 9)), world_size, layout)

    @robust
    @pytest.mark.parametrize("layout", ["contiguous", "striped"])
    def test_one_token_a_rank(self, layout):
        self.check(5, 5, layout)


class TestShard(EveryLayout):
    """Who holds which tokens."""

    def check(self, n_tokens, world_size, layout):
        assert_layout(shard, n_tokens, world_size, layout)

    @by_layout
    @pytest.mark.parametrize("dim", [-3, -1, 0, 1])
    def test_any_axis(self, rng, layout, dim):
        x = torch.from_numpy(rng.standard_normal((12, 24, 12)))
        shards = shard(x, 3, layout, dim)
        for rank, (got, want) in enumerate(zip(shards, cut(x, positions(x.shape[dim], 3, layout), dim), strict=True)):
            require(
                tuple(got.shape) == tuple(want.shape),
                f"rank {rank}'s shard along axis {dim} of (12, 24, 12) has shape {tuple(got.shape)}, expected "
                f"{tuple(want.shape)}",
            )
            require(torch.equal(got, want), f"rank {rank}'s shard along axis {dim} holds other tokens than its own")

    def test_the_axis_is_the_last_but_one(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 8, 6)))
        for got, want in zip(shard(x, 2), cut(x, positions(8, 2, "contiguous")), strict=True):
            require(torch.equal(got, want), "without layout and dim, contiguous shards along axis −2 are meant")

    @robust
    @by_layout
    def test_one_rank_holds_all(self, layout):
        self.check(6, 1, layout)

    @robust
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
    def test_any_dtype(self, dtype):
        x = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])[:, None].to(dtype)
        for rank, got in enumerate(shard(x, 2, "zigzag")):
            assert_dtype(f"rank {rank}'s shard", got, dtype)
            require(torch.equal(got, x[[0, 1, 6, 7]] if rank == 0 else x[[2, 3, 4, 5]]), f"rank {rank}'s shard is off")

    @refuses
    def test_bad_arguments(self):
        for call, when, said in [
            (lambda: shard(numbered(8), 2, "folded"), "for the layout 'folded'", ["folded"]),
            (lambda: shard(numbered(9), 2), "for 9 tokens and 2 ranks", ["9", "2"]),
            (lambda: shard(numbered(10), 4, "striped"), "for 10 tokens and 4 ranks", ["10", "4"]),
            (lambda: shard(numbered(6), 2, "zigzag"), "for 6 tokens, 2 ranks and 4 runs", ["6", "2"]),
            (lambda: shard(numbered(8), 0), "for 0 ranks", ["0"]),
        ]:
            assert_raises(ValueError, call, when=when, mentions=said)


class TestUnshard(EveryLayout):
    """Back in order."""

    def check(self, n_tokens, world_size, layout):
        assert_whole(unshard, n_tokens, world_size, layout)

    @by_layout
    @pytest.mark.parametrize("dim", [-3, -1, 0, 1])
    def test_any_axis(self, rng, layout, dim):
        x = torch.from_numpy(rng.standard_normal((12, 24, 12)))
        got = unshard(cut(x, positions(x.shape[dim], 3, layout), dim), layout, dim)
        require(
            tuple(got.shape) == tuple(x.shape), f"the result has shape {tuple(got.shape)}, expected {tuple(x.shape)}"
        )
        require(torch.equal(got, x), f"tokens along axis {dim} are not back in order")

    def test_the_axis_is_the_last_but_one(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 8, 6)))
        got = unshard(cut(x, positions(8, 2, "contiguous")))
        require(torch.equal(got, x), "without layout and dim, contiguous shards along axis −2 are meant")

    @robust
    @by_layout
    def test_one_rank_held_all(self, layout):
        self.check(6, 1, layout)

    @robust
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
    def test_any_dtype(self, dtype):
        x = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])[:, None].to(dtype)
        shards = (x[[0, 1, 6, 7]], x[[2, 3, 4, 5]])
        got = unshard(shards, "zigzag")
        assert_dtype("the result", got, dtype)
        require(torch.equal(got, x), f"shards of {dtype} are not put back in order")

    @robust
    def test_shards_stay(self, rng):
        shards = cut(torch.from_numpy(rng.standard_normal((12, 2))), positions(12, 3, "zigzag"))
        with left_alone((f"shard {rank}" for rank in range(3)), shards):
            unshard(shards, "zigzag")

    @refuses
    def test_bad_arguments(self):
        for call, when, said in [
            (lambda: unshard([numbered(4), numbered(4)], "folded"), "for the layout 'folded'", ["folded"]),
            (lambda: unshard([numbered(4), numbered(6)]), "for shards of 4 and 6 tokens", ["(4, 2)", "(6, 2)"]),
            (lambda: unshard([numbered(3), numbered(3)], "zigzag"), "for zigzag shards of 3 tokens", []),
            (lambda: unshard([]), "for no shards", []),
        ]:
            assert_raises(ValueError, call, when=when, mentions=said)


# Who has how much to do


class TestCausalWork(EveryLayout):
    """Pairs of every rank and step, exactly."""

    def check(self, n_tokens, world_size, layout):
        assert_work(causal_work, n_tokens, world_size, layout)

    @by_layout
    def test_four_ranks(self, layout):
        self.check(32, 4, layout)

    @robust
    @by_layout
    def test_one_rank(self, layout):
        self.check(10, 1, layout)

    @robust
    @by_layout
    def test_many_tokens(self, layout):
        assert_work(causal_work, 2**18, 8, layout, suspects=False)

    @small
    @by_layout
    def test_no_table_of_pairs(self, layout):
        n_tokens = 2**12
        hint = "all n × n pairs of a step are there at once: count for each query the keys up to it"
        peak = peak_of_work(n_tokens, 2, layout)
        assert_at_most(f"causal_work's peak memory at {n_tokens:,} tokens", peak, 64 * 8 * n_tokens, hint=hint)

    @refuses
    def test_bad_arguments(self):
        for arguments, said in [((8, 2, "folded"), "folded"), ((9, 2, "striped"), "9"), ((6, 2, "zigzag"), "6"),
                                ((8, 0, "contiguous"), "0")]:  # fmt: skip
            assert_raises(ValueError, lambda given=arguments: causal_work(*given), when=f"for {arguments}",
                          mentions=[said])  # fmt: skip


# The ring


class EveryAttention:
    """What is asked of attention whichever way its ranks share the sequence."""

    TASK: ClassVar[str]
    WORLD_SIZE: ClassVar[int] = 4

    @robust
    @pytest.mark.parametrize("dtype", [*HALF, torch.float64])
    def test_other_dtypes(self, rng, dtype):
        case = RingCase(rng, n_tokens=320, world_size=self.WORLD_SIZE, d=16, causal=True, dtype=dtype)
        assert_right(self.TASK, case, hint=SHORT_SUMS)

    @refuses
    @by_bad_shape
    def test_bad_arguments(self, change, when, mentions):
        assert_refuses(self.TASK, change, when, mentions)


class ByBlocks(EveryAttention):
    """What is asked where a rank's queries meet the keys of every rank, block by block."""

    NUMBERS_A_PAIR: ClassVar[int] = 8 + 5
    """Multiplications for a query, a key and a head, with d = 8 and d_v = 5."""

    @by_layout
    @causal_or_not
    def test_four_ranks(self, rng, layout, causal):
        assert_right(self.TASK, RingCase(rng, n_tokens=40, world_size=4, layout=layout, causal=causal, d_v=5))

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            assert_right(self.TASK, RingCase.drawn(rng))

    @small
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = RingCase(rng, n_tokens=64, world_size=4, layout=layout, causal=True, d_v=5)
        found = assert_right(self.TASK, case)
        assert_no_hidden_pair(case, found, self.TASK, self.NUMBERS_A_PAIR)


class EitherPass(ByBlocks):
    """What is asked of the ring in both passes."""

    NAMES: ClassVar[tuple[str, ...]]
    """What a rank is given."""
    LOGIT_SCALE: ClassVar[int]

    @pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
    def test_rings_of_any_size(self, rng, world_size):
        for layout in LAYOUTS if world_size < 8 else ["zigzag"]:
            case = RingCase(rng, n_tokens=4 * world_size, world_size=world_size, layout=layout, causal=True)
            assert_right(self.TASK, case)

    @pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (1, 4), (3, 2), (4, 1)])
    def test_groups(self, rng, kv_heads, group):
        sizes = {"kv_heads": kv_heads, "group": group, "causal": True}
        assert_right(self.TASK, RingCase(rng, n_tokens=24, world_size=3, **sizes), hint=SHARED_HEADS)

    @pytest.mark.parametrize("batch", [(3,), (2, 3)])
    def test_leading_axes(self, rng, batch):
        case = RingCase(rng, n_tokens=16, world_size=2, batch=batch, causal=True)
        assert_right(self.TASK, case, hint="heads are the third axis from the end; those before it are a batch")

    @robust
    @causal_or_not
    def test_large_logits(self, rng, causal):
        case = RingCase(rng, n_tokens=40, world_size=4, logit_scale=self.LOGIT_SCALE, causal=causal)
        assert_right(self.TASK, case, hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    @pytest.mark.parametrize("layout", ["contiguous", "striped"])
    def test_one_token_a_rank(self, rng, layout):
        assert_right(self.TASK, RingCase(rng, n_tokens=5, world_size=5, layout=layout, causal=True))

    @robust
    def test_inputs_stay_and_need_not_be_contiguous(self, rng):
        case = RingCase(rng, n_tokens=24, world_size=3, batch=(2,), causal=True)
        assert_inputs_stay(self.TASK, case, self.NAMES)

    @small
    def test_blocks_travel_while_others_are_computed(self, rng):
        case = RingCase(rng, n_tokens=32, world_size=4)
        found = assert_right(self.TASK, case)
        assert_overlap(found, 3, "the next block is waited for before the one at hand is computed: ask, compute, wait")


class TestRingAttentionForward(EitherPass):
    """Blocks of keys pass by; nobody ever holds all of them."""

    TASK = "ring_attention_forward"
    NAMES = ("q", "k", "v")
    LOGIT_SCALE = 300

    @pytest.mark.parametrize(("causal", "want"), [(False, [(2, 0.6931), (2, 0.6931)]), (True, [(1, 0), (2, 0.6931)])])
    def test_worked_example(self, causal, want):
        one = torch.ones(1, 1, 1)
        found = on_ranks(self.TASK, [[0 * one, one, one], [0 * one, one, 3 * one]], causal=causal, layout="contiguous")
        require(not found["trouble"], found["trouble"])
        got = [tuple(round(float(x), 4) for x in result) for result in found["results"]]
        near = np.allclose(np.array(got), np.array(want), atol=2e-4)
        require(near, f"(o, lse) of two ranks with one token each are {got}, expected {want}")

    @small
    @pytest.mark.parametrize(("world_size", "dtype"), [(2, torch.bfloat16), (5, torch.float32)])
    def test_what_is_sent(self, rng, world_size, dtype):
        case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, group=3, causal=True, dtype=dtype)
        found = assert_right(self.TASK, case)
        assert_traffic(case, found, "ring")
        hint = "keys and values travel whole: in each hop one tensor of keys and one of values, or both in one"
        for rank, messages in enumerate(found["messages"]):
            assert_at_most(f"the tensors that rank {rank} sends", messages, 2 * (world_size - 1), unit="", hint=hint)

    @small
    def test_blocks_that_passed_are_let_go(self, rng):
        case = RingCase(rng, n_tokens=48, world_size=6, d=16)
        found = assert_right(self.TASK, case)
        assert_held(case, found, 3)

    @small
    @causal_or_not
    def test_scores_are_never_there_all_at_once(self, rng, causal):
        sizes = {"kv_heads": 1, "group": 1, "d": 4, "causal": causal}
        found = run(self.TASK, RingCase(rng, n_tokens=2048, world_size=2, **sizes))
        assert_strips(self.TASK, found, 1024)

    @small
    def test_memory_falls_as_there_are_more_ranks(self, rng):
        for world_size in (2, 6):
            case = RingCase(rng, n_tokens=1536, world_size=world_size, kv_heads=1, group=1, d=64)
            found = run(self.TASK, case)
            require(not found["trouble"], found["trouble"])
            assert_peak(found, 1536 // world_size, world_size, widths=10, strips=3)

    @pytest.mark.outside(mib=160)
    @small
    def test_far_from_whole(self, outside):
        generator = torch.Generator().manual_seed(11)
        q, k, v = (torch.randn(1, 8192, 4, generator=generator) for _ in range(3))
        places = positions(8192, 2, "contiguous")
        shards = [list(each) for each in zip(*(cut(x, places) for x in (q, k, v)), strict=True)]
        results = outside(on_ranks_from_outside, self.TASK, shards, False, "contiguous")
        rows = torch.tensor([0, 4095, 4096, 8191])
        want = (q[:, rows] @ k.mT / 2).softmax(-1) @ v
        got = torch.cat([result[0] for result in results], -2)[:, rows]
        off = float((got - want).abs().max())
        require(off < 1e-4, f"o is off by {off:.3g} at N = 8192 on 2 ranks")


class TestRingAttentionBackward(EitherPass):
    """Sums of gradients travel with their block, and come home."""

    TASK = "ring_attention_backward"
    NAMES = ("dO", "q", "k", "v", "o", "lse")
    LOGIT_SCALE = 100
    NUMBERS_A_PAIR = 3 * 8 + 2 * 5

    def test_worked_example(self):
        one = torch.ones(1, 1, 1)
        o, lse = 2 * one, torch.full((1, 1), math.log(2))
        ranks = [[one, 0 * one, one, value * one, o, lse] for value in (1, 3)]
        found = on_ranks(self.TASK, ranks, causal=False, layout="contiguous")
        require(not found["trouble"], found["trouble"])
        got = [tuple(round(float(x), 4) for x in result) for result in found["results"]]
        near = np.allclose(np.array(got), [[0, 0, 1]] * 2, atol=2e-4)
        require(near, f"(dq, dk, dv) of two ranks with one token each are {got}, expected (0, 0, 1) on both")

    @small
    @pytest.mark.parametrize("world_size", [2, 5])
    def test_what_is_sent(self, rng, world_size):
        case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, group=3, causal=True)
        found = assert_right(self.TASK, case)
        assert_traffic(case, found, "ring", backward=True)

    @small
    @pytest.mark.parametrize("dtype", HALF)
    def test_sums_travel_in_float32(self, rng, dtype):
        case = RingCase(rng, n_tokens=32, world_size=4, dtype=dtype)
        assert_traffic(case, assert_right(self.TASK, case), "ring", backward=True)

    @small
    def test_what_has_passed_is_let_go(self, rng):
        case = RingCase(rng, n_tokens=64, world_size=8, d=16)
        found = assert_right(self.TASK, case)
        assert_held(case, found, 6)

    @small
    @causal_or_not
    def test_scores_are_never_there_all_at_once(self, causal):
        generator = torch.Generator().manual_seed(12)
        dO, q, k, v, o = (torch.randn(1, 1024, 4, generator=generator) for _ in range(5))
        ranks = [[dO, q, k, v, o, torch.full((1, 1024), 8.0)]] * 2
        assert_strips(self.TASK, on_ranks(self.TASK, ranks, causal=causal, layout="zigzag"), 1024)

    @small
    def test_memory_falls_as_there_are_more_ranks(self):
        for world_size in (2, 6):
            n, generator = 1536 // world_size, torch.Generator().manual_seed(13)
            dO, q, k, v, o = (torch.randn(1, n, 64, generator=generator) for _ in range(5))
            ranks = [[dO, q, k, v, o, torch.full((1, n), 8.0)]] * world_size
            found = on_ranks(self.TASK, ranks, causal=False, layout="zigzag")
            require(not found["trouble"], found["trouble"])
            assert_peak(found, n, world_size, widths=20, strips=6)


# Two other ways


class TestAllGatherAttention(ByBlocks):
    """All keys at once: the same bytes, other memory."""

    TASK = "all_gather_attention"

    @pytest.mark.parametrize("world_size", [1, 2, 5])
    def test_any_number_of_ranks(self, rng, world_size):
        case = RingCase(rng, n_tokens=4 * world_size, world_size=world_size, causal=True, batch=(2,))
        assert_right(self.TASK, case)

    @robust
    def test_large_logits(self, rng):
        case = RingCase(rng, n_tokens=40, world_size=4, logit_scale=300, causal=True)
        assert_right(self.TASK, case, hint=OVERFLOW, nan_hint=OVERFLOW)

    @small
    @pytest.mark.parametrize(("world_size", "dtype"), [(2, torch.bfloat16), (4, torch.float32)])
    def test_what_is_sent(self, rng, world_size, dtype):
        case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, group=3, causal=True, dtype=dtype)
        found = assert_right(self.TASK, case)
        assert_traffic(case, found, "all_gather")
        require(all(found["collective_calls"]), "keys and values are to be gathered by comm.all_gather: this is a ring")


class TestUlyssesAttention(EveryAttention):
    """Tokens for heads, and back."""

    TASK = "ulysses_attention"
    WORLD_SIZE = 2

    @by_layout
    @causal_or_not
    def test_two_ranks(self, rng, layout, causal):
        assert_right(self.TASK, RingCase(rng, n_tokens=24, world_size=2, layout=layout, causal=causal, d_v=5),
                     hint=self.HEADS)  # fmt: skip

    HEADS = "rank r attends with heads r · H / P and those that follow, in this order, and each key head with its group"

    @pytest.mark.parametrize(
        ("world_size", "kv_heads", "group"), [(1, 2, 2), (3, 3, 1), (3, 3, 2), (2, 4, 3), (4, 8, 1)]
    )
    def test_heads_shared_out(self, rng, world_size, kv_heads, group):
        sizes = {"kv_heads": kv_heads, "group": group, "causal": True, "batch": (2,)}
        case = RingCase(rng, n_tokens=4 * world_size, world_size=world_size, **sizes)
        assert_right(self.TASK, case, hint=self.HEADS)

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(6):
            world_size = int(rng.integers(1, 5))
            kv_heads = world_size * int(rng.integers(1, 3))
            assert_right(self.TASK, RingCase.drawn(rng, [world_size], kv_heads=kv_heads), hint=self.HEADS)

    @robust
    def test_large_logits(self, rng):
        case = RingCase(rng, n_tokens=40, world_size=2, logit_scale=300, causal=True)
        assert_right(self.TASK, case, hint=OVERFLOW, nan_hint=OVERFLOW)

    @small
    @pytest.mark.parametrize("world_size", [2, 4])
    def test_what_is_sent(self, rng, world_size):
        case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, kv_heads=4, group=3, causal=True)
        assert_traffic(case, assert_right(self.TASK, case), "ulysses")

    @small
    def test_log_sum_exps_travel_in_float32(self, rng):
        case = RingCase(rng, n_tokens=32, world_size=2, dtype=torch.bfloat16)
        assert_traffic(case, assert_right(self.TASK, case), "ulysses")

    @small
    def test_every_rank_computes_its_heads_alone(self, rng):
        case = RingCase(rng, n_tokens=32, world_size=4, kv_heads=4, group=2)
        found = assert_right(self.TASK, case)
        most = 32 * 32 * 2
        for rank, flops in enumerate(found["flops"]):
            about = f"the pairs that rank {rank} of 4 computes with its 2 of 8 heads"
            assert_at_most(about, flops // (4 * 8), most, unit="pairs", hint="a rank computes heads of other ranks too")

    @refuses
    @pytest.mark.parametrize(("heads", "kv_heads"), [(7, 7), (14, 7)])
    def test_heads_that_cannot_be_shared_out(self, heads, kv_heads):
        q, k = torch.zeros(heads, 6, 5), torch.zeros(kv_heads, 6, 5)
        assert_refuses(self.TASK, {"q": q, "k": k, "v": k}, f"for {heads} and {kv_heads} heads on 2 ranks", ("7", "2"))


# In closed form


METHODS = ("ring", "all_gather", "ulysses")
by_method = pytest.mark.parametrize("method", METHODS)
either_pass = pytest.mark.parametrize("backward", [False, True])


class TestCommunicationBytes:
    """To the byte."""

    @by_method
    @either_pass
    def test_worked_example(self, method, backward):
        assert_bytes(communication_bytes, method, 4, 16, 8, 4, 8, 2, backward=backward)

    @by_method
    @either_pass
    def test_sizes_drawn_at_random(self, rng, method, backward):
        for _ in range(12):
            world_size, group, n, d = rng.integers(1, 9, 4).tolist()
            kv_heads = world_size * int(rng.integers(1, 5))
            given = (method, world_size, world_size * n, kv_heads * group, kv_heads, d, int(rng.choice([2, 4, 8])))
            assert_bytes(communication_bytes, *given, backward=backward)

    @pytest.mark.parametrize("method", ["ring", "all_gather"])
    def test_heads_need_not_fit_the_ranks(self, method):
        assert_bytes(communication_bytes, method, 5, 20, 6, 3, 4, 2)

    @by_method
    def test_a_large_model(self, method):
        assert_bytes(communication_bytes, method, 8, 2**20, 128, 8, 128, 2)
        assert_bytes(communication_bytes, method, 8, 2**20, 128, 8, 128, 2, backward=True)

    @robust
    @by_method
    @either_pass
    def test_a_rank_alone_sends_nothing(self, method, backward):
        assert_equal("the bytes of one rank", communication_bytes(method, 1, 64, 4, 2, 8, 4, backward), 0)

    @refuses
    def test_bad_arguments(self):
        for given, said in [
            (("star", 2, 8, 4, 2, 8, 2), ["star"]),
            (("ring", 3, 8, 4, 2, 8, 2), ["8", "3"]),
            (("all_gather", 2, 8, 5, 2, 8, 2), ["5", "2"]),
            (("ulysses", 4, 8, 4, 2, 8, 2), ["2", "4"]),
        ]:
            assert_raises(
                ValueError, lambda given=given: communication_bytes(*given), when=f"for {given}", mentions=said
            )


class TestMinimalBlock:
    """When the transfer hides behind the arithmetic."""

    @pytest.mark.parametrize(("flops", "bandwidth"), [(312e12, 300e9), (312e12, 12.5e9), (989e12, 450e9)])
    def test_real_machines(self, flops, bandwidth):
        assert_block(minimal_block, flops, bandwidth)

    def test_speeds_drawn_at_random(self, rng):
        for _ in range(20):
            bandwidth = int(rng.integers(10**9, 10**12))
            assert_block(minimal_block, int(rng.integers(10**13, 10**15)), bandwidth)

    def test_rounding_up(self):
        assert_block(minimal_block, 1000, 10)
        assert_block(minimal_block, 1001, 10)
        assert_block(minimal_block, 1009, 10)

    @robust
    def test_a_link_faster_than_the_machine(self):
        assert_block(minimal_block, 3, 100)

    @refuses
    @pytest.mark.parametrize(("given", "name"), [((0, 1), "flops"), ((1, 0), "bandwidth"), ((-5, 1), "flops")])
    def test_bad_arguments(self, given, name):
        assert_raises(ValueError, lambda: minimal_block(*given), when=f"for {name}={min(given)}", mentions=[name])
