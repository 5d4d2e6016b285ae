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
from labkit.testing.compare import (
    Tolerance,
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.unchanged import copied, unchanged

from .mistakes import SAMPLING, of_chunks, of_cost, of_hit, of_replay, of_rule, recurring
from .probes import all_outcomes, arguments_after_calls, cache_bytes, gradients, measured, run_cache
from .reference import (
    best_worst_replay,
    common_hit,
    cost,
    delta_rule,
    drawn_groups,
    drawn_tokens,
    in_chunks,
    replay_of,
    speculative,
)

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


def check_rule(function, rng, *, n, shape=(), d_k=6, d_v=4, dtype=torch.float32, with_state=True, decay=1.0, offset=0.0,
               chunk=None):  # fmt: skip
    """Run a function of the rule on drawn tokens; compare o and the state."""
    inputs = drawn_tokens(rng, *shape, n=n, d_k=d_k, d_v=d_v, dtype=dtype, decay=decay, offset=offset)
    precise = torch.float32 if dtype in HALVES else dtype
    state = torch.from_numpy(rng.standard_normal((*shape, d_k, d_v))).to(precise) if with_state else None
    named = dict(zip(("q", "k", "v", "beta", "g", "state"), (*inputs, state), strict=True))
    with unchanged({name: x for name, x in named.items() if x is not None}):
        got = function(*inputs, state, *([] if chunk is None else [chunk]))
    got = assert_tuple("the result", got, ("o", "state"))
    want, plain = delta_rule(*inputs, state), [delta_rule(*inputs, state, precise)]
    usual = partial(of_rule, inputs, state)
    if chunk is not None:
        plain.append(in_chunks(*inputs, state, chunk, precise))
        usual = partial(of_chunks, inputs, state, chunk)
    hint = "sums or the state are kept in half precision: both are float32, and only o is rounded"
    for i, (name, kind) in enumerate({"o": dtype, "state": precise}.items()):
        assert_type(name, got[i], torch.Tensor, "a tensor")
        baseline = [rounded(x[i], dtype) if name == "o" else x[i] for x in plain]
        assert_close(
            name, got[i], want[i], baseline=baseline, dtype=kind, mistakes=lambda name=name: usual()[name],
            hint=hint if dtype in HALVES else "", nan_hint=UNDERFLOW,
        )  # fmt: skip


def check_worked_example(function, *chunk):
    """The value 4 twice: 2 is written, and then 1."""
    one, want = torch.ones(2, 1), torch.tensor([[2.0], [3.0]])
    o, state = function(one, one, 4 * one, torch.full((2,), 0.5), torch.zeros(2), None, *chunk)
    usual = {"what the first token writes is not seen by the second": torch.tensor([[2.0], [4.0]])}
    assert_close("o", o, want, baseline=want, mistakes=usual)
    assert_close("state", state, want[1:], baseline=want[1:])


def check_rule_refuses(function, *more):
    """Shapes that do not fit."""
    q, k, v, beta, g, S = (torch.zeros(s) for s in ((2, 4, 3), (2, 4, 3), (2, 4, 5), (2, 4), (2, 4), (2, 3, 5)))
    table = [
        ((q[:, :3], k, v, beta, g, S, *more), "for q of 3 tokens and k of 4", ("(2, 3, 3)", "(2, 4, 3)")),
        ((q, k, v[:, :3], beta, g, S, *more), "for v of 3 tokens", ("(2, 3, 5)",)),
        ((q, k, v, beta[:, :1], g, S, *more), "for beta of 1 token", ("(2, 1)",)),
        ((q, k, v, beta, g[:1], S, *more), "for g of one head", ("(1, 4)",)),
        ((q, k, v, beta, g, S.mT, *more), "for a transposed state", ("(2, 5, 3)",)),
    ]
    assert_refused(function, table)


class TestGatedDeltaRecurrent:
    """Decay, read, write, output: token by token, with one state."""

    def test_worked_example(self):
        check_worked_example(gated_delta_recurrent)

    @pytest.mark.parametrize("sizes", RULE_CASES)
    def test_rule(self, rng, sizes):
        check_rule(gated_delta_recurrent, rng, **sizes)

    @pytest.mark.cost
    def test_memory_of_states(self, rng):
        peaks = []
        for n in (32, 256):
            _, counts = measured("gated_delta_recurrent", (*drawn_tokens(rng, n=n, d_k=24, d_v=16), None))
            peaks.append(counts["peak_bytes"] - 2 * n * 16 * 4)
        hint = "with 8 times the tokens more than o grows: a state or an update is kept for each token"
        most = max(peaks[0], 0) + 6 * 24 * 16 * 4
        assert_at_most("the peak over two outputs, 256 tokens,", peaks[1], most, hint=hint)

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
        check_rule(gated_delta_chunked, rng, chunk=chunk, **sizes)

    @robust
    def test_chunk_longer_than_the_text(self, rng):
        check_rule(gated_delta_chunked, rng, n=7, chunk=100)

    @robust
    def test_gradients(self, rng):
        """Autograd goes through the chunks."""
        inputs = drawn_tokens(rng, n=11, d_k=4, d_v=3, dtype=torch.float64)
        weights = tuple(torch.from_numpy(rng.standard_normal(shape)) for shape in ((11, 3), (4, 3)))
        want = torch.autograd.functional.vjp(partial(delta_rule, state=None), inputs, weights)[1]
        for name, got, right in zip(("q", "k", "v", "beta", "g"), gradients(inputs, 4, weights), want, strict=True):
            assert_close(f"the gradient for {name}", got, right, baseline=right.float())

    @pytest.mark.cost
    def test_products(self, rng):
        n, chunk, d = 256, 64, 16
        _, counts = measured("gated_delta_chunked", (*drawn_tokens(rng, n=n, d_k=d, d_v=d), None), chunk)
        hint = "a chunk is a few matrix products, of chunk × chunk numbers among others; written with @"
        least = 4 * n * chunk * d
        require(
            counts["flops"] >= least,
            f"gated_delta_chunked multiplies matrices with {counts['flops']:,} operations, at least {least:,} are "
            f"needed for {n} tokens in chunks of {chunk}: tokens are taken one by one\n{hint}",
        )

    @pytest.mark.cost
    def test_memory_of_one_chunk(self, rng):
        n, chunk, d = 4096, 32, 16
        _, counts = measured("gated_delta_chunked", (*drawn_tokens(rng, n=n, d_k=d, d_v=d), None), chunk)
        limit = 2 * n * d * 4 + 12 * chunk * (chunk + 2 * d) * 4 + 8 * d * d * 4
        hint = "the matrices of all chunks exist at once: finish a chunk before the next one"
        assert_at_most(f"the peak for {n:,} tokens in chunks of {chunk}", counts["peak_bytes"], limit, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=13)
    def test_limit_of_memory(self, rng, memory_limit):
        inputs = drawn_tokens(rng, 4, n=4096, d_k=64, d_v=64, decay=0.1)
        o, _ = memory_limit(gated_delta_chunked, *inputs, None, 64)
        require(tuple(o.shape) == (4, 4096, 64), f"o has shape {tuple(o.shape)}, expected (4, 4096, 64)")

    @pytest.mark.refuses
    def test_bad_arguments(self):
        check_rule_refuses(gated_delta_chunked, 2)
        x, y = torch.zeros(4, 3), torch.zeros(4)
        assert_refused(gated_delta_chunked, [((x, x, x, y, y, None, 0), "for chunk=0", {"chunk": 0})])


def check_plan(tokens, every, state_bytes, budget):
    """The states stored are allowed ones, few enough and as good as any, and the replay is theirs."""
    kept, replay = assert_tuple(
        "the result", checkpoint_plan(tokens, every, state_bytes, budget), ("kept", "replay")
    )  # fmt: skip
    what = f"for {tokens} tokens, every {every}, and {budget} bytes for states of {state_bytes}"
    kept, n_states = [int(p) for p in kept], budget // state_bytes
    require(kept == sorted(set(kept)), f"the positions {kept} {what} are not in ascending order, each once")
    wrong = [p for p in kept if p % every or not 0 < p <= tokens]
    cause = "a state is stored where the text ends, and not where a block does" if tokens in wrong else ""
    require(not wrong, f"kept has {wrong} {what}: a state can be stored after each {every} tokens alone\n{cause}")
    assert_at_most(f"the number of states {what}", len(kept), n_states, unit="states")
    want = replay_of(tokens, kept)
    assert_equal(f"replay, with {kept} stored {what},", list(replay), want, mistakes=of_replay(tokens, kept))
    best = best_worst_replay(tokens, every, n_states)
    at, worst = want.index(max(want)), max(want)
    hint = f"the prefix of {at} tokens is replayed from position {at - worst}: another choice is better than {kept}"
    assert_at_most(f"the largest replay {what}", worst, best, unit="tokens", hint=hint)


class TestCheckpointPlan:
    """Few states at the right distances."""

    def test_worked_example(self):
        check_plan(10, 2, 100, 200)

    def test_drawn_sizes(self, rng):
        for _ in range(25):
            tokens, every, n_states = (int(rng.integers(*r)) for r in ((5, 40), (2, 6), (1, 6)))
            check_plan(tokens, every, 100, 100 * n_states + int(rng.integers(0, 100)))

    @robust
    def test_no_state_fits_and_all_do(self):
        for given in ((10, 3, 100, 99), (0, 3, 100, 1000), (2, 3, 100, 1000), (12, 3, 100, 10_000), (9, 1, 7, 63)):
            check_plan(*given)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            ((-1, 2, 1, 1), "for tokens=−1", {"tokens": -1}),
            ((4, 0, 1, 1), "for every=0", {"every": 0}),
            ((4, 2, 0, 1), "for state_bytes=0", {"state_bytes": 0}),
            ((4, 2, 1, -1), "for budget_bytes=−1", {"budget_bytes": -1}),
        ]
        assert_refused(checkpoint_plan, table)


def check_hit(groups, tokens, drafts=0):
    """The longest common hit, and what usual mistakes find instead."""
    shown = "; ".join(f"{kind}, blocks of {block}, held {sorted(held)}" for kind, block, held in groups)
    what = f"the hit of {tokens} tokens, {drafts} of them drafts, with {shown or 'no group'}"
    asked, rng = (groups, tokens, drafts), np.random.default_rng(15)
    more = ((drawn_groups(rng), int(rng.integers(20, 60)), int(rng.integers(0, 5))) for _ in range(40))
    usual = partial(recurring, of_hit, asked, lambda case: longest_common_hit(*copied(*case)), common_hit, more)
    assert_equal(what, longest_common_hit(*copied(*asked)), common_hit(asked), mistakes=usual)


class TestLongestCommonHit:
    """What attention, states and evictions leave in common."""

    def test_worked_example(self):
        states = ("state", 8, {1, 3})
        check_hit([("attention", 4, set(range(9))), states], 40)
        check_hit([("attention", 4, set(range(9)) - {5}), states], 40)

    def test_one_group(self):
        check_hit([("attention", 4, {0, 1, 2, 4})], 30)
        check_hit([("state", 4, {0, 3})], 30)

    def test_drafts_are_not_hit(self):
        for drafts in range(6):
            check_hit([("attention", 2, set(range(12))), ("state", 4, set(range(6)))], 18, drafts)

    def test_blocks_of_other_sizes(self):
        check_hit([("attention", 3, set(range(20))), ("state", 4, set(range(12))), ("state", 6, {1, 4, 6})], 46)

    def test_drawn_groups(self, rng):
        for _ in range(60):
            check_hit(drawn_groups(rng), int(rng.integers(20, 60)), int(rng.integers(0, 5)))

    @robust
    def test_extremes(self):
        check_hit([], 9)
        check_hit([("attention", 4, set()), ("state", 4, {0, 1})], 9)
        check_hit([("state", 4, {0, 1})], 4, 4)
        check_hit([("state", 4, {0, 1})], 0)
        check_hit([("attention", 1, set(range(9))), ("state", 1, set(range(9)))], 5)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            (([("window", 4, set())], 9), "for the kind 'window'", ("window",)),
            (([("attention", 4, set()), ("window", 4, {0})], 9), "for the kind 'window' after a miss", ("window",)),
            (([("state", 0, set())], 9), "for a block of 0", {"block": 0}),
            (([], 9, 10), "for 10 drafts of 9 tokens", {"drafts": 10}),
            (([], 9, -1), "for drafts=−1", {"drafts": -1}),
        ]
        assert_refused(longest_common_hit, table)


SIXTEENTHS = [
    pytest.param([[1, 3, 4, 3, 5], [4, 4, 4, 2, 2]], [[4, 4, 4, 2, 2]], id="five tokens"),
    pytest.param([[16, 0, 0, 0, 0], [0, 0, 8, 8, 0]], [[8, 4, 2, 2, 0]], id="zeros"),
    pytest.param([[4, 4, 8], [8, 4, 4], [2, 6, 8]], [[8, 4, 4], [4, 8, 4]], id="two drafts"),
]


def accepted(target_scores, draft_scores, drafts, u, temperature):
    """What `accept_drafts` returns; its tensors belong to the caller."""
    with unchanged({"target_scores": target_scores, "draft_scores": draft_scores, "u": u}):
        return accept_drafts(target_scores, draft_scores, drafts, u, temperature)


def grid(n):
    """n numbers, the middles of equal parts of [0, 1): every share that is a multiple of 1/n is met exactly."""
    return [(i + 0.5) / n for i in range(n)]


class TestAcceptDrafts:
    """Exactly the target's distribution, by enumeration of everything that can happen."""

    def test_worked_example(self):
        p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log(), torch.tensor([[0.5, 0.5]]).log()
        for u, want in ((0.4, [0, 0]), (0.6, [1])):
            got = accepted(p, q, [0], torch.tensor([u, 0.2]), 1.0)
            assert_equal(f"the tokens for u[0] = {u}", got, want)

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    @pytest.mark.parametrize(("p", "q"), SIXTEENTHS)
    def test_distribution(self, p, q, temperature):
        """Of the first token: its probability over all drafts and all u is the target's."""
        target, draft = (torch.tensor(x, dtype=torch.float64) / 16 for x in (p, q))
        found = all_outcomes(temperature * target.log(), temperature * draft.log(), grid(16), temperature)
        firsts = [sum(share for tokens, share in found.items() if tokens[:1] == (i,)) for i in range(target.shape[1])]
        shares = torch.tensor(firsts, dtype=torch.float64)
        hint = "accepted and replaced tokens together must have the target's distribution, with one temperature for all"
        assert_close("the distribution of the first token", shares, target[0], baseline=target[0].float(), hint=hint)
        longer = torch.tensor(sum(share for tokens, share in found.items() if len(tokens) > 1), dtype=torch.float64)
        agree = torch.minimum(target[0], draft[0]).sum()
        assert_close("the probability that the first draft stays", longer, agree, baseline=agree.float())

    @pytest.mark.parametrize("n", [1, 3, 6])
    @pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
    def test_drawn(self, rng, n, temperature):
        for _ in range(12):
            near = rng.standard_normal((n + 1, 7))
            scores = torch.from_numpy(near), torch.from_numpy(near[:n] + 0.8 * rng.standard_normal((n, 7)))
            p, q = (torch.softmax(x / temperature, -1).tolist() for x in scores)
            drafts, u = [int(rng.choice(7, p=row)) for row in q], torch.from_numpy(rng.uniform(size=n + 1))
            usual = {text: speculative(p, q, drafts, u.tolist(), variant) for text, variant in SAMPLING.items()}
            cold = [torch.softmax(x, -1).tolist() for x in scores]
            want = speculative(p, q, drafts, u.tolist())
            if temperature != 1:
                usual["the temperature is left out: it belongs to both models"] = speculative(*cold, drafts, u.tolist())
                usual["the temperature is left out of the residual"] = residual_at_one(p, q, cold, drafts, u.tolist())
            got = accepted(*scores, list(drafts), u, temperature)
            assert_equal(f"the tokens for drafts {drafts}, temperature {temperature},", got, want, mistakes=usual)

    @robust
    def test_greedy(self, rng):
        """At temperature 0 the result is the target's own best tokens, whatever u is."""
        for _ in range(10):
            scores = torch.from_numpy(rng.integers(0, 4, (4, 5))).double()
            best = scores.argmax(-1).tolist()
            drafts = [t if rng.random() < 0.7 else (t + 1) % 5 for t in best[:3]]
            right = next((i for i in range(3) if drafts[i] != best[i]), 3)
            draft_scores = torch.full((3, 5), -torch.inf).double()
            draft_scores[torch.arange(3), drafts] = 0.0
            got = accepted(scores, draft_scores, drafts, torch.from_numpy(rng.uniform(size=4)), 0.0)
            assert_equal(f"the tokens for drafts {drafts} and best tokens {best}", got, best[: right + 1])

    @robust
    def test_no_drafts(self):
        p, q = torch.tensor([[0.25, 0.75]]).log(), torch.zeros(0, 2)
        for u, want in ((0.2, [0]), (0.3, [1])):
            assert_equal(f"the token for u[0] = {u}", accepted(p, q, [], torch.tensor([u]), 1.0), want)

    @robust
    def test_a_number_next_to_one(self):
        p = torch.tensor([[0.5, 0.5, 0.0]]).log()
        got = accepted(p, torch.zeros(0, 3), [], torch.tensor([1 - 2**-24]), 1.0)
        assert_equal("the token for u[0] just below 1", got, [1], hint="no token of probability 0 may be drawn")

    @robust
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_u_of_zero(self, temperature):
        """A token of probability 0 is neither drawn nor kept."""
        p, q = torch.tensor([[-torch.inf, 5.0, 1.0]] * 2), torch.tensor([[2.0, 0.0, 0.0]])
        for drafts, hint in (
            ([], "the cumulative probability must be above u, not equal to it"),
            ([0], "u · q < p is 0 < 0: a draft that the target never says does not stay"),
        ):
            n = len(drafts)
            got = accepted(p[: n + 1], q[:n], drafts, torch.zeros(n + 1), temperature)
            assert_equal(f"the tokens for u = 0, drafts {drafts} and scores (−inf, 5, 1)", got, [1], hint=hint)

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


def residual_at_one(p, q, cold, drafts, u):
    """The tokens, if acceptance knows the temperature and the residual does not."""
    want = speculative(p, q, drafts, u)
    i = len(want) - 1
    if i == len(drafts):
        return want
    mixed = [list(p), list(q)]
    mixed[0][i], mixed[1][i] = cold[0][i], cold[1][i]
    return speculative(*mixed, drafts, [*u[:i], 1e9, *u[i + 1 :]])


class Pair:
    """The calls of a submission's cache, and next to them each sequence's tokens as they should be."""

    def __init__(self, rng, num_blocks=24, block=4, every=8, heads=2, d_k=5, d_v=3):
        self.rng, self.sizes = rng, (num_blocks, block, every, heads, d_k, d_v)
        self.held, self.n_drafts, self.calls, self.story, self.lengths = {}, {}, [], [], {}

    def tokens(self, n):
        return drawn_tokens(self.rng, self.sizes[3], n=n, d_k=self.sizes[4], d_v=self.sizes[5], decay=0.3)[1:]

    def append(self, seq, n, drafts=False):
        tokens = self.tokens(n)
        old = self.held.get(seq, [x[:, :0] for x in tokens])
        self.held[seq] = [torch.cat(pair, 1) for pair in zip(old, tokens, strict=True)]
        self.n_drafts[seq] = n if drafts else 0
        return self._note("append", (seq, *tokens, drafts), f"append({seq!r}, {n} {'drafts' if drafts else 'tokens'})")

    def rollback(self, seq, n_accepted):
        self._begin(seq, seq, self.verified(seq) + n_accepted)
        return self._note("rollback", (seq, n_accepted))

    def fork(self, seq, new):
        self._begin(seq, new, self.length(seq))
        return self._note("fork", (seq, new))

    def restore(self, seq, new, position):
        """Begin a sequence with the prefix of another that both layers have."""
        length = min(position, self.verified(seq)) // self.sizes[2] * self.sizes[2]
        self.lengths[len(self.calls)] = length, seq, position
        self._begin(seq, new, length)
        return self._note("restore", (seq, new, position))

    def free(self, seq):
        del self.held[seq]
        return self._note("free", (seq,))

    def length(self, seq):
        """Tokens, drafts included."""
        return self.held[seq][0].shape[1]

    def verified(self, seq):
        """Tokens without drafts."""
        return self.length(seq) - self.n_drafts[seq]

    def state(self, seq, precise=torch.float64):
        k, *others = self.held[seq]
        return delta_rule(k, k, *others, None, precise)[1]

    def _begin(self, seq, new, length):
        self.held[new], self.n_drafts[new] = [x[:, :length] for x in self.held[seq]], 0

    def _note(self, name, args, shown=""):
        self.calls.append((name, args, False))
        self.story.append(shown or f"{name}({', '.join(map(repr, args))})")
        return self

    def refused(self, when, mentions, name, *args):
        """A call that must be refused, and must change nothing."""
        calls = [*self.calls, (name, args, False)]
        assert_raises(ValueError, lambda: run_cache(self.sizes, calls, []), when=when, mentions=mentions)
        self.calls.append((name, args, True))

    def check(self, mistakes=None, hint="", free=None):
        """Every sequence is as it should be; `mistakes` gives wrong states by the sequence's name."""
        seqs = list(self.held)
        results, views, n_free = run_cache(self.sizes, self.calls, seqs)
        after = " after " + ", ".join(self.story)
        for call, (length, seq, position) in self.lengths.items():
            counted = min(position, self.length(seq)) if seq in self.held else position
            usual = {
                "the hit counts drafts: they are not verified": counted // self.sizes[2] * self.sizes[2],
                "attention's blocks alone are counted: the layer with a state has a checkpoint after each `every` "
                "tokens": counted // self.sizes[1] * self.sizes[1],
                "the checkpoint above the position is taken": -(-position // self.sizes[2]) * self.sizes[2],
            }  # fmt: skip
            assert_equal(f"what {self.story[call]} returns{after}", results[call], length, mistakes=usual)
        for seq in seqs:
            where, view = f" of {seq!r}{after}", views[seq]
            assert_equal(f"the length{where}", view["length"], self.length(seq))
            for i, name in enumerate(("keys", "values")):
                want = self.held[seq][i]
                assert_close(f"the {name}{where}", view[name], want.double(), baseline=want, hint=BLOCKS)
            usual = {text: state() for text, state in (mistakes or {}).get(seq, {}).items()}
            plain, want = self.state(seq, torch.float32), self.state(seq)
            assert_close(f"the state{where}", view["state"], want, baseline=plain, dtype=torch.float32, mistakes=usual,
                         hint=hint, tolerance=Tolerance(largest=1.0))  # fmt: skip
        if free is not None:
            hint = "blocks are not shared, not given back, or given back too early"
            assert_equal(f"num_free(){after}", n_free, free, hint=hint)

    def state_of(self, seq, *, without=None, upto=None, more=None):
        """The state from the first `upto` tokens of a sequence, then `more` tokens, then its tokens from `without`."""
        tokens = self.held[seq]
        parts = [tuple(x[:, :upto] for x in tokens), *([more] if more else [])]
        if without is not None:
            parts.append(tuple(x[:, without:] for x in tokens))
        k, v, beta, g = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        return delta_rule(k, k, v, beta, g, None)[1]


BLOCKS = "a block is not found by the table, a shared one is written into, or rejected drafts are still counted"


class TestHybridCache:
    """Blocks can be cut; the state must be brought back."""

    def test_worked_example(self, rng):
        pair = Pair(rng, 8, 2, 4, 1, 3, 3).append("a", 5).append("a", 2, True).rollback("a", 1).restore("a", "b", 6)
        pair.check(free=5)

    def test_tokens_in_pieces(self, rng):
        pair = Pair(rng).append("a", 5).append("b", 9).append("a", 1).append("a", 14)
        pair.check(free=24 - 5 - 3)

    @pytest.mark.parametrize("n_accepted", [0, 1, 3, 4])
    def test_rejected_drafts_leave_no_trace(self, rng, n_accepted):
        pair = Pair(rng).append("a", 6).append("a", 4, True)
        drafts = tuple(x[:, 6:] for x in pair.held["a"])
        pair.rollback("a", n_accepted)
        length = 6 + n_accepted
        rejected = tuple(x[:, n_accepted:] for x in drafts)
        accepted = "the accepted drafts are not in the state: it is that of before the drafts"
        usual = {
            "the rejected drafts are still in the state": lambda: pair.state_of("a", upto=length, more=rejected),
            accepted: lambda: pair.state_of("a", upto=6),
        }
        pair.check({"a": usual}, free=24 - -(-length // 4))
        pair.append("a", 3)
        usual = {"the rejected drafts are still in the state": lambda: pair.state_of("a", upto=length, more=rejected,
                                                                                     without=length),
                 accepted: lambda: pair.state_of("a", upto=6, without=length)}  # fmt: skip
        pair.check({"a": usual})

    def test_many_rounds_of_drafts(self, rng):
        pair = Pair(rng).append("a", 3)
        for n_accepted in (2, 0, 3, 1, 3):
            pair.append("a", 3, True).rollback("a", n_accepted)
        pair.append("a", 2).check(hint="what an earlier rollback needed is used again, or drafts stay in the state")
        pair.append("a", 3, True).check(hint="until rollback the drafts are part of the sequence")

    def test_checkpoints_are_where_blocks_end(self, rng):
        pair = Pair(rng).append("a", 5).append("a", 14).append("a", 8)
        for new, position in (("b", 8), ("c", 17), ("d", 27), ("e", 7)):
            pair.restore("a", new, position)
        chunk_end = "the checkpoint is the state where the append ended, and not where the block ends"
        above = "the state is that of the checkpoint above: it contains later tokens"
        usual = {
            "b": {chunk_end: lambda: pair.state_of("a", upto=19), above: lambda: pair.state_of("a", upto=16)},
            "c": {chunk_end: lambda: pair.state_of("a", upto=19), above: lambda: pair.state_of("a", upto=24)},
            "d": {chunk_end: lambda: pair.state_of("a", upto=27)},
        }
        pair.check(usual, free=24 - 7)

    @pytest.mark.parametrize("n_accepted", [0, 1, 2, 5])
    def test_no_checkpoint_contains_a_draft(self, rng, n_accepted):
        pair = Pair(rng).append("a", 6).append("a", 5, True)
        drafts = tuple(x[:, 6:8] for x in pair.held["a"])
        pair.rollback("a", n_accepted).append("a", 8).restore("a", "b", 12)
        text = "the checkpoint contains drafts that were rejected"
        pair.check({"b": {text: lambda: pair.state_of("a", upto=6, more=drafts)}})

    def test_a_prefix_contains_no_draft(self, rng):
        pair = Pair(rng).append("a", 9).append("a", 8, True).restore("a", "b", 16).restore("a", "c", 11)
        pair.check()

    def test_a_fork_goes_its_own_way(self, rng):
        pair = Pair(rng).append("a", 10).fork("a", "b")
        pair.check(free=24 - 3)
        pair.append("b", 3).append("a", 1).append("a", 4, True).rollback("a", 2).append("b", 9)
        hint = "both sequences change one state: keep a state of its own for each"
        pair.restore("b", "c", 16).restore("a", "d", 13)
        pair.check({"a": {"it is that of the fork": lambda: pair.state_of("b")}}, hint, free=24 - 2 - 2 - 4)

    def test_a_fork_has_checkpoints_of_its_own(self, rng):
        pair = Pair(rng).append("a", 5).fork("a", "b").append("a", 3).append("b", 3)
        pair.restore("a", "x", 8).restore("b", "y", 8)
        text = "the checkpoint is that of the other sequence: a fork has a list of checkpoints of its own"
        pair.check({"x": {text: lambda: pair.state_of("b")}, "y": {text: lambda: pair.state_of("a")}}, free=24 - 3)

    def test_a_restored_sequence_goes_on(self, rng):
        pair = Pair(rng).append("a", 21).restore("a", "b", 18).append("b", 7).append("a", 2)
        pair.restore("b", "c", 23).free("a").append("b", 2)
        pair.check(free=24 - 7)

    @robust
    def test_what_is_freed_is_free_once(self, rng):
        pair = Pair(rng, num_blocks=6).append("a", 9).fork("a", "b").append("b", 4).free("a")
        pair.check(free=2)
        pair.append("a", 8).check(free=0)

    def test_random_operations(self, rng):
        pair, names = Pair(rng, num_blocks=60), iter("bcdefgh")
        pair.append("a", 3)
        for _ in range(24):
            seq = str(rng.choice(list(pair.held)))
            what = rng.choice(["append", "drafts", "fork", "restore"], p=[0.3, 0.5, 0.08, 0.12])
            if what == "append":
                pair.append(seq, int(rng.integers(1, 9)))
            elif what == "drafts":
                n = int(rng.integers(1, 6))
                pair.append(seq, n, True).rollback(seq, int(rng.integers(0, n + 1)))
            elif (new := next(names, None)) is not None and what == "fork":
                pair.fork(seq, new)
            elif new is not None:
                pair.restore(seq, new, int(rng.integers(0, pair.length(seq) + 1)))
        pair.check()

    @robust
    def test_arguments_belong_to_the_caller(self, rng):
        pair = Pair(rng)
        inputs = pair.tokens(6)
        after, state, keys = arguments_after_calls(pair.sizes, inputs)
        for name, now, before in zip(("k", "v", "beta", "g"), after, inputs, strict=True):
            assert_unchanged(name, now, before)
        both = tuple(torch.cat([x, x], 1) for x in inputs)
        want, plain = (delta_rule(both[0], *both, None, precise)[1] for precise in (torch.float64, torch.float32))
        hint = "the caller has changed its tensors before rollback: keep copies of what is needed later"
        assert_close("the state", state, want, baseline=plain, hint=hint, tolerance=Tolerance(largest=1.0))
        assert_close("the keys", keys, both[0].double(), baseline=both[0], hint=hint)

    @pytest.mark.cost
    def test_bytes(self, rng):
        sizes, n, n_drafts = (40, 4, 32, 2, 16, 16), 100, 6
        tokens = drawn_tokens(rng, 2, n=n + n_drafts, d_k=16, d_v=16)[1:]
        found = cache_bytes(sizes, tokens, (30, 1, 1, 38, 30), n_drafts)
        blocks, state, update = 40 * 4 * 2 * 32 * 4, 2 * 16 * 16 * 4, 2 * (16 + 16 + 2) * 4 * n_drafts
        full, added = blocks + 5 * state + 2048, found["fork"] - found["after"]
        for what, got, most, hint in (
            ("of a new cache", found["made"], blocks + 1024, "keys and values live in the blocks, and only there"),
            ("after 100 tokens", found["full"], full, "a state or an update is stored for each token, block or append: "
             "a checkpoint every 32 tokens is enough"),
            ("with 6 drafts", found["drafts"], full + max(n_drafts * state, state + update),
             "more is kept than a state for each draft"),
            ("after rollback", found["after"], found["full"] + 256, "what rollback needed is still kept after it"),
            ("that a fork adds", added, state + 1024, "a fork shares blocks and checkpoints: one state is its own"),
        ):  # fmt: skip
            assert_at_most(f"the bytes {what}", got, most, hint=hint)
        assert_equal("num_free() after the fork", found["free"], 40 - 26)

    @pytest.mark.refuses
    def test_bad_calls(self, rng):
        pair = Pair(rng, num_blocks=5).append("a", 6)
        pair.refused("for rollback without drafts", (), "rollback", "a", 0)
        pair.refused("when too few blocks are free", ("num_blocks",), "append", "a", *pair.tokens(15))
        pair.refused("for k of another width", ("k",), "append", "a", *[x[..., :3] for x in pair.tokens(4)])
        pair.refused("for an unknown sequence", ("x",), "fork", "x", "y")
        pair.refused("for a name that exists", ("a",), "fork", "a", "a")
        pair.refused("for position=7 of 6", {"position": 7}, "restore", "a", "b", 7)
        pair.append("a", 2, True)
        pair.refused("for an append after drafts", ("drafts",), "append", "a", *pair.tokens(1))
        pair.refused("for a fork with drafts", ("drafts",), "fork", "a", "b")
        for n_accepted in (3, -1):
            pair.refused(f"for n_accepted={n_accepted} of 2", {"n_accepted": n_accepted}, "rollback", "a", n_accepted)
        pair.rollback("a", 1).check(free=3)

    @pytest.mark.refuses
    def test_a_refused_append_changes_nothing(self, rng):
        pair = Pair(rng, num_blocks=3).append("a", 6).fork("a", "b").append("b", 2)
        pair.refused("for a new sequence without a free block", ("num_blocks",), "append", "c", *pair.tokens(1))
        pair.refused("for a name whose append was refused", ("c",), "fork", "c", "d")
        pair.check(free=0)
        pair.free("b").fork("a", "b").append("c", 3)
        pair.refused("if the copy of a shared block finds none", ("num_blocks",), "append", "b", *pair.tokens(1))
        pair.check(free=0)

    @pytest.mark.refuses
    def test_bad_sizes(self):
        for i, name in enumerate(("num_blocks", "block", "every", "heads", "d_k", "d_v")):
            sizes = [0 if i == j else 4 for j in range(6)]
            assert_raises(ValueError, partial(HybridCache, *sizes), when=f"for {name}=0", mentions={name: 0})
        assert_raises(
            ValueError, lambda: HybridCache(4, 4, 6, 1, 3, 3), when="for every=6, block=4", mentions={"every": 6}
        )


class TestReplayCost:
    """What three ways of storing states cost."""

    @pytest.mark.parametrize("method", ["align", "all", "ring"])
    def test_worked_example(self, method):
        check_cost(method, 1000, 100, 10, 16, 256, 500, 4, 2)

    @pytest.mark.parametrize("method", ["align", "all", "ring"])
    def test_drawn_sizes(self, rng, method):
        for _ in range(25):
            check_cost(method, *drawn_cost(rng))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            (("none", 10, 1, 1), "for the method 'none'", ("none",)),
            (("align", 10, 1, 1, 16, 8), "for chunk=8, block=16", {"chunk": 8}),
            (("all", 10, 1, 1, 2, 4, 11), "for shared=11 of 10", {"shared": 11}),
            (("ring", 10, 1, 1, 2, 4, 5, 2, 3), "for accepted=3 of 2", {"accepted": 3}),
        ]
        assert_refused(replay_cost, table)


def check_cost(*given):
    """Both results, for all arguments."""
    names = ("method", "tokens", "state_bytes", "update_bytes", "block", "chunk", "shared", "drafts", "accepted")
    what = ", ".join(f"{name}={value!r}" for name, value in zip(names, given, strict=True))
    got = assert_tuple("replay_cost's result", replay_cost(*given), ("stored", "again"))
    stored, again = cost(given)
    more = [(given[0], *drawn_cost(np.random.default_rng(i))) for i in range(40)]
    for i, (name, want) in enumerate({"bytes stored": stored, "tokens computed twice": again}.items()):
        of, ours, right = (lambda case, f=f, i=i: f(case)[i] for f in (of_cost, lambda x: replay_cost(*x), cost))
        usual = partial(recurring, of, given, ours, right, more)
        assert_equal(f"the {name} for {what}", got[i], want, mistakes=usual)


def drawn_cost(rng):
    """Arguments of `replay_cost` after the method."""
    block, tokens = int(rng.integers(2, 30)), int(rng.integers(1, 900))
    chunk, drafts = int(rng.integers(block, 300)), int(rng.integers(0, 5))
    more = int(rng.integers(0, tokens + 1)), drafts, int(rng.integers(0, drafts + 1))
    return tokens, int(rng.integers(50, 200)), int(rng.integers(1, 20)), block, chunk, *more
