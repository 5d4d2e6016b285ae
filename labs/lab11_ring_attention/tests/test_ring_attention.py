"""Lab 11's suite: attention over a sequence that ranks share, what they send, hold and compute, and who waits."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from ring_attention import causal_work, communication_bytes, minimal_block, shard, unshard

from labkit.testing.attention.table import SHORT_SUMS, Row, attention_cases, growing_then_shrinking
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    compare_each,
    noted,
    require,
    require_own_work,
)
from labkit.testing.rings import LAYOUTS, Sizes, cut, positions, sent_bytes, work
from labkit.testing.unchanged import report_mutation_first, unchanged
from labkit.testing.wording import dtype_name

from . import mistakes as known
from .probes import on_ranks, on_silent_rank, peak_of_work
from .reference import (
    BACKWARD,
    FORWARD,
    IN_ONE_CASE,
    OF_BACKWARD,
    QKV,
    RingCase,
    alike_on_ranks,
    long_inputs,
    numbered,
    shards_of,
    some_rows,
    splits,
    token_axis,
)

by_layout = pytest.mark.parametrize("layout", LAYOUTS)
by_dtype = pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16], ids=str)
worked_splits = pytest.mark.parametrize(("n_tokens", "world_size"), [(8, 2), (32, 4)], ids=["N8-P2", "N32-P4"])

LEAKS = "a large negative number stands for −inf; beside scores that are lower still it is large"
BAD_SPLITS = [
    ((8, 2, "folded"), "for the layout 'folded'", {"layout": "folded"}),
    ((9, 2, "contiguous"), "for 9 tokens on 2 ranks", {"N": 9, "world_size": 2}),
    ((10, 4, "striped"), "for 10 tokens on 4 ranks", {"N": 10, "world_size": 4}),
    ((6, 2, "zigzag"), "for 6 tokens on 2 ranks, in zigzag order", {"N": 6, "world_size": 2}),
    ((8, 0, "contiguous"), "for 0 ranks", {"world_size": 0}),
]
"""Tokens, ranks and layout that do not fit, when that is, and what the message names."""


# Who holds what, and has how much to do


def assert_same(name, got, want):
    """Fail unless a tensor has the shape, the dtype and the numbers of another."""
    message = f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if got.numel() == want.numel():
        message += "\nUsual cause: another axis is cut than `dim` says"
    require(got.shape == want.shape, message)
    assert_dtype(name, got, want.dtype)
    require(torch.equal(got, want), f"{name} does not hold the tokens that it should, in their order")


def assert_cut(shards, x, dim, layout):
    """Fail unless `shards` are those of three ranks, cut from `x` along `dim`."""
    for rank, (got, want) in enumerate(zip(shards, cut(x, positions(x.shape[dim], 3, layout), dim), strict=True)):
        assert_same(f"rank {rank}'s shard along axis {dim} of {tuple(x.shape)}, {layout!r},", got, want)


def assert_layout(shards, n_tokens, world_size, layout):
    """Fail unless shards of a tensor whose rows are their own numbers give every rank its tokens."""
    assert_type("shard's result", shards, (list, tuple), "a list of tensors, one for each rank")
    held = []
    for rank, part in enumerate(shards):
        assert_type(f"rank {rank}'s shard", part, torch.Tensor, "a tensor")
        fits = part.dim() == 2 and part.shape[-1] == 2
        held.append([int(row) for row in part[:, 0]] if fits else tuple(part.shape))
    mistakes = known.layout_mistakes(n_tokens, world_size, layout)
    about = f"the tokens of each rank, {n_tokens} in all, {world_size} ranks, {layout!r},"
    want = [place.tolist() for place in positions(n_tokens, world_size, layout)]
    assert_equal(about, held, want, mistakes=mistakes)


class TestShard:
    """Who holds which tokens."""

    @by_layout
    @worked_splits
    def test_worked_example(self, n_tokens, world_size, layout):
        assert_layout(shard(numbered(n_tokens), world_size, layout), n_tokens, world_size, layout)

    @by_layout
    def test_random_sizes(self, rng, layout):
        for n_tokens, world_size in splits(rng, layout):
            assert_layout(shard(numbered(n_tokens), world_size, layout), n_tokens, world_size, layout)

    @by_layout
    def test_any_axis(self, rng, layout):
        x = torch.from_numpy(rng.standard_normal((12, 24, 12)))
        for dim in (-3, -1, 0, 1):
            assert_cut(shard(x, 3, layout, dim), x, dim, layout)

    def test_layout_and_axis_may_be_left_out(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 6, 8)))
        assert_cut(shard(x, 3), x, -2, "contiguous")

    @pytest.mark.robust
    @by_dtype
    def test_any_dtype(self, dtype):
        x = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1])[:, None].to(dtype)
        assert_cut(shard(x, 3, "zigzag", 0), x, 0, "zigzag")

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refused(lambda n_tokens, *others: shard(numbered(n_tokens), *others), BAD_SPLITS)


def assert_whole(got, n_tokens, world_size, layout):
    """Fail unless the tokens of all ranks are back in order."""
    assert_type("unshard's result", got, torch.Tensor, "a tensor")
    shape = (n_tokens, 2)
    require(tuple(got.shape) == shape, f"unshard's result has shape {tuple(got.shape)}, expected {shape}")
    joined = np.concatenate(positions(n_tokens, world_size, layout))
    mistakes = {
        "shards are put behind one another, and not back in order": joined.tolist(),
        "the order is applied once more instead of its inverse: argsort of where each token came from": (
            joined[joined].tolist()
        ),
    }
    if layout == "zigzag":
        runs = np.split(joined, 2 * world_size)
        text = "the later runs are put back in the order of the ranks, and not against it"
        mistakes[text] = np.concatenate([*runs[0::2], *runs[1::2]]).tolist()
    about = f"the order of {n_tokens} tokens from {world_size} ranks, {layout!r},"
    assert_equal(about, [int(row) for row in got[:, 0]], list(range(n_tokens)), mistakes=mistakes)


class TestUnshard:
    """Back in order."""

    @by_layout
    @worked_splits
    def test_worked_example(self, n_tokens, world_size, layout):
        shards = cut(numbered(n_tokens), positions(n_tokens, world_size, layout))
        assert_whole(unshard(shards, layout), n_tokens, world_size, layout)

    @by_layout
    def test_random_sizes(self, rng, layout):
        for n_tokens, world_size in splits(rng, layout):
            shards = cut(numbered(n_tokens), positions(n_tokens, world_size, layout))
            with unchanged({f"shard {rank}": shard for rank, shard in enumerate(shards)}):
                assert_whole(unshard(shards, layout), n_tokens, world_size, layout)

    @by_layout
    def test_any_axis(self, rng, layout):
        x = torch.from_numpy(rng.standard_normal((12, 24, 12)))
        for dim in (-3, -1, 0, 1):
            shards, name = shards_of(x, dim, layout)
            assert_same(name, unshard(shards, layout, dim), x)

    def test_layout_and_axis_may_be_left_out(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 6, 8)))
        shards, name = shards_of(x, -2, "contiguous")
        assert_same(name, unshard(shards), x)

    @pytest.mark.robust
    @by_dtype
    def test_any_dtype(self, dtype):
        x = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1])[:, None].to(dtype)
        shards, name = shards_of(x, 0, "zigzag")
        assert_same(name, unshard(shards, "zigzag", 0), x)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        wide, tall = torch.zeros(2, 4), torch.zeros(4, 2)
        table = [
            (([numbered(4), numbered(4)], "folded"), "for the layout 'folded'", {"layout": "folded"}),
            (([numbered(4), numbered(6)],), "for shards of 4 and 6 tokens", ["(4, 2)", "(6, 2)"]),
            (([tall, wide],), "for shards of as many numbers in other shapes", ["(4, 2)", "(2, 4)"]),
            (([tall, torch.zeros(4, 3)],), "for shards of other widths", ["(4, 2)", "(4, 3)"]),
            (([numbered(3), numbered(3)], "zigzag"), "for shards of 3 tokens in zigzag order", {"3": 6}),
            (([],), "for no shards", []),
        ]
        assert_refused(unshard, table)


def assert_work(got, seq_len, world_size, layout):
    """Compare what `causal_work` returned with the pairs counted."""
    about, want = f"causal_work({seq_len}, {world_size}, {layout!r})", work(seq_len, world_size, layout)
    assert_type(about, got, torch.Tensor, "a tensor")
    mistakes = known.work_mistakes(want, seq_len, world_size)
    nearly = got.shape == want.shape and np.allclose(got.numpy(), want, rtol=1e-6, atol=0)
    hint = "the counts pass through float32, which has 24 bits" if nearly else ""
    usual = {text: each.tolist() for text, each in mistakes.items()}
    assert_equal(about, got.tolist(), want.tolist(), mistakes=usual, hint=hint)


class TestCausalWork:
    """Pairs of every rank and step, exactly."""

    @pytest.mark.basic
    @by_layout
    @worked_splits
    def test_worked_example(self, n_tokens, world_size, layout):
        assert_work(causal_work(n_tokens, world_size, layout), n_tokens, world_size, layout)

    @pytest.mark.basic
    @by_layout
    def test_random_sizes(self, rng, layout):
        for n_tokens, world_size in splits(rng, layout):
            assert_work(causal_work(n_tokens, world_size, layout), n_tokens, world_size, layout)

    @pytest.mark.robust
    def test_counts_are_int64(self):
        counts = causal_work(8, 2, "zigzag").dtype
        require(counts == torch.int64, f"causal_work(8, 2, 'zigzag') is {dtype_name(counts)}, expected int64")

    @pytest.mark.cost
    @by_layout
    def test_no_table_of_pairs(self, layout):
        n_tokens = 2**12
        hint = "all n × n pairs of a step are there at once: count for each query the keys up to it"
        peak = peak_of_work(n_tokens, 2, layout)
        assert_at_most(f"causal_work's peak memory at {n_tokens:,} tokens", peak, 64 * 8 * n_tokens, hint=hint)

    @pytest.mark.robust
    @by_layout
    def test_many_tokens(self, layout):
        n_tokens = 8 * 32_775  # the pairs of a rank's own tokens are more than 24 bits say
        assert_work(causal_work(n_tokens, 4, layout), n_tokens, 4, layout)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refused(causal_work, BAD_SPLITS)


# Attention

SEVERAL_STRIPS = "with more than 512 tokens on a rank its keys take several strips, the last shorter than the others"
ALL_AXES = "each axis of a shard has 4 elements: an operation along a wrong one does not crash"


def ring_cases(layouts_in_strips):
    """What every method must get right: rows of attention's table, and those of ranks, layouts and strips."""
    yield from attention_cases("full", "causal", only=(
        "N2-causal", "N63-causal", "random_sizes1-causal", "random_sizes2-causal", "random_sizes3-causal", "d_v5",
        "B2x3-causal", "logits_times_300-causal", "logits_far_below_0", "not_contiguous", "float16-causal",
        "bfloat16-causal", "float64-causal",
    ))  # fmt: skip
    for layout in LAYOUTS:
        for causal, name in ((False, "full"), (True, "causal")):
            sizes = {"n": 40, "world_size": 4, "layout": layout, "causal": causal, "d_v": 5}
            yield pytest.param(Row(sizes), id=f"P4-{layout}-{name}")
    for layout in layouts_in_strips:
        sizes = {"n": 1040, "world_size": 2, "layout": layout, "causal": True, "kv_heads": 2, "group": 1, "d": 4}
        yield pytest.param(Row(sizes, hint=SEVERAL_STRIPS), id=f"several_strips-{layout}")
    for layout, world_size in (("zigzag", 1), ("zigzag", 3), ("striped", 5), ("zigzag", 8)):
        sizes = {"n": 1, "world_size": world_size, "layout": layout, "causal": True}
        yield pytest.param(Row(sizes), id=f"one_token_a_run-{layout}-P{world_size}")
    sizes = {"n": 8, "world_size": 2, "kv_heads": 4, "group": 1, "d": 4, "batch": (4,)}
    yield pytest.param(Row(sizes, hint=ALL_AXES), id="every_axis_4")
    long_sums = Row({"n": 300, "dtype": "bfloat16"}, growing_then_shrinking, SHORT_SUMS)
    yield pytest.param(long_sums, id="long_sums", marks=pytest.mark.robust)


every_case_of_a_ring = pytest.mark.parametrize("row", [*ring_cases(LAYOUTS)])
every_case = pytest.mark.parametrize("row", [*ring_cases(["zigzag"])])
traffic = pytest.mark.parametrize(("world_size", "dtype"), [(3, "bfloat16"), (4, "float32")], ids=["P3-bf16", "P4"])
far_below_zero = pytest.mark.parametrize("far", [1e3, 1e7])
strips = pytest.mark.parametrize(
    ("n", "causal", "dtype"),
    [(1024, False, torch.bfloat16), (1024, True, torch.float32), (2560, False, torch.float32)],
    ids=["N1024-bf16", "N1024-causal", "N2560"],
)

POISON = (
    "a buffer holds NaN until its wait() has returned: it was read before; or a row saw nothing in a block, and "
    "−inf − (−inf) is NaN; or exp overflowed: the row's maximum, or its lse, is to be taken from each score first"
)
BAD_SHARDS = [
    ({"k": torch.zeros(3, 6, 5), "v": torch.zeros(3, 6, 3)}, "for 4 query heads on 3 key heads", {"H": 4, "H_kv": 3}),
    ({"k": torch.zeros(2, 6, 7)}, "when q and k differ in d", ("(4, 6, 5)", "(2, 6, 7)")),
    ({"v": torch.zeros(2, 4, 3)}, "when k and v differ in their tokens", ("(2, 6, 5)", "(2, 4, 3)")),
    ({"layout": "folded"}, "for the layout 'folded'", {"layout": "folded"}),
]
"""What differs from shards that fit, when that is, and what the message names."""


def worked_case():
    """Two ranks with one token each, and two heads alike."""
    zeros, ones = torch.zeros(2, 2, 1), torch.ones(2, 2, 1)
    values = torch.tensor([1.0, 3.0])[:, None].expand(2, 2, 1)
    return RingCase(zeros, ones, values, ones, world_size=2, layout="contiguous")


def traffic_case(rng, world_size, dtype):
    """Eight tokens on each rank, in zigzag order."""
    sizes = {"kv_heads": 2 * world_size, "group": 5, "causal": True, "dtype": dtype, "layout": "zigzag"}
    return RingCase.drawn(rng, n=8 * world_size, world_size=world_size, **sizes)


def far_case(rng, far, **sizes):
    """Keys that causality hides where every score is far below 0, by nearly the same amount."""
    case = RingCase.drawn(rng, n=24, causal=True, dtype="float64", **sizes)
    case.Q[..., 0], case.K[..., 0] = far, -1
    return case


def hidden_case(rng, layout):
    """Four ranks, with 16 tokens each, of which causality hides many."""
    return RingCase.drawn(rng, n=64, world_size=4, layout=layout, causal=True, d_v=5)


def check(case, found, names, hint="", nan_hint=""):
    """Compare the ranks' results with attention on one device, and name a known mistake where one fits."""
    require(not found["trouble"], found["trouble"])
    ranks = [
        assert_tuple(f"rank {rank}'s result", tuple(result) if isinstance(result, list) else result, names)
        for rank, result in enumerate(found["results"])
    ]

    def check_one(name):
        with noted(case.sizes), np.errstate(all="ignore"):
            assert_close(
                f"{name} of all ranks, in the order of the sequence,",
                case.in_order(name, [results[names.index(name)] for results in ranks]).double(),
                case.result(name, case.whole.want),
                baseline=case.result(name, case.whole.baseline),
                tolerance=case.whole.tolerance,
                reference=case.whole.reference_of(IN_ONE_CASE[name]),
                mistakes=partial(known.of_result, case, names, name),
                hint=hint,
                nan_hint=nan_hint,
            )

    compare_each(names, check_one)


def attend(task, case, names=QKV, hint="", nan_hint=""):
    """Run a task on ranks, compare its results with attention over the whole sequence; returns what it took."""
    shards = case.shards(names)
    with report_mutation_first(_by_rank(names, shards)):
        found = on_ranks(task, shards, **case.options)
        check(case, found, BACKWARD if names == OF_BACKWARD else FORWARD, hint=hint, nan_hint=nan_hint or POISON)
    return found


def assert_arguments_left_alone(task, case, names=QKV):
    """Fail if a rank changes what it is given."""
    shards = case.shards(names)
    given = _by_rank(names, shards)
    with unchanged(given):
        on_ranks(task, shards, **case.options)


def _by_rank(names, shards):
    return {f"rank {rank}'s {name}": x for rank, mine in enumerate(shards) for name, x in zip(names, mine, strict=True)}


def assert_refuses(task, table, names=QKV):
    """Fail unless a rank raises a ValueError before it sends anything: what differs, when that is, what is named."""
    fitting = {"q": torch.zeros(4, 6, 5), "k": torch.zeros(2, 6, 5), "v": torch.zeros(2, 6, 3)}
    fitting |= {"dO": torch.zeros(4, 6, 3), "o": torch.zeros(4, 6, 3), "lse": torch.zeros(4, 6)}
    for change, when, mentions in table:
        given = {**fitting, "layout": "zigzag", **change}
        call = partial(on_silent_rank, task, [given[name] for name in names], layout=given["layout"])
        assert_raises(ValueError, call, when=f"{when} and before anything is sent", mentions=mentions)


def assert_each_rank_at_most(what, values, limit, *, hint, unit="bytes"):
    """Fail where a rank takes more of something than `limit`; `values` are those of all ranks."""
    for rank, value in enumerate(values):
        assert_at_most(f"{what}, on rank {rank} of {len(values)},", value, limit, hint=hint, unit=unit)


def assert_traffic(case, found, method, backward):
    """Fail unless every rank sends the bytes of the closed form."""
    P, batch, e = case.world_size, int(np.prod(case.Q.shape[:-3])), case.Q.itemsize
    sizes = Sizes(method, P, case.n_tokens, case.Q.shape[-3], case.K.shape[-3], case.Q.shape[-1], e)
    want = batch * sent_bytes(sizes, backward)
    mistakes = known.traffic_mistakes(case, sizes, want, method, backward)
    for rank, sent in enumerate(found["sent_bytes"]):
        about = f"what rank {rank} of {P} sends in the {'backward' if backward else 'forward'} pass, in bytes,"
        assert_equal(about, sent, want, mistakes=mistakes)


def assert_no_hidden_pair(case, found, name, numbers_a_pair):
    """Fail where a rank computes pairs of a tile that is hidden as a whole, or fewer than are seen.

    A tile is a run of queries by a run of keys; a striped shard counts as one run. `numbers_a_pair` is the
    multiplications for a pair and query head: d + d_v in a forward pass.
    """
    require_own_work(not any(found["fused"]), f"{name} calls torch's own attention: write it")
    P, n, heads = case.world_size, case.n_tokens // case.world_size, int(np.prod(case.Q.shape[:-2]))
    seen = work(case.n_tokens, P, case.layout).sum(1)
    of_zigzag, of_striped = (2 * P + 1) * (n // 2) ** 2, P * n * n
    for rank, flops in enumerate(found["flops"]):
        pairs = flops / (2 * heads * numbers_a_pair)
        about = f"the pairs that rank {rank} of {P} computes ({case.layout})"
        most = {"contiguous": (rank + 1) * n * n, "zigzag": of_zigzag, "striped": of_striped}[case.layout]
        hint = "tiles in which no query sees any key are computed and masked: leave them out"
        assert_at_most(about, math.ceil(pairs), most, unit="pairs a head", hint=hint)
        told = f"{about} are {pairs:,.0f}, and {seen[rank]:,} are seen: write products with @, so that they count"
        require(pairs >= seen[rank] - 1e-6, told)


def assert_transfers_overlap(found, of_sums=()):
    """Fail unless each of four ranks computes during 3 transfers of K and V; `of_sums` are the bytes of the others."""
    cause = "the next block is waited for before the one at hand is computed: ask, compute, wait"
    if not any(found["messages_asked"]):
        cause = "no block goes from rank to rank, they are gathered all at once: each hop of a ring is a send_recv"
    for rank, messages in enumerate(zip(found["hidden_transfers"], found["messages_asked"], strict=True)):
        hidden, asked = (sum(sends not in of_sums for sends in each) for each in messages)
        message = f"rank {rank} computes during {hidden} of its {asked} transfers of K and V, expected 3 at least"
        require(hidden >= 3, f"{message}\nUsual cause: {cause}")


def assert_blocks_let_go(case, found, blocks_held):
    """Fail where a rank holds more received blocks at once than it may."""
    block = (case.K.nbytes + case.V.nbytes) // case.world_size
    hint = "the ring needs the block at hand and the one that comes (a third may still have a name)"
    if min(found["held_bytes"]) >= (case.world_size - 1) * block:
        hint = f"every block that passed by is kept: {hint}"
    what = f"what is held of what was received, a block is {block:,} bytes"
    assert_each_rank_at_most(what, found["held_bytes"], blocks_held * block, hint=hint)


def assert_strips(task, n, causal, dtype, names=QKV):
    """Fail where a tensor has more numbers than n · 512, with n tokens on each of two ranks."""
    found = on_ranks(task, alike_on_ranks(names, n, 2, 4, dtype), causal=causal, layout="zigzag")
    require(not found["trouble"], found["trouble"])
    hint = "a rank's own n × n scores grow with n²: let its queries meet the keys of a block in strips"
    what = f"the largest tensor of {task}, {n} tokens and one head"
    assert_each_rank_at_most(what, found["largest_bytes"], 4 * (n * 512 + 4096), hint=hint)


def assert_scores_of_one_block(task, n, heads, rows):
    """Fail where a tensor has more numbers than the `rows` queries of a rank have scores with the n keys of a block."""
    generator = torch.Generator().manual_seed(12)
    shards = [[torch.randn(heads, n, 4, generator=generator) for _ in QKV] for _ in range(4)]
    found = on_ranks(task, shards, causal=False, layout="contiguous")
    require(not found["trouble"], found["trouble"])
    hint = "the scores of all keys are there at once: let the rows meet one block of n keys after the other"
    what = f"the largest tensor of {task}, 4 blocks of {n} tokens"
    assert_each_rank_at_most(what, found["largest_bytes"], 4 * (rows * n + 4096), hint=hint)


def assert_peak(task, world_size, n_rows, n_strips, names=QKV):
    """Fail where a rank's peak memory is more than `n_rows` tensors of its tokens and `n_strips` strips of scores."""
    n = 1536 // world_size
    found = on_ranks(task, alike_on_ranks(names, n, world_size, 64), causal=False, layout="zigzag")
    require(not found["trouble"], found["trouble"])
    hint = "what a rank holds must be its own rows, the two blocks at hand, and strips of scores, whatever P is"
    limit = 4 * (n * (64 * n_rows + n_strips * min(n, 512)) + 4096)
    assert_each_rank_at_most(f"the peak memory, {n} tokens", found["peak_bytes"], limit, hint=hint)


def assert_right_within(memory_limit, task, n_tokens, world_size, heads=1):
    """Run a task on ranks under a limit of memory, and compare the first and the last row that each returns."""
    given, places = long_inputs(n_tokens, heads), positions(n_tokens, world_size, "contiguous")
    names, results = (OF_BACKWARD, BACKWARD) if task == "ring_attention_backward" else (QKV, FORWARD)
    cuts = [cut(given[name], places, token_axis(name)) for name in names]
    shards = [list(each) for each in zip(*cuts, strict=True)]
    found = memory_limit(on_ranks, task, shards, causal=False, layout="contiguous")
    require(not found["trouble"], found["trouble"])
    for rank, result in enumerate(found["results"]):
        for name, value in zip(results, assert_tuple(f"rank {rank}'s result", result, results), strict=True):
            want = some_rows(name, given, torch.from_numpy(places[rank][[0, -1]]))
            got = value.index_select(token_axis(name), torch.tensor([0, len(places[rank]) - 1]))
            close = got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-4)
            where = f"on rank {rank} of {world_size}, at N = {n_tokens}"
            require(close, f"memory stayed within the limit, but {name} is wrong {where}")


class TestRingAttentionForward:
    """Blocks of keys pass by; nobody ever holds all of them."""

    @pytest.mark.basic
    @every_case_of_a_ring
    def test_results(self, rng, row):
        case = row.draw(RingCase.drawn, rng)
        attend("ring_attention_forward", case, hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        attend("ring_attention_forward", worked_case())

    @far_below_zero
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        attend("ring_attention_forward", far_case(rng, far), hint=LEAKS)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = RingCase.drawn(rng, n=20, layout="striped")
        assert_arguments_left_alone("ring_attention_forward", case)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refuses("ring_attention_forward", BAD_SHARDS)

    @pytest.mark.cost
    @traffic
    def test_what_is_sent(self, rng, world_size, dtype):
        case = traffic_case(rng, world_size, dtype)
        assert_traffic(case, attend("ring_attention_forward", case), "ring", False)

    @pytest.mark.cost
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = hidden_case(rng, layout)
        assert_no_hidden_pair(case, attend("ring_attention_forward", case), "ring_attention_forward", 8 + 5)

    @pytest.mark.cost
    def test_blocks_travel_while_others_are_computed(self, rng):
        case = RingCase.drawn(rng, n=32, world_size=4, layout="zigzag")
        assert_transfers_overlap(attend("ring_attention_forward", case))

    @pytest.mark.cost
    def test_blocks_that_passed_are_let_go(self, rng):
        case = RingCase.drawn(rng, n=64, world_size=8, d=16, kv_heads=2, group=2, layout="zigzag")
        assert_blocks_let_go(case, attend("ring_attention_forward", case), blocks_held=3)

    @pytest.mark.cost
    @strips
    def test_scores_are_never_there_all_at_once(self, n, causal, dtype):
        assert_strips("ring_attention_forward", n, causal, dtype)

    @pytest.mark.cost
    @pytest.mark.parametrize("world_size", [2, 6], ids="P{}".format)
    def test_memory_falls_as_there_are_more_ranks(self, world_size):
        assert_peak("ring_attention_forward", world_size, n_rows=10, n_strips=3)

    @pytest.mark.cost
    def test_keys_and_values_travel_whole(self, rng):
        found = attend("ring_attention_forward", RingCase.drawn(rng, n=40, world_size=5, causal=True))
        hint = "in each hop one tensor of keys and one of values, or both in one"
        assert_each_rank_at_most("the tensors that are sent", found["messages"], 2 * 4, unit="", hint=hint)

    @pytest.mark.memory_limit(mib=76)
    @pytest.mark.cost
    def test_far_from_whole(self, memory_limit):
        assert_right_within(memory_limit, "ring_attention_forward", 4096, 1)


class TestRingAttentionBackward:
    """Sums of gradients travel with their block, and come home."""

    @pytest.mark.basic
    @every_case_of_a_ring
    def test_results(self, rng, row):
        case = row.draw(RingCase.drawn, rng)
        attend("ring_attention_backward", case, names=OF_BACKWARD, hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        attend("ring_attention_backward", worked_case(), names=OF_BACKWARD)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = RingCase.drawn(rng, n=20, layout="striped")
        assert_arguments_left_alone("ring_attention_backward", case, names=OF_BACKWARD)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refuses("ring_attention_backward", BAD_SHARDS, names=OF_BACKWARD)

    @pytest.mark.cost
    @traffic
    def test_what_is_sent(self, rng, world_size, dtype):
        case = traffic_case(rng, world_size, dtype)
        assert_traffic(case, attend("ring_attention_backward", case, names=OF_BACKWARD), "ring", True)

    @pytest.mark.cost
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = hidden_case(rng, layout)
        assert_no_hidden_pair(
            case, attend("ring_attention_backward", case, names=OF_BACKWARD), "ring_attention_backward", 3 * 8 + 2 * 5
        )

    @pytest.mark.cost
    def test_blocks_travel_while_others_are_computed(self, rng):
        case = RingCase.drawn(rng, n=32, world_size=4, layout="zigzag", d=8, d_v=5, dtype="bfloat16")
        of_dk, of_dv = (x.numel() for x in (case.K, case.V))  # a quarter of the tokens, 4 bytes a number
        found = attend("ring_attention_backward", case, names=OF_BACKWARD)
        assert_transfers_overlap(found, (of_dk, of_dv, of_dk + of_dv))

    @pytest.mark.cost
    def test_blocks_that_passed_are_let_go(self, rng):
        case = RingCase.drawn(rng, n=64, world_size=8, d=16, kv_heads=2, group=2, layout="zigzag")
        assert_blocks_let_go(case, attend("ring_attention_backward", case, names=OF_BACKWARD), blocks_held=6)

    @pytest.mark.cost
    @strips
    def test_scores_are_never_there_all_at_once(self, n, causal, dtype):
        assert_strips("ring_attention_backward", n, causal, dtype, names=OF_BACKWARD)

    @pytest.mark.cost
    @pytest.mark.parametrize("world_size", [2, 6], ids="P{}".format)
    def test_memory_falls_as_there_are_more_ranks(self, world_size):
        assert_peak("ring_attention_backward", world_size, n_rows=20, n_strips=6, names=OF_BACKWARD)

    @pytest.mark.robust
    def test_row_sums_of_half_precision_are_kept_in_float32(self, rng):
        """All scores are 0 and values are 64 ± 1/2, so that o is exactly 64 and D is far above every dP − D."""
        case = RingCase.drawn(rng, n=32, world_size=2, dtype="bfloat16")
        signs = torch.arange(32)[:, None] % 2 - 0.5
        case.Q, case.K, case.V = 0 * case.Q, case.K.abs(), (64 + 0 * case.V + signs).to(torch.bfloat16)
        hint = "a sum is not kept in float32: D = rowsum(dO ∘ O), or dq, dk and dv from block to block"
        attend("ring_attention_backward", case, names=OF_BACKWARD, hint=hint)

    @pytest.mark.memory_limit(mib=92)
    @pytest.mark.cost
    def test_far_from_whole(self, memory_limit):
        assert_right_within(memory_limit, "ring_attention_backward", 4096, 1)


class TestAllGatherAttention:
    """All keys at once: the same bytes, other memory."""

    @pytest.mark.basic
    @every_case
    def test_results(self, rng, row):
        case = row.draw(RingCase.drawn, rng)
        attend("all_gather_attention", case, hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        attend("all_gather_attention", worked_case())

    @far_below_zero
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        attend("all_gather_attention", far_case(rng, far), hint=LEAKS)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = RingCase.drawn(rng, n=20, layout="striped")
        assert_arguments_left_alone("all_gather_attention", case)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refuses("all_gather_attention", BAD_SHARDS)

    @pytest.mark.cost
    @traffic
    def test_what_is_sent(self, rng, world_size, dtype):
        case = traffic_case(rng, world_size, dtype)
        assert_traffic(case, attend("all_gather_attention", case), "all_gather", False)

    @pytest.mark.cost
    @by_layout
    def test_no_hidden_pair_is_computed(self, rng, layout):
        case = hidden_case(rng, layout)
        assert_no_hidden_pair(case, attend("all_gather_attention", case), "all_gather_attention", 8 + 5)

    @pytest.mark.cost
    def test_keys_are_gathered(self, rng):
        found = attend("all_gather_attention", RingCase.drawn(rng, n=8, world_size=2))
        require(all(found["collective_calls"]), "keys and values are to be gathered by comm.all_gather: this is a ring")

    @pytest.mark.cost
    def test_scores_are_those_of_one_block(self):
        assert_scores_of_one_block("all_gather_attention", n=512, heads=1, rows=512)

    @pytest.mark.memory_limit(mib=96)
    @pytest.mark.cost
    def test_far_from_whole(self, memory_limit):
        assert_right_within(memory_limit, "all_gather_attention", 6144, 4)


class TestUlyssesAttention:
    """Tokens for heads, and back."""

    @pytest.mark.basic
    @every_case
    def test_results(self, rng, row):
        case = row.draw(partial(RingCase.drawn, by_heads=True), rng)
        attend("ulysses_attention", case, hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        attend("ulysses_attention", worked_case())

    @far_below_zero
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far):
        attend("ulysses_attention", far_case(rng, far, by_heads=True), hint=LEAKS)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = RingCase.drawn(rng, n=20, layout="striped", by_heads=True)
        assert_arguments_left_alone("ulysses_attention", case)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_refuses("ulysses_attention", BAD_SHARDS)

    @pytest.mark.cost
    @traffic
    def test_what_is_sent(self, rng, world_size, dtype):
        case = traffic_case(rng, world_size, dtype)
        assert_traffic(case, attend("ulysses_attention", case), "ulysses", False)

    @pytest.mark.cost
    def test_every_rank_computes_its_heads_alone(self, rng):
        found = attend("ulysses_attention", RingCase.drawn(rng, n=32, world_size=4, kv_heads=4, group=2))
        pairs = [flops // (4 * 8) for flops in found["flops"]]
        hint = "a rank computes heads of other ranks too"
        assert_each_rank_at_most("the pairs computed with 2 of 8 heads", pairs, 32 * 32 * 2, unit="pairs", hint=hint)

    @pytest.mark.cost
    def test_scores_are_those_of_one_block(self):
        assert_scores_of_one_block("ulysses_attention", n=512, heads=4, rows=2048)

    @pytest.mark.memory_limit(mib=96)
    @pytest.mark.cost
    def test_far_from_whole(self, memory_limit):
        assert_right_within(memory_limit, "ulysses_attention", 3072, 4, heads=4)

    @pytest.mark.refuses
    @pytest.mark.parametrize(("heads", "kv_heads"), [(7, 7), (14, 7)])
    def test_heads_that_cannot_be_shared_out(self, heads, kv_heads):
        q, k = torch.zeros(heads, 6, 5), torch.zeros(kv_heads, 6, 5)
        heads_of_none = ({"q": q, "k": k, "v": k}, f"for {heads} and {kv_heads} heads on 2 ranks", ("7", "2"))
        assert_refuses("ulysses_attention", [heads_of_none])


# In closed form


def assert_bytes(function, *given, backward=False):
    """Compare `communication_bytes` with the closed form."""
    sizes = Sizes(*given)
    want = sent_bytes(sizes, backward)
    mistakes = known.byte_mistakes(sizes, want, backward)
    call = f"communication_bytes({', '.join(map(repr, given))}{', backward=True' if backward else ''})"
    got = function(*given, backward=backward)
    assert_type(call, got, int, "an int: bytes")
    assert_equal(call, got, want, mistakes={text: value for text, value in mistakes.items() if value != want})


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

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            (("star", 2, 8, 4, 2, 8, 2), "for the method 'star'", ["star"]),
            (("ring", 3, 8, 4, 2, 8, 2), "for 8 tokens on 3 ranks", ["8", "3"]),
            (("all_gather", 2, 8, 5, 2, 8, 2), "for 5 query heads on 2", ["5", "2"]),
            (("ulysses", 4, 8, 4, 2, 8, 2), "for 2 key heads on 4 ranks of Ulysses", ["2", "4"]),
        ]
        assert_refused(communication_bytes, table)


def assert_block(minimal_block, flops, bandwidth):
    """Compare `minimal_block` with the quotient, rounded up."""
    mistakes = {
        "the quotient is rounded down: then sending takes longer": flops // bandwidth,
        "the quotient is rounded to the nearest: below it sending takes longer": round(flops / bandwidth),
        "one block is sent: K and V are both": -(-flops // (2 * bandwidth)),
        "one product is counted: a block takes two, Q Kᵀ and P V": -(-2 * flops // bandwidth),
        "one is added even where the quotient is whole": flops // bandwidth + 1,
        "FLOPs and bytes have changed places": -(-bandwidth // flops),
    }
    about, got = f"minimal_block({flops:g}, {bandwidth:g})", minimal_block(flops, bandwidth)
    assert_type(about, got, int, "an int")
    assert_equal(about, got, -(-flops // bandwidth), mistakes=mistakes)


class TestMinimalBlock:
    """When the transfer hides behind the arithmetic."""

    @pytest.mark.parametrize(("flops", "bandwidth"), [
        (312 * 10**12, 300 * 10**9), (312 * 10**12, 125 * 10**8), (990, 10), (1009, 10), (1001, 10), (3, 100),
    ])  # fmt: skip
    def test_worked_example_and_rounding_up(self, flops, bandwidth):
        assert_block(minimal_block, flops, bandwidth)

    def test_random_speeds(self, rng):
        for _ in range(20):
            bandwidth = int(rng.integers(10**9, 10**12))
            assert_block(minimal_block, int(rng.integers(10**13, 10**15)), bandwidth)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [((0, 1), "for 0 FLOPs", {"flops": 0}), ((1, 0), "for bandwidth 0", {"bandwidth": 0})]
        assert_refused(minimal_block, [*table, ((-5, 1), "for −5 FLOPs", {"flops": -5})])
