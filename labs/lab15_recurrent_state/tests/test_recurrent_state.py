"""Lab 15's suite: the gated delta rule in two forms, checkpoints, common prefixes, drafts and their rollback."""

from functools import partial

import numpy as np
import pytest
import torch
from recurrent_state import (
    HybridCache,
    accept_drafts,
    checkpoint_plan,
    gated_delta_chunked,
    gated_delta_recurrent,
    longest_common_hit,
    replay_cost,
)

from labkit.testing.attention.cases import rounded
from labkit.testing.compare import assert_at_most, assert_close, assert_equal, assert_refused, assert_tuple, require
from labkit.testing.unchanged import copied, unchanged

from . import mistakes as known
from . import reference
from .probes import all_outcomes, cache_bytes, gradients, measured, run_cache
from .reference import contents, delta_rule, drawn_groups, drawn_tokens

HALVES = [torch.float16, torch.bfloat16]
robust = pytest.mark.robust
RULE_CASES = [
    pytest.param({"n": 9}, id="one head"),
    pytest.param({"n": 21, "shape": (2, 3), "d_v": 5}, id="batch"),
    pytest.param({"n": 13, "with_state": False}, id="no state"),
    pytest.param({"n": 1}, marks=robust, id="one token"),
    pytest.param({"n": 0}, marks=robust, id="no token"),
    pytest.param({"n": 40, "decay": 60.0}, marks=robust, id="strong decay"),
    pytest.param({"n": 130, "decay": 0.02, "d_k": 16}, marks=robust, id="long"),
    *(pytest.param({"n": 70, "dtype": dtype, "decay": 0.1, "offset": 3.0, "d_k": 16}, marks=robust, id=str(dtype)[6:])
      for dtype in [*HALVES, torch.float64]),
]  # fmt: skip
UNDERFLOW = ("0 / 0 from Γ_i / Γ_j as a quotient of two exps, or inf · 0 from an exp that is masked after it is taken: "
             "it is exp of a difference, which is masked first")  # fmt: skip


def check_rule(function, rng, *chunk, n, shape=(), d_k=6, d_v=4, dtype=torch.float32, with_state=True, decay=1.0,
               offset=0.0):  # fmt: skip
    """Run a function of the rule on drawn tokens; compare o and the state."""
    inputs = drawn_tokens(rng, *shape, n=n, d_k=d_k, d_v=d_v, dtype=dtype, decay=decay, offset=offset)
    precise = torch.float32 if dtype in HALVES else dtype
    state = torch.from_numpy(rng.standard_normal((*shape, d_k, d_v))).to(precise) if with_state else None
    named = dict(zip(("q", "k", "v", "beta", "g"), inputs, strict=True)) | ({"state": state} if with_state else {})
    with unchanged(named):
        got = function(*inputs, state, *chunk)
    got = assert_tuple("the result", got, ("o", "state"))
    want, plain = delta_rule(*inputs, state), delta_rule(*inputs, state, precise)
    hint = "sums or the state are kept in half precision: both are float32, and only o is rounded"
    baselines, tolerance = (rounded(plain[0], dtype), plain[1]), reference.OF_CHUNKS if chunk else reference.OF_RULE
    for i, (name, kind) in enumerate({"o": dtype, "state": precise}.items()):
        usual = partial(known.of_rule, name, inputs, state, *chunk)
        assert_close(name, got[i], want[i], baseline=baselines[i], tolerance=tolerance, dtype=kind, mistakes=usual,
                     hint=hint if dtype in HALVES else "", nan_hint=UNDERFLOW)  # fmt: skip


def check_worked_example(function, *chunk):
    """The value 4 twice: 2 is written, and then 1."""
    one, want = torch.ones(2, 1), torch.tensor([[2.0], [3.0]])
    o, _ = function(one, one, 4 * one, torch.full((2,), 0.5), torch.zeros(2), None, *chunk)
    usual = {"what the first token writes is not seen by the second": torch.tensor([[2.0], [4.0]])}
    assert_close("o", o, want, baseline=want, mistakes=usual)


def check_rule_refuses(function, *more):
    """Shapes that do not fit."""
    fitting = {"q": (2, 4, 3), "k": (2, 4, 3), "v": (2, 4, 5), "beta": (2, 4), "g": (2, 4), "state": (2, 3, 5)}
    wrong = {"beta": (2, 1), "g": (1, 4), "q": (2, 3, 3), "v": (2, 3, 5), "state": (2, 5, 3)}
    for name, shape in wrong.items():
        given = map(torch.zeros, (fitting | {name: shape}).values())
        assert_refused(function, [((*given, *more), f"for {name} of shape {shape}", [str(shape)])])


class TestGatedDeltaRecurrent:
    """Decay, read, write, output: token by token, with one state."""

    def test_worked_example(self):
        check_worked_example(gated_delta_recurrent)

    @pytest.mark.parametrize("sizes", RULE_CASES)
    def test_rule(self, rng, sizes):
        check_rule(gated_delta_recurrent, rng, **sizes)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=4)
    def test_memory(self, rng, memory_limit):
        inputs = {n: (*drawn_tokens(rng, n=n, d_k=24, d_v=16), None) for n in (32, 256)}
        short, long = (measured("gated_delta_recurrent", x)["peak_bytes"] - 2 * n * 16 * 4 for n, x in inputs.items())
        hint = "with 8 times the tokens more than o grows: a state or an update is kept for each token"
        assert_at_most("the peak over two outputs, 256 tokens,", long, max(short, 0) + 6 * 24 * 16 * 4, hint=hint)
        o, _ = memory_limit(gated_delta_recurrent, *drawn_tokens(rng, n=64, d_k=256, d_v=256), None)
        assert_equal("the shape of o", tuple(o.shape), (64, 256))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        check_rule_refuses(gated_delta_recurrent)


class TestGatedDeltaChunked:
    """The same numbers from matrix products."""

    def test_worked_example(self):
        check_worked_example(gated_delta_chunked, 2)

    @pytest.mark.parametrize("chunk", [1, 4, 16])
    @pytest.mark.parametrize("sizes", RULE_CASES)
    def test_rule(self, rng, sizes, chunk):
        check_rule(gated_delta_chunked, rng, chunk, **sizes)

    @robust
    def test_gradients(self, rng):
        inputs = drawn_tokens(rng, n=11, d_k=4, d_v=3, dtype=torch.float64)
        weights = tuple(torch.from_numpy(rng.standard_normal(shape)) for shape in ((11, 3), (4, 3)))
        want = torch.autograd.functional.vjp(partial(delta_rule, state=None), inputs, weights)[1]
        for name, got, right in zip(("q", "k", "v", "beta", "g"), gradients(inputs, 4, weights), want, strict=True):
            assert_close(f"the gradient for {name}", got, right, baseline=right.float())

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=6)
    def test_products_and_memory(self, rng, memory_limit):
        n, chunk, d = 1024, 32, 16
        counts = measured("gated_delta_chunked", (*drawn_tokens(rng, n=n, d_k=d, d_v=d), None, chunk))
        least, text = 4 * n * chunk * d, f"for {n:,} tokens in chunks of {chunk}"
        message = f"matrices are multiplied with {counts['flops']:,} operations {text}, at least {least:,} are needed: "
        message += (
            "tokens are taken one by one\na chunk is a few products, of chunk × chunk numbers too; written with @"
        )
        require(counts["flops"] >= least, message)
        limit = 2 * n * d * 4 + 14 * chunk * (chunk + 2 * d) * 4 + 8 * d * d * 4
        hint = "the matrices of all chunks exist at once: finish a chunk before the next one"
        assert_at_most(f"the peak {text}", counts["peak_bytes"], limit, hint=hint)
        o, _ = memory_limit(gated_delta_chunked, *drawn_tokens(rng, 128, n=768, d_k=4, d_v=4, decay=0.1), None, 32)
        assert_equal("the shape of o", tuple(o.shape), (128, 768, 4))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        x, y = torch.zeros(4, 3), torch.zeros(4)
        for chunk in (0, -2):
            assert_refused(gated_delta_chunked, [((x, x, x, y, y, None, chunk), f"for {chunk=}", {"chunk": chunk})])
        check_rule_refuses(gated_delta_chunked, 2)


def check_plan(tokens, every, state_bytes, budget):
    """The states stored are allowed ones, few enough and as good as any, and the replay is theirs."""
    result = checkpoint_plan(tokens, every, state_bytes, budget)
    kept, replay = map(list, assert_tuple("the result", result, ("kept", "replay")))
    what = f"for {tokens} tokens, every {every}, and {budget} bytes for states of {state_bytes}"
    require(kept == sorted(set(kept)), f"the positions {kept} {what} are not in ascending order, each once")
    wrong = [p for p in kept if p % every or not 0 < p <= tokens]
    cause = "a state is stored where the text ends, and not where a block does" if tokens in wrong else ""
    require(not wrong, f"kept has {wrong} {what}: a state can be stored after each {every} tokens alone\n{cause}")
    assert_at_most(f"the number of states {what}", len(kept), budget // state_bytes, unit="states")
    want = reference.replay_of(tokens, kept)
    assert_equal(f"replay, with {kept} stored {what},", replay, want, mistakes=known.of_replay(tokens, kept))
    at, worst = want.index(max(want)), max(want)
    hint = f"the prefix of {at} tokens is replayed from position {at - worst}: another choice is better than {kept}"
    best = reference.best_worst_replay(tokens, every, budget // state_bytes)
    assert_at_most(f"the largest replay {what}", worst, best, unit="tokens", hint=hint)


class TestCheckpointPlan:
    """Few states at the right distances."""

    def test_by_hand(self):
        for given in ((10, 2, 100, 200), (10, 3, 100, 99), (0, 3, 100, 1000), (2, 3, 100, 1000), (9, 1, 7, 63)):
            check_plan(*given)

    def test_drawn_sizes(self, rng):
        for _ in range(25):
            tokens, every, n_states = (int(rng.integers(*r)) for r in ((5, 30), (2, 6), (1, 6)))
            check_plan(tokens, every, 100, 100 * n_states + int(rng.integers(0, 100)))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        least = {"tokens": 0, "every": 1, "state_bytes": 1, "budget_bytes": 0}
        table = [((least | {name: n - 1}).values(), f"for {name}={n - 1}", {name: n - 1}) for name, n in least.items()]
        assert_refused(checkpoint_plan, table)


EVERY = set(range(20))
HITS = [
    pytest.param([("attention", 4, set(range(9))), ("state", 8, {1, 3})], 40, 0, id="worked example"),
    pytest.param([("attention", 4, set(range(9)) - {5}), ("state", 8, {1, 3})], 40, 0, id="attention has lost a block"),
    pytest.param([("attention", 4, {0, 1, 2, 4})], 30, 0, id="attention alone"),
    pytest.param([("state", 4, {0, 3})], 30, 0, id="states alone"),
    pytest.param([("attention", 2, EVERY), ("state", 4, EVERY)], 16, 0, id="all is there"),
    pytest.param([("attention", 2, EVERY), ("state", 4, EVERY)], 18, 5, id="drafts"),
    pytest.param([("attention", 3, EVERY), ("state", 4, EVERY), ("state", 6, {1, 4, 6})], 46, 0, id="three sizes"),
    pytest.param([], 9, 0, marks=robust, id="no group"),
    pytest.param([("attention", 4, set()), ("state", 4, EVERY)], 9, 0, marks=robust, id="nothing held"),
    pytest.param([("attention", 30, EVERY)], 29, 0, marks=robust, id="a block longer than the text"),
]


def check_hit(groups, tokens, drafts=0):
    """The longest common hit, and what usual mistakes find instead."""
    asked, rng = (groups, tokens, drafts), np.random.default_rng(15)
    more = ((drawn_groups(rng), int(rng.integers(20, 60)), int(rng.integers(0, 5))) for _ in range(40))
    ours = lambda case: longest_common_hit(*copied(*case))  # noqa: E731
    usual = partial(known.recurring, known.of_hit, asked, ours, reference.common_hit, more)
    assert_equal(f"longest_common_hit{asked}", ours(asked), reference.common_hit(asked), mistakes=usual)


class TestLongestCommonHit:
    """What attention, states and evictions leave in common."""

    @pytest.mark.parametrize(("groups", "tokens", "drafts"), HITS)
    def test_by_hand(self, groups, tokens, drafts):
        check_hit(groups, tokens, drafts)

    def test_drawn_groups(self, rng):
        for _ in range(60):
            check_hit(drawn_groups(rng), int(rng.integers(20, 60)), int(rng.integers(0, 5)))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        missed = ("attention", 4, set())
        table = [
            (([("window", 4, set())], 9), "for the kind 'window'", ("window",)),
            (([missed, ("window", 4, {0})], 9), "for the kind 'window' after a miss", ("window",)),
            (([missed, ("state", -4, {0})], 9), "for a block of −4 after a miss", {"block": -4}),
            (([("state", 0, {0})], 0), "for a block of 0 and no token", {"block": 0}),
            (([], 9, 10), "for 10 drafts of 9 tokens", {"drafts": 10}),
            (([], 9, -1), "for drafts=−1", {"drafts": -1}),
        ]
        assert_refused(longest_common_hit, table)


SHARES = [
    pytest.param([[1, 3, 4, 3, 5], [4, 4, 4, 2, 2]], [[4, 4, 4, 2, 2]], id="five tokens"),
    pytest.param([[16, 0, 0, 0, 0], [0, 0, 8, 8, 0]], [[8, 4, 2, 2, 0]], id="zeros"),
    pytest.param([[2, 2, 4], [4, 2, 2], [1, 3, 4]], [[4, 2, 2], [2, 4, 2]], id="two drafts"),
]


def accepted(target_scores, draft_scores, drafts, u, temperature):
    """What `accept_drafts` returns; its tensors belong to the caller."""
    with unchanged({"target_scores": target_scores, "draft_scores": draft_scores, "u": u}):
        return accept_drafts(target_scores, draft_scores, drafts, u, temperature)


class TestAcceptDrafts:
    """Exactly the target's distribution, by enumeration of everything that can happen."""

    def test_worked_example(self):
        p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log(), torch.tensor([[0.5, 0.5]]).log()
        for drafts, u, want in (([0], 0.4, [0, 0]), ([0], 0.6, [1]), ([], 0.2, [0]), ([], 0.3, [1])):
            n = len(drafts)
            got = accepted(p[: n + 1], q[:n], drafts, torch.tensor([u, 0.2][: n + 1]), 1.0)
            assert_equal(f"the tokens for drafts {drafts} and u[0] = {u}", got, want)

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    @pytest.mark.parametrize(("p", "q"), SHARES)
    def test_distribution(self, p, q, temperature):
        """Of each token that follows accepted drafts: its probability over all drafts and all u is the target's."""
        parts = sum(p[0])
        target, draft = (torch.tensor(x, dtype=torch.float64) / parts for x in (p, q))
        middles = [(i + 0.5) / parts for i in range(parts)]  # of equal parts: each share is met exactly
        found = all_outcomes(temperature * target.log(), temperature * draft.log(), middles, temperature)
        hint = "accepted and replaced tokens together must have the target's distribution, with one temperature for all"
        reached = 1.0
        for i, want in enumerate(target):
            longer = [(tokens[i], share) for tokens, share in found.items() if len(tokens) > i]
            shares = [sum(share for token, share in longer if token == x) for x in range(len(want))]
            name = f"the distribution of token {i}, if all drafts before it stay,"
            assert_close(name, np.array(shares), reached * want, baseline=reached * want.float(), hint=hint)
            reached *= torch.minimum(want, draft[i]).sum() if i < len(draft) else 0.0

    @pytest.mark.parametrize("n", [1, 3, 6])
    @pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
    def test_drawn(self, rng, n, temperature):
        for _ in range(12):
            near = rng.standard_normal((n + 1, 7))
            scores = torch.from_numpy(near), torch.from_numpy(near[:n] + 0.8 * rng.standard_normal((n, 7)))
            p, q = (torch.softmax(x / temperature, -1).tolist() for x in scores)
            drafts, u = [int(rng.choice(7, p=row)) for row in q], torch.from_numpy(rng.uniform(size=n + 1))
            got, want = accepted(*scores, list(drafts), u, temperature), reference.speculative(p, q, drafts, u)
            usual = partial(known.of_sampling, scores, temperature, drafts, u)
            assert_equal(f"the tokens for drafts {drafts}, temperature {temperature},", got, want, mistakes=usual)

    @robust
    def test_greedy(self, rng):
        """At temperature 0 the result is the target's own best tokens, whatever u is."""
        for _ in range(10):
            scores, other = (torch.from_numpy(rng.integers(0, 4, (4, 5))).double() for _ in range(2))
            draft_scores = torch.where(torch.from_numpy(rng.random((3, 1)) < 0.7), scores[:3], other[:3])
            best, drafts = scores.argmax(-1).tolist(), draft_scores.argmax(-1).tolist()
            right = next((i for i in range(3) if drafts[i] != best[i]), 3)
            got = accepted(scores, draft_scores, drafts, torch.from_numpy(rng.uniform(size=4)), 0.0)
            hint = "at temperature 0 the first of equally large scores has all probability"
            what = f"the tokens for drafts {drafts} and scores {scores.tolist()}"
            assert_equal(what, got, best[: right + 1], hint=hint)

    @robust
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_u_at_its_ends(self, temperature):
        """A token of probability 0 is neither drawn nor kept."""
        p, q = torch.tensor([[-torch.inf, 5.0, 1.0, -torch.inf]] * 2), torch.tensor([[2.0, 0.0, 0.0, 0.0]])
        for drafts, u, want, hint in (
            ([], 0.0, [1], "the cumulative probability must be above u, not equal to it"),
            ([0], 0.0, [1], "u · q < p is 0 < 0: a draft that the target never says does not stay"),
            ([], 1 - 2**-24, [1 if temperature == 0 else 2], "no token of probability 0 may be drawn"),
        ):
            n = len(drafts)
            got = accepted(p[: n + 1], q[:n], drafts, torch.full((n + 1,), u), temperature)
            assert_equal(f"the tokens for u = {u}, drafts {drafts}, scores (−inf, 5, 1, −inf)", got, want, hint=hint)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        p, q, u = torch.zeros(3, 4), torch.zeros(2, 4), torch.zeros(3)
        table = [
            ((p, q, [0, 1], u, -1.0), "for temperature=−1", {"temperature": -1.0}),
            ((p[:2], q, [0, 1], u, 1.0), "for two rows of target scores and two drafts", ("(2, 4)",)),
            ((p, q[:1], [0, 1], u, 1.0), "for one row of draft scores and two drafts", ("(1, 4)",)),
            ((p, q, [0, 1], u[:2], 1.0), "for two numbers u and two drafts", ("(2,)",)),
        ]
        assert_refused(accept_drafts, table)


BLOCKS = "a block is not found by the table, a shared one is written into, or rejected drafts are still counted"
OVERWRITTEN = "the caller has overwritten its tensors after the call: keep copies of what is needed later"


class Pair:
    """The calls of a submission's cache; `check` compares what its sequences hold with `reference.contents`."""

    def __init__(self, rng, num_blocks=24, block=4, every=8, heads=2, d_k=5, d_v=3):
        self.rng, self.sizes = rng, (num_blocks, block, every, heads, d_k, d_v)
        self.calls, self.story, self.drawn = [], [], self.tokens(0)

    def tokens(self, n):
        return drawn_tokens(self.rng, self.sizes[3], n=n, d_k=self.sizes[4], d_v=self.sizes[5], decay=0.3)[1:]

    def append(self, seq, n, drafts=False):
        tokens = self.tokens(n)
        self.drawn = [torch.cat(pair, 1) for pair in zip(self.drawn, tokens, strict=True)]
        self.story.append(f"append({seq!r}, {n} {'drafts' if drafts else 'tokens'})")
        self.calls.append(("append", (seq, *tokens, drafts), False))
        return self

    def then(self, name, *args):
        self.story.append(f"{name}({', '.join(map(repr, args))})")
        self.calls.append((name, args, False))
        return self

    def refused(self, when, mentions, name, *args):
        """A call that must be refused, and must change nothing."""
        assert_refused(run_cache, [((self.sizes, [*self.calls, (name, args, False)], []), when, mentions)])
        self.calls.append((name, args, True))

    def state(self, numbers, precise=torch.float64):
        """The state that has taken in some of the tokens."""
        k, *others = (x[:, numbers] for x in self.drawn)
        return delta_rule(k, k, *others, None, precise)[1]

    def check(self, free=None):
        """Every sequence is as it should be, and so many blocks are free."""
        held, lengths, asked = contents(self.calls, self.sizes[2])
        restored, n_free, views, changed, stale = run_cache(self.sizes, self.calls, list(held))
        after = " after " + ", ".join(self.story)
        whole = (
            "attention's blocks alone are counted: the layer with a state has a checkpoint after each `every` tokens"
        )
        texts = {"the hit counts drafts: they are not verified": self.sizes[2], whole: self.sizes[1]}
        usual = {text: [n // block * block for n in asked] for text, block in texts.items()}
        hint = "a checkpoint is due after each `every` verified tokens, wherever appends and drafts end"
        assert_equal(f"what restore returns each time{after}", restored, lengths, mistakes=usual, hint=hint)
        hint = (
            "the state is changed in place: a fork, a checkpoint or the state before the drafts may be the same tensor"
        )
        for seq, numbers in held.items():
            where, view, right = f" of {seq!r}{after}", views[seq], numbers[""]
            assert_equal(f"the length{where}", view["length"], len(right))
            for name, drawn in zip(("keys", "values"), self.drawn, strict=False):
                want, hints = drawn[:, right], {"hint": BLOCKS, "nan_hint": OVERWRITTEN}
                assert_close(f"the {name}{where}", view[name], want.double(), baseline=want, **hints)
            usual, plain = {x: partial(self.state, numbers[x]) for x in numbers if x}, self.state(right, torch.float32)
            assert_close(f"the state{where}", view["state"], self.state(right), baseline=plain, dtype=torch.float32,
                         tolerance=reference.OF_STATE, mistakes=usual, hint="" if stale is None else hint,
                         nan_hint=OVERWRITTEN)  # fmt: skip
        hint = "blocks are not shared, not given back, or given back too early"
        assert_equal(f"num_free(){after}", n_free, n_free if free is None else free, hint=hint)
        require(not changed, f"an append changes its arguments {', '.join(changed)} in place{after}")
        hint = "Usual cause: the state is changed in place, and state() returns it itself: return a copy"
        require(stale is None, f"what state() had returned was changed by a later call{after}\n{hint}")


class TestHybridCache:
    """Blocks can be cut; the state must be brought back."""

    def test_worked_example(self, rng):
        pair = Pair(rng, 8, 2, 4, 1, 3, 3).append("a", 5).append("a", 2, True).then("rollback", "a", 1)
        pair.then("restore", "a", "b", 6).check(free=5)

    @pytest.mark.parametrize("n_accepted", [0, 1, 3, 4])
    def test_rejected_drafts_leave_no_trace(self, rng, n_accepted):
        pair = Pair(rng).append("a", 6).append("a", 4, True).then("rollback", "a", n_accepted)
        pair.check(free=24 - -(-(6 + n_accepted) // 4))
        pair.append("a", 3).append("a", 3, True).check()

    def test_checkpoints_are_where_blocks_end(self, rng):
        pair = Pair(rng).append("a", 5).append("a", 14)
        pair.then("restore", "a", "b", 8).then("restore", "a", "c", 17).append("a", 8)
        pair.then("restore", "a", "d", 27).then("restore", "a", "e", 9).then("restore", "a", "f", 7).check(free=24 - 7)

    @pytest.mark.parametrize("n_accepted", [0, 1, 2, 5])
    def test_no_checkpoint_contains_a_draft(self, rng, n_accepted):
        pair = Pair(rng).append("a", 6).append("a", 5, True).then("rollback", "a", n_accepted).append("a", 8)
        pair.then("restore", "a", "b", 12).check()
        pair.append("a", 8, True).then("restore", "a", "c", 22).then("restore", "a", "d", 11).check()

    def test_a_fork_goes_its_own_way(self, rng):
        pair = Pair(rng).append("a", 5).then("fork", "a", "b").append("a", 3).append("b", 3)
        pair.then("restore", "a", "x", 8).then("restore", "b", "y", 8).check(free=24 - 3)
        pair = Pair(rng).append("a", 10).then("fork", "a", "b")
        pair.check(free=24 - 3)
        pair.append("b", 3).append("a", 1).append("a", 4, True).then("rollback", "a", 2).append("b", 9)
        pair.then("restore", "b", "c", 16).then("restore", "a", "d", 13).check(free=24 - 2 - 2 - 4)

    @robust
    def test_what_is_freed_is_free_once(self, rng):
        pair = Pair(rng, num_blocks=12).append("a", 21).then("restore", "a", "b", 18).append("b", 7).append("a", 2)
        pair.then("restore", "b", "c", 23).then("free", "a").append("b", 2).check(free=12 - 7)
        pair.append("a", 20).check(free=0)

    def test_random_operations(self, rng):
        pair, names = Pair(rng, num_blocks=60).append("a", 3), iter("bcdefgh")
        for what in rng.choice(["append", "drafts", "fork", "restore"], 24, p=[0.3, 0.5, 0.08, 0.12]):
            held, *_ = contents(pair.calls, pair.sizes[2])
            seq, n = str(rng.choice(list(held))), int(rng.integers(1, 9))
            if what == "append":
                pair.append(seq, n)
            elif what == "drafts":
                pair.append(seq, n, True).then("rollback", seq, int(rng.integers(0, n + 1)))
            elif new := next(names, None):
                position = [int(rng.integers(0, len(held[seq][""]) + 1))] * (what == "restore")
                pair.then(str(what), seq, new, *position)
        pair.check()

    @pytest.mark.cost
    def test_bytes(self, rng):
        sizes, n_drafts = (40, 4, 32, 2, 16, 16), 6
        tokens = drawn_tokens(rng, 2, n=100 + n_drafts, d_k=16, d_v=16)[1:]
        found = cache_bytes(sizes, tokens, (30, 1, 1, 38, 30), n_drafts)
        blocks, state, update = 40 * 4 * 2 * 32 * 4, 2 * 16 * 16 * 4, 2 * (16 + 16 + 2) * 4 * n_drafts
        full = blocks + 5 * state + 2048
        for what, got, most, hint in (
            ("after 100 tokens", found["full"], full, "a state or an update is stored for each token, block or append: "
             "a checkpoint every 32 tokens is enough"),
            ("with 6 drafts", found["drafts"], full + max(n_drafts * state, state + update),
             "more is kept than a state for each draft"),
            ("after rollback", found["after"], found["full"] + 256, "what rollback needed is still kept after it"),
        ):  # fmt: skip
            assert_at_most(f"the bytes {what}", got, most, hint=hint)

    @pytest.mark.refuses
    def test_refused_calls_change_nothing(self, rng):
        pair = Pair(rng, num_blocks=5).append("a", 6)
        pair.refused("for rollback without drafts", (), "rollback", "a", 0)
        pair.refused("when too few blocks are free", ("num_blocks",), "append", "a", *pair.tokens(15))
        pair.refused("for k of another width", ("(2, 4, 3)",), "append", "a", *[x[..., :3] for x in pair.tokens(4)])
        pair.refused("for an unknown sequence", {"seq": "x"}, "fork", "x", "y")
        pair.refused("for a name that exists", {"new": "a"}, "fork", "a", "a")
        pair.refused("for position=7 of 6", {"position": 7}, "restore", "a", "b", 7)
        pair.append("a", 2, True)
        pair.refused("for an append after drafts", ("drafts",), "append", "a", *pair.tokens(1))
        pair.refused("for a fork with drafts", ("drafts",), "fork", "a", "b")
        for n_accepted in (3, -1):
            pair.refused(f"for n_accepted={n_accepted} of 2", {"n_accepted": n_accepted}, "rollback", "a", n_accepted)
        pair.then("rollback", "a", 1).check(free=3)
        pair = Pair(rng, num_blocks=3).append("a", 6).then("fork", "a", "b").append("b", 2)
        pair.refused("for a new sequence without a free block", ("num_blocks",), "append", "c", *pair.tokens(1))
        pair.refused("for a name whose append was refused", {"seq": "c"}, "fork", "c", "d")
        pair.check(free=0)
        pair.then("free", "b").then("fork", "a", "b").append("c", 3)
        pair.refused("if the copy of a shared block finds none", ("num_blocks",), "append", "b", *pair.tokens(1))
        pair.check(free=0)

    @pytest.mark.refuses
    def test_bad_sizes(self):
        names = ("num_blocks", "block", "every", "heads", "d_k", "d_v")
        table = [([(4, 0)[i == j] for j in range(6)], f"for {name}=0", {name: 0}) for i, name in enumerate(names)]
        assert_refused(HybridCache, [*table, ((4, 4, 6, 1, 3, 3), "for every=6, block=4", {"every": 6})])


def drawn_cost(rng, method):
    """Arguments of `replay_cost`."""
    block, tokens = int(rng.integers(2, 30)), int(rng.integers(1, 900))
    chunk, drafts = int(rng.integers(block, 300)), int(rng.integers(0, 5))
    more = int(rng.integers(0, tokens + 1)), drafts, int(rng.integers(0, drafts + 1))
    return method, tokens, int(rng.integers(50, 200)), int(rng.integers(1, 20)), block, chunk, *more


class TestReplayCost:
    """What three ways of storing states cost."""

    @pytest.mark.parametrize("method", ["align", "all", "ring"])
    def test_cost(self, rng, method):
        more = [drawn_cost(np.random.default_rng(i), method) for i in range(40)]
        for given in [(method, 1000, 100, 10, 16, 256, 500, 4, 2), *(drawn_cost(rng, method) for _ in range(25))]:
            ours = lambda case: replay_cost(*case)  # noqa: E731
            usual = partial(known.recurring, known.of_cost, given, ours, reference.cost, more)
            got = assert_tuple("the result", replay_cost(*given), ("stored", "again"))
            assert_equal(f"replay_cost{given}", got, reference.cost(given), mistakes=usual)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            (("none", 10, 1, 1), "for the method 'none'", ("none",)),
            (("align", 10, 1, 1, 16, 8), "for chunk=8, block=16", {"chunk": 8}),
            (("align", 10, 1, 1, 0), "for block=0", {"block": 0}),
            (("all", 10, 1, 1, 2, 4, 11), "for shared=11 of 10", {"shared": 11}),
            (("ring", 10, 1, 1, 2, 4, 5, 2, 3), "for accepted=3 of 2", {"accepted": 3}),
        ]
        assert_refused(replay_cost, table)
