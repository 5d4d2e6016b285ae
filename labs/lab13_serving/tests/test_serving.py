"""Lab 13's suite: what fits, who owns it, how it is kept, who is served when; and a server that does all of it."""

from functools import partial

import pytest
import torch
from serving import QuantizedBlocks, cache_plan

from labkit.serving.drive import serve_plans
from labkit.serving.engine import settings_of, token_bytes
from labkit.serving.model import SPEC
from labkit.serving.requests import KINDS, LIMITS, REAL, Request, any_requests, clear_prompt, make_trace, prefix_tokens
from labkit.serving.sampling import Sampling
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_unchanged,
    require,
    require_own_work,
)
from labkit.testing.decoding.managed import Managed, assert_names_are_known, of_equal_hash, run_random_operations
from labkit.testing.serving.bit_blocks import attention, rounded
from labkit.testing.sessions import Session

from .probes import (
    arguments_of_a_cache,
    bytes_of_attention,
    bytes_of_blocks,
    cache_calls,
    full_cache,
    held_by_server,
    manager_calls,
    plans_of_server,
    prompt_after_a_step,
    random_operations,
    scheduler_calls,
    served_from_outside,
    server_calls,
    table_after_a_change,
)
from .support import (
    WrittenCache,
    assert_plan,
    assert_served,
    assert_trace,
    different_requests,
    serve_recorded,
    trace_of,
)

by_bits = pytest.mark.parametrize("bits", [2, 4, 8])
by_kind = pytest.mark.parametrize("kind", KINDS)
CONSTANTS = 64
"""Bytes of small tensors that a cache may have besides, as the shifts of codes in a byte; read for each block."""
GENEROUS = 200_000
"""Bytes with which a server of every kind, also one that keeps float32, has blocks to spare."""


class TestCachePlan:
    """A block's bytes, to the last one."""

    def test_worked_example(self):
        assert_plan(cache_plan, SPEC, 40_000, 8, 8)

    @pytest.mark.parametrize("bits", [2, 4, 8, 32])
    def test_sizes_drawn_at_random(self, rng, bits):
        for _ in range(8):
            layers, kv_heads, group, width, block_size = rng.integers(1, (9, 9, 5, 9, 33)).tolist()
            spec = {"layers": layers, "heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": 4 * width}
            assert_plan(cache_plan, spec | {"vocab": 64}, int(rng.integers(10**6, 10**8)), block_size, bits)

    @pytest.mark.robust
    def test_exactly_one_block_and_very_many(self):
        block = 16 * token_bytes(SPEC, 4)
        for nbytes in (block, 2 * block - 1, 2 * block, 10**15 * block - 1):
            assert_plan(cache_plan, SPEC, nbytes, 16, 4)

    @pytest.mark.refuses
    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"bits": 3}, "bits"),
            ({"bits": 16}, "bits"),
            ({"spec": SPEC | {"head_dim": 6}, "bits": 2}, "bits"),
            ({"block_size": 0}, "block_size"),
            ({"nbytes": 1279}, "nbytes"),
        ],
    )
    def test_bad_arguments(self, change, name):
        given = {"spec": SPEC, "nbytes": 40_000, "block_size": 8, "bits": 8} | change
        when = "for " + ", ".join(f"{what}={value}" for what, value in change.items())
        assert_raises(ValueError, lambda: cache_plan(**given), when=when, mentions={name: given[name]})


class TestBlockManager:
    """Nothing lost, nothing twice, nothing shared that differs."""

    @pytest.mark.basic
    def test_worked_example(self):
        manager = Session(partial(manager_calls, 4, 2))
        known = {"the block that became free last is taken first: the longest free is": [3, 2]}
        assert_equal("the table of the first sequence", manager.allocate("a", [5, 6, 7]), [0, 1], mistakes=known)
        hint = "the block with 5 and 6 is there already"
        assert_equal("the table of the second", manager.allocate("b", [5, 6, 8]), [0, 2], hint=hint)
        assert_equal("num_cached_tokens of the second", manager.num_cached_tokens("b"), 2)

    def test_full_blocks_are_shared(self, rng):
        managed, text = Managed(manager_calls, 40, 3), rng.integers(0, 50, 12).tolist()
        managed.allocate("first", [*text, 99])
        for n in range(1, 13):
            hint = "full blocks at the beginning are shared, and never the one with the last token"
            managed.assert_finds(n, text[:n], (n - 1) // 3 * 3, hint)
            managed.free(n)

    def test_a_block_is_what_precedes_it_too(self):
        managed = Managed(manager_calls, 8, 2).after(a=[1, 2, 3, 4, 5])
        hint = "the key of a block leaves out what lies before it: keys and values depend on all of the text"
        managed.assert_finds("b", [3, 4, 7], 0, hint)

    def test_what_was_freed_is_found_until_it_is_needed(self):
        managed = Managed(manager_calls, 4, 2).after(a=[1, 2, 3, 4, 5], gone="a")
        managed.assert_finds("b", [1, 2, 3, 4, 6], 4, "freed blocks keep what they hold as long as nobody takes them")
        hint = "a block was given to somebody else, and its old content is still found"
        managed.after(gone="b").after(c=[7] * 8, gone="c").assert_finds("d", [1, 2, 3], 0, hint)

    def test_the_longest_free_goes_first(self):
        managed = Managed(manager_calls, 6, 2).after(a=[1, 2, 3, 4, 5], b=[6, 7, 8], gone="ab")
        hint = "free blocks are taken in the order in which they became free, those of one sequence from its last"
        what = "the blocks of a new sequence, when 5 was never used, then 2, 1, 0 and then 4, 3 became free,"
        assert_equal(what, managed.manager.allocate("c", [9] * 3), [5, 2], hint=hint)

    def test_blocks_are_named_when_they_are_full(self):
        hint = "only full blocks are shared: in one that is still being filled the next token of each would cost a copy"
        Managed(manager_calls, 8, 2).after(a=[1, 2, 3]).assert_finds("b", [1, 2, 3, 4, 5], 2, hint)
        Managed(manager_calls, 8, 2).after(a=[1, 2, 3, 4]).assert_finds(
            "b", [1, 2, 3, 4, 5], 4, "the last block is full"
        )
        managed = Managed(manager_calls, 8, 3).after(a=[1, 2])
        for token_id in range(3, 8):
            managed.append("a", token_id)
        managed.assert_finds("b", [*range(1, 7), 9], 6, "blocks that fill up token by token are shared as well")

    def test_a_fork_has_found_all_of_its_parent(self):
        Managed(manager_calls, 6, 2).after(a=[1, 2, 3]).fork("a", "b")

    @pytest.mark.robust
    def test_equal_hashes_are_not_equal_tokens(self):
        managed = Managed(manager_calls, 8, 2).after(a=[1, 2, 3])
        hint = f"hash({of_equal_hash(1)}) is hash(1) in Python: where hashes are equal, tokens must be compared"
        managed.assert_finds("b", [of_equal_hash(1), 2, 3], 0, hint)

    def test_a_free_block_that_is_found_is_counted_once(self):
        managed = Managed(manager_calls, 3, 2).after(a=[1, 2, 3, 4], gone="a").after(b=[9, 9, 9])
        what = f"can_allocate([1, 2, 3]) after {managed.story}, where the one free block is the one that is found,"
        hint = "a block that is found, and free, counts as found and as free"
        assert_equal(what, managed.manager.can_allocate([1, 2, 3]), False, hint=hint)

    def test_a_shared_block_needs_no_new_one(self):
        managed = Managed(manager_calls, 3, 2).after(a=[1, 2, 3, 4])
        what = f"can_allocate([1, 2, 5]) after {managed.story}, where one block is free and one is shared,"
        hint = "blocks shared with living sequences are counted as needed"
        assert_equal(what, managed.manager.can_allocate([1, 2, 5]), True, hint=hint)

    @pytest.mark.robust
    def test_what_was_found_remains_findable(self):
        managed = Managed(manager_calls, 6, 2).after(a=[1], b=[1])
        for seq_id in "ab":
            for token_id in (2, 3):
                managed.append(seq_id, token_id)
        managed.assert_finds("c", [1, 2, 5], 2, "blocks that fill up token by token are shared as well")
        managed.after(gone="b").after(f=[7] * 5, gone="f")
        hint = "a block with the same content was taken anew, and the content of the one that was found is forgotten"
        managed.assert_finds("e", [1, 2, 6], 2, hint)

    @pytest.mark.basic
    @pytest.mark.seconds(60)
    def test_random_operations(self, rng):
        run_random_operations(manager_calls, random_operations, rng)

    @pytest.mark.robust
    def test_a_table_is_a_new_list(self):
        got = table_after_a_change()
        assert_equal("the table of 'a' when the caller has changed the list that it got", got, [0, 1])

    @pytest.mark.robust
    def test_no_block_for_a_token(self):
        managed = Managed(manager_calls, 3, 2).after(a=[1, 2], b=[3, 4, 5])
        require(managed.append("a", 6) is False, "append gave a block, and all are in use")
        managed.free("b")
        managed.append("a", 6)

    @pytest.mark.refuses
    def test_unknown_and_known_names(self):
        assert_names_are_known(manager_calls)

    @pytest.mark.refuses
    @pytest.mark.parametrize("name", ["num_blocks", "block_size"])
    def test_bad_sizes(self, name):
        given = {"num_blocks": 4, "block_size": 2} | {name: 0}
        call = partial(manager_calls, *given.values(), [])
        assert_raises(ValueError, call, when=f"for {name}=0", mentions={name: 0})


class TestQuantizedBlocks:
    """Few bits a number, read where they lie, and not a byte more."""

    @pytest.mark.basic
    def test_worked_example(self):
        cache = Session(partial(cache_calls, (2, 2, 1, 1, 4, 2)))
        v = torch.tensor([1.0, 2.0, 4.0, 2.4]).view(1, 1, 4)
        cache.write(0, [1], [0], torch.zeros(1, 1, 4), v)
        got = cache.attend(0, torch.ones(1, 1, 4), [1], 0)
        usual = {
            "another block is read than the table names, block 1": 0.0,
            "the value is kept whole: what is read is code · scale + zero": v,
            "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": [[[1, 1.75, 3.25, 2.5]]],
        }
        want = torch.tensor([[[1.0, 2, 4, 2]]])
        assert_close("the value 1, 2, 4, 2.4, with codes 0, 1, 3 and 1,", got, want, baseline=want, mistakes=usual)

    @pytest.mark.basic
    @pytest.mark.parametrize(("bits", "n_tokens"), [(2, 1), (8, 4), (4, 7), (2, 23)])
    def test_lengths(self, rng, bits, n_tokens):
        blocks = WrittenCache(rng, bits=bits)
        text = blocks.sequence(n_tokens)
        blocks.write(text)
        blocks.check(text, n_tokens - 1)

    @pytest.mark.parametrize(("kv_heads", "group"), [(1, 4), (3, 2)])
    def test_groups(self, rng, kv_heads, group):
        blocks = WrittenCache(rng, kv_heads=kv_heads, group=group, bits=4)
        text = blocks.sequence(14)
        blocks.write(text)
        blocks.check(text, 13)

    def test_a_prompt_in_pieces(self, rng):
        blocks = WrittenCache(rng, bits=4)
        text, other = blocks.sequence(21), blocks.sequence(9)
        for start, end in ((0, 5), (5, 16), (16, 21)):
            blocks.write(text, start, end)
            blocks.check(text, start, end - start)
            if start == 5:
                blocks.write(other)
        blocks.check(other, 0, 9)

    def test_a_block_is_copied(self, rng):
        blocks = WrittenCache(rng)
        text, other = blocks.sequence(10), blocks.sequence(4)
        blocks.write(text)
        blocks.check(text, 9)
        new = blocks.free.pop()
        blocks.cache.copy(text.table[1], new)
        old, text.table[1] = text.table[1], new
        other.table = [old]
        blocks.write(other)
        hint = "copy leaves out codes, scales, zeros or a layer; or a write into one block changes the other, too"
        blocks.check(text, 9, hint=hint)
        blocks.check(other, 3, hint=hint)

    @pytest.mark.robust
    def test_small_and_equal_numbers(self, rng):
        blocks = WrittenCache(rng)
        text = blocks.sequence(9, spread=1e-3)
        text.k[:, 3], text.v[:, 5] = 2.5e-3, 0.0
        blocks.write(text)
        hint = "a small scale is taken for another: it is what the range gives, and only where it is 0 all codes are"
        blocks.check(text, 8, hint=hint, nan_hint="0 / 0: where a vector's numbers are all equal its scale is 0")

    @pytest.mark.robust
    def test_numbers_far_from_zero(self, rng):
        blocks = WrittenCache(rng)
        text = blocks.sequence(9, offset=100.0, spread=3.0)
        blocks.write(text)
        blocks.check(text, 8)

    @pytest.mark.robust
    def test_large_logits(self, rng):
        blocks = WrittenCache(rng, num_blocks=90)
        text = blocks.sequence(330)
        blocks.write(text)
        hint = "exp overflows: no score may enter exp without a maximum taken from it, that of all blocks so far"
        blocks.check(text, 329, sharp=200.0, nan_hint=hint)
        blocks.check(text, 200, 40, sharp=200.0, nan_hint=hint)

    @pytest.mark.robust
    def test_all_scores_far_below_0(self, rng):
        blocks = WrittenCache(rng)
        text = blocks.sequence(9, offset=5.0)
        blocks.write(text)
        hint = "the running maximum begins at 0: no score lies below −∞, many lie below 0, where every exp is 0"
        blocks.check(text, 8, sharp=-40.0, hint=hint, nan_hint=hint)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        k, v, q = (torch.from_numpy(rng.standard_normal((6, 2, 8))).float() for _ in range(3))
        after = arguments_of_a_cache((3, 2, 1, 2, 8, 8), k.clone(), v.clone(), q.clone())
        for name, now, before in zip("kvq", after, (k, v, q), strict=True):
            assert_unchanged(name, now, before)

    @pytest.mark.robust
    def test_places_of_others_may_hold_anything(self, rng):
        blocks = WrittenCache(rng)
        text, other = blocks.sequence(6), blocks.sequence(8)
        blocks.write_nan(other, 0)
        blocks.write_nan(text, 6)
        blocks.write(text)
        blocks.check(text, 5, table=[*text.table, *other.table])
        blocks.check(text, 2, 2)

    @pytest.mark.cost
    @by_bits
    def test_exact_bytes(self, rng, bits):
        k, v = torch.from_numpy(rng.standard_normal((2, 64, 2, 32))).float()
        told = bytes_of_blocks((8, 8, 3, 2, 32, bits), k, v)
        tokens, vectors = 64, 3 * 2 * 2
        want = tokens * vectors * (32 * bits // 8 + 4)
        usual = {
            "every number is kept in float32": tokens * vectors * 32 * 4,
            "a code takes a whole byte: 8 / bits of them share one": tokens * vectors * (32 + 4),
            "scales and zeros are float32: they are kept in float16": tokens * vectors * (32 * bits // 8 + 8),
        }
        name = f"the bytes of 64 tokens in {bits} bits, 3 layers, 2 heads of 32,"
        if not want <= told["made"] <= want + CONSTANTS:
            assert_equal(f"{name} when the cache is made", told["made"], want, mistakes=usual)
        hint = "something is kept besides: the memory is made once, and keys and values live nowhere else"
        assert_at_most(f"{name} when it is full", told["full"], want + CONSTANTS, hint=hint, required=want)

    @pytest.mark.cost
    def test_a_block_is_read_once_and_few_at_a_time(self, rng):
        num_blocks, size, heads, d = 128, 32, 2, 32
        k, v = torch.from_numpy(rng.standard_normal((2, num_blocks * size, heads, d))).float()
        q = torch.from_numpy(rng.standard_normal((2, 2 * heads, d))).float()
        told = bytes_of_attention((num_blocks, size, 1, heads, d, 8), k, v, q)
        want = attention(q, rounded(k, 8), rounded(v, 8))
        off = float((told["result"] - want).abs().max())
        require_own_work(
            not told["fused"], f"attend calls torch's own attention ({', '.join(told['fused'])}): write it"
        )
        require(off < 1e-3, f"o is off by {off:.3g} at 4,096 tokens")  # not about rounding: ties may fall either way
        half, whole = told["peaks"]
        hint = "what is dequantized at once grows with the sequence: a fixed number of blocks at a time, in one pass"
        assert_at_most("the growth of attend's peak from 2,048 to 4,096 tokens", whole - half, 2048 * 32, hint=hint)
        hint = "a block is read again, or blocks are read that are not needed: a group of heads shares one read"
        kept = num_blocks * size * 2 * heads * (d + 4)
        most = kept + 4 * num_blocks * CONSTANTS
        name = f"what attend reads of a cache of {kept:,} bytes"
        assert_at_most(name, told["read"], most, hint=hint, required=kept)
        hint = "the whole table is read: nothing behind the last query is needed"
        name = f"what attend reads of {kept:,} bytes for queries that end at an eighth of them"
        assert_at_most(name, told["early"], kept // 4, hint=hint)

    @pytest.mark.memory_limit(mib=44)
    @pytest.mark.cost
    def test_far_from_float32(self, memory_limit):
        sizes, n_tokens = (128, 16, 1, 16, 256, 4), 2048
        got = memory_limit(full_cache, sizes, n_tokens, 13)
        generator = torch.Generator().manual_seed(13)
        drawn = [torch.randn(2, 64, 16, 256, generator=generator) for _ in range(0, n_tokens, 64)]
        k, v = (rounded(torch.cat([each[i] for each in drawn]), 4) for i in (0, 1))
        want = attention(torch.randn(1, 32, 256, generator=generator), k, v)
        off = float((got - want).abs().max())
        require(off < 1e-3, f"o is off by {off:.3g} with the cache full")

    @pytest.mark.refuses
    @pytest.mark.parametrize(("bits", "d"), [(1, 8), (3, 8), (32, 8), (2, 6)])
    def test_bad_bits(self, bits, d):
        call = partial(QuantizedBlocks, 4, 2, 1, 1, d, bits)
        assert_raises(ValueError, call, when=f"for {bits} bits and {d} numbers", mentions={"bits": bits})


class TestScheduler:
    """Every plan is sound, every request ends, and no block is lost."""

    @pytest.mark.basic
    def test_worked_example(self):
        scheduler = Session(partial(scheduler_calls, (4, 2, 8)))
        scheduler.submit("r1", [5, 6, 7], 1)
        want = {"copies": [], "work": [{"id": "r1", "start": 0, "tokens": [5, 6, 7], "blocks": [0, 1]}]}
        shifted = {"copies": [], "work": [want["work"][0] | {"start": 1}]}
        known = {"positions are counted from 1: the first is 0": shifted}
        assert_equal("the plan for 5, 6, 7", scheduler.plan(), want, mistakes=known)

    @pytest.mark.basic
    def test_one_request(self):
        hint = "a prompt of 12 tokens is one step, with the first new token; then each token is one"
        assert_served(different_requests(1, 12, 5), 8, 4, 32, most_steps=5, hint=hint)

    def test_a_prompt_longer_than_a_step(self):
        hint = "100 tokens in pieces of 32 are 4 steps, the last of which gives the first new token"
        assert_served(different_requests(1, 100, 3), 16, 8, 32, most_steps=6, hint=hint)

    def test_requests_are_served_together(self):
        hint = "what fits into a step and into the blocks is served in one step"
        assert_served(different_requests(6, 8, 5), 30, 4, 120, most_steps=5, hint=hint)

    def test_requests_drawn_at_random(self, rng):
        for _ in range(3):
            size, max_tokens = (int(rng.integers(*each)) for each in ((1, 9), (8, 40)))
            assert_served(any_requests(rng, 16), -(-120 // size), size, max_tokens)

    def test_blocks_run_out(self, rng):
        for _ in range(3):
            size = int(rng.integers(2, 6))
            trace = any_requests(rng, 16, longest=24, most_new=24, every=1)
            assert_served(trace, -(-56 // size), size, int(rng.integers(8, 40)))

    def test_what_is_found_may_never_have_been_computed(self, rng):
        text = tuple(rng.integers(0, 64, 40).tolist())
        for later in (0, 1, 2):
            trace = [Request(0, 0, text, 4), Request(1, later, (*text, 7), 4), Request(2, later + 1, (*text, 9), 4)]
            assert_served(trace, 40, 4, 16)
        for n in range(20, 40, 2):  # some of them give way in the middle of their prompt
            for max_tokens in (3, 5, 8):
                trace = [Request(1, 20, tuple(range(8)), 8), Request(2, 20, text[:n], 4)]
                assert_served(trace, 12, 4, max_tokens)
                # likewise, in blocks that were full before
                assert_served([Request(0, 0, tuple(range(43)), 2), *trace], 12, 4, max_tokens)

    def test_the_request_that_came_last_gives_way(self):
        scheduler = Session(partial(scheduler_calls, (4, 2, 8)))
        scheduler.submit("first", [1, 2, 3], 5)
        scheduler.submit("last", [4, 5, 6], 3)
        for _ in range(2):
            scheduler.plan()
            scheduler.advance({"first": 7, "last": 8})
        served = [piece["id"] for piece in scheduler.plan()["work"]]
        hint = "the request in need gives way itself: the one that came last does, so that the first is always served"
        assert_equal("the requests served when both need a block and none is free", served, ["first"], hint=hint)

    def test_no_more_give_way_than_must(self):
        scheduler = Session(partial(scheduler_calls, (6, 2, 9)))
        for number, id in enumerate(("first", "second", "last")):
            scheduler.submit(id, [3 * number, 3 * number + 1, 3 * number + 2], 5)
        for _ in range(2):
            before = [piece["id"] for piece in scheduler.plan()["work"]]
            scheduler.advance(dict.fromkeys(before, 9))
        served = [piece["id"] for piece in scheduler.plan()["work"]]
        what = f"the requests served of {', '.join(before)}, when each needs a block and the last has two"
        want = [id for id in before if id != "last"]  # a scheduler that waits for more blocks has fewer
        hint = "more give way than blocks are needed for"
        if "last" in served:
            hint = "another than the one that came last gives way"
        assert_equal(what, served, want, hint=hint)

    def test_completions_share_their_prompt(self):
        for n_prompt, n, max_new in ((13, 3, 6), (12, 2, 5), (1, 4, 3)):
            trace = [Request(0, 0, tuple(range(n_prompt)), max_new, n), *different_requests(3, 9, 4)[1:]]
            hint = "a prompt is computed once, then each step computes a token of every completion"
            served = assert_served(trace, 60, 4, 64, most_steps=max(max_new, 4), hint=hint)
            what = f"the tokens computed again, for {n} completions of a prompt of {n_prompt} in blocks of 4,"
            hint = "all completions begin in the prompt's own blocks, the last one too, even if it is not full: fork"
            assert_equal(what, served.again, 0, hint=hint)

    def test_completions_while_blocks_run_out(self, rng):
        for _ in range(3):
            size = int(rng.integers(2, 6))
            trace = any_requests(rng, 12, longest=24, most_new=16, every=1, most_completions=3)
            assert_served(trace, -(-52 // size), size, int(rng.integers(8, 40)))

    def test_completions_of_one_token(self):
        trace = [Request(0, 0, (1, 2, 3), 1, 3), Request(1, 0, (4, 5), 3, 2)]
        assert_served(trace, 12, 4, 16, most_steps=3, hint="the last token of a completion is not computed")

    @pytest.mark.robust
    def test_nobody_starves(self):
        little = [Request(i, i // 2, (i % 64, (7 * i) % 64, 3), 3) for i in range(1, 41)]
        assert_served([Request(0, 0, tuple(range(50)), 6), *little], 16, 4, 8)
        late = sorted([Request(100, 3, tuple(range(56)), 6), *little], key=lambda request: request.arrival)
        assert_served(late, 16, 4, 16)

    @pytest.mark.refuses
    def test_what_can_never_fit(self):
        scheduler = Session(partial(scheduler_calls, (4, 4, 16)))
        for prompt, max_new in ((16, 1), (10, 7), (1, 16)):
            call = partial(scheduler.submit, "r0", list(range(prompt)), max_new)
            when = f"for {prompt} tokens and {max_new} to follow, in 4 blocks of 4"
            assert_raises(ValueError, call, when=when, mentions=["r0"])
        serve_plans(scheduler, [Request(0, 0, tuple(range(10)), 6)], 4, 4, 16)
        assert_served([Request(0, 0, tuple(range(10)), 6, 3)], 4, 4, 16)  # one completion after the other

    @pytest.mark.refuses
    def test_bad_requests(self):
        scheduler = Session(partial(scheduler_calls, (8, 4, 16)))
        scheduler.submit("r1", [1, 2], 3)
        for prompt, max_new, when in (
            ([3], 1, "for a name that is served"),
            ([], 1, "for no tokens"),
            ([1], 0, "for 0 new"),
        ):
            name = "r1" if prompt == [3] else "r2"
            assert_raises(ValueError, partial(scheduler.submit, name, prompt, max_new), when=when, mentions=[name])
        call = partial(scheduler.submit, "r2", [1], 1, 0)
        assert_raises(ValueError, call, when="for 0 completions", mentions=["r2"])
        scheduler.plan()
        again = partial(scheduler.submit, "r1", [3], 1)
        assert_raises(ValueError, again, when="for the name of one whose prompt was computed", mentions=["r1"])

    @pytest.mark.refuses
    def test_a_name_is_free_after_a_refusal_and_at_the_end(self):
        scheduler = Session(partial(scheduler_calls, (4, 2, 8)))
        assert_raises(ValueError, partial(scheduler.submit, "r1", [], 1), when="for no tokens", mentions=["r1"])
        for _ in range(2):
            scheduler.submit("r1", [5, 6, 7], 1)
            served = [piece["id"] for piece in scheduler.plan()["work"]]
            assert_equal("the requests served when 'r1' has been submitted", served, ["r1"])
            scheduler.advance({"r1": 9})

    @pytest.mark.refuses
    def test_a_name_is_in_use_until_the_last_completion_ends(self):
        scheduler = Session(partial(scheduler_calls, (6, 2, 1)))
        scheduler.submit("r1", [5], 2, 2)
        scheduler.plan()
        scheduler.advance({"r1": 8, ("r1", 1): 9})
        for when in ("one of its two completions has ended", "both have ended"):
            name = scheduler.plan()["work"][0]["id"]
            scheduler.advance({name: 4})
            again = partial(scheduler.submit, "r1", [3], 1)
            if when.startswith("one"):
                assert_raises(ValueError, again, when=f"for the name of a request when {when}", mentions=["r1"])
        again()

    @pytest.mark.refuses
    @pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_tokens"])
    def test_bad_sizes(self, name):
        given = {"num_blocks": 4, "block_size": 2, "max_tokens": 8} | {name: 0}
        call = partial(scheduler_calls, tuple(given.values()), [])
        assert_raises(ValueError, call, when=f"for {name}=0", mentions={name: 0})

    @pytest.mark.robust
    def test_the_callers_prompt_is_left_alone(self):
        hint = "what is generated is appended to the caller's list: copy the prompt"
        assert_equal("the caller's prompt after a step", prompt_after_a_step([5, 6, 7]), [5, 6, 7], hint=hint)


WIDE = {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 64}


class TestServer:
    """The right tokens for everybody, within the budget."""

    @pytest.mark.basic
    def test_worked_example(self, rng):
        prompt = clear_prompt(rng, (), (24, 56), 1)
        serve_recorded([Request(0, 0, prompt, 1)], GENEROUS, 16)

    @pytest.mark.basic
    def test_a_block_is_copied(self, rng):
        server = Session(partial(server_calls, (SPEC, GENEROUS, 16)))
        _, size, num_blocks = settings_of(server, SPEC, GENEROUS)
        require(num_blocks > 3, f"blocks of {size} tokens, {num_blocks} in all: no prefix fills one, so none is shared")
        k, v = torch.from_numpy(rng.standard_normal((2, size, SPEC["kv_heads"], SPEC["head_dim"]))).float()
        q = torch.from_numpy(rng.standard_normal((1, SPEC["heads"], SPEC["head_dim"]))).float()
        for layer in range(SPEC["layers"]):
            server.write(layer, [0] * size, list(range(size)), k.clone(), v.clone())
        before = [server.attend(layer, q, [0], size - 1) for layer in range(SPEC["layers"])]
        server.copy(0, 3)
        for layer in range(SPEC["layers"]):
            server.write(layer, [0] * size, list(range(size)), v.clone(), k.clone())
            same = torch.allclose(before[layer], server.attend(layer, q, [3], size - 1))
            require(same, f"after copy(0, 3) block 3 does not hold in layer {layer} what block 0 held")

    def test_completions_are_drawn(self, rng):
        drawn = Sampling(temperature=1.5, seed=int(rng.integers(10**6)))
        prompts = [clear_prompt(rng, (), (20, 40), 5, 3, drawn) for _ in range(2)]
        trace = [Request(number, number, prompt, 5, 3, drawn) for number, prompt in enumerate(prompts)]
        serve_recorded(trace, GENEROUS, 48)

    @by_kind
    def test_traces_with_room_to_spare(self, rng, kind):
        trace = make_trace(kind, int(rng.integers(10**6)))
        serve_recorded(trace, GENEROUS, 48)

    @pytest.mark.cost
    @by_kind
    def test_traces_under_the_budget(self, request, record_property, kind):
        """The traces of the board, whose seed is the run's: grading draws others."""
        counts = assert_trace(trace_of(kind, request.config.option.seed), **LIMITS[kind]).counts
        record_property("counts", counts)

    @pytest.mark.cost
    @pytest.mark.parametrize("kind", [REAL])
    def test_a_real_trace_under_the_budget(self, request, record_property, kind):
        """Plans alone: no keys and values are written. In 32 bits a number the longest prompt does not fit."""
        trace, sizes = trace_of(kind, request.config.option.seed), (SPEC, *LIMITS[kind].values())
        server = Session(partial(server_calls, sizes), plans_of_server(*sizes, trace))
        bits, block_size, num_blocks = settings_of(server, *sizes[:2])
        token = token_bytes(SPEC, bits)
        counts = serve_plans(server, trace, num_blocks, block_size, sizes[-1], token_bytes=token).counts
        record_property("counts", counts)

    @pytest.mark.cost
    @by_kind
    def test_beginnings_are_shared(self, request, kind):
        trace = trace_of(kind, request.config.option.seed)
        sizes = SPEC, GENEROUS, 48
        server = Session(partial(server_calls, sizes), plans_of_server(*sizes, trace))
        _, block_size, num_blocks = settings_of(server, SPEC, GENEROUS)
        served = serve_plans(server, trace, num_blocks, block_size, 48)
        could = prefix_tokens(trace, answers=False)
        least = could * 6 // 10
        told = f"{served.prefix_tokens} tokens of prompts were found and not computed, of {could} that came before"
        hint = (
            "blocks are not shared; or they are so large that few are full; or what is found is computed all the same"
        )
        require(served.prefix_tokens >= least, f"{told}: at least {least}\nUsual cause: {hint}")

    @pytest.mark.cost
    def test_the_budget_is_held_at_every_step(self):
        requests = [(list(range(n, n + 40)), 5) for n in range(3)]
        for nbytes in (GENEROUS, 3 * GENEROUS):
            told = held_by_server(WIDE, nbytes, 32, requests)
            hint = "memory is made for num_blocks blocks at the beginning, and for nothing else"
            step, live = max(enumerate(told["live_bytes"]), key=lambda each: each[1])
            assert_at_most(f"what is held after step {step}", live, nbytes, hint=hint, unit="bytes of the budget")
            settings_of(Session(partial(server_calls, (WIDE, nbytes, 32))), WIDE, nbytes)

    @pytest.mark.memory_limit(mib=40)
    @pytest.mark.cost
    def test_far_from_float32(self, memory_limit):
        spec = {"layers": 2, "heads": 8, "kv_heads": 8, "head_dim": 256, "vocab": 64}
        prompt = [number * 7 % 61 for number in range(1400)]
        n_tokens = memory_limit(served_from_outside, spec, 12 << 20, 128, [(prompt, 2)])
        assert_equal("the tokens computed for a prompt of 1,400 and one that follows", n_tokens, 1401)

    @pytest.mark.refuses
    def test_what_can_never_fit(self):
        server = Session(partial(server_calls, (SPEC, GENEROUS, 16)))
        _, block_size, num_blocks = settings_of(server, SPEC, GENEROUS)
        call = partial(server.submit, 7, [1] * (block_size * num_blocks), 1)
        assert_raises(ValueError, call, when="for a request that needs more than all blocks", mentions=["7"])

    @pytest.mark.refuses
    def test_a_budget_too_small(self):
        call = partial(server_calls, (SPEC, 30, 16), [])
        assert_raises(ValueError, call, when="for nbytes=30, less than a token takes", mentions={"nbytes": 30})
