"""What every right recurrent_state.py does, and no wrong one."""

import itertools
import random

import pytest
import recurrent_state as lab
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.products import ProductMeter

F32, F64 = torch.float32, torch.float64
NEAR, ROUNDED = ({"rtol": x, "atol": x, "check_dtype": False} for x in (1e-9, 1e-4))


def draw(n, d_k=5, d_v=3, batch=(2,), dtype=F64, decay=1.0):
    q, k = (torch.nn.functional.normalize(torch.randn(*batch, n, d_k, dtype=F64), dim=-1) for _ in range(2))
    beta, g = torch.rand(*batch, n, dtype=F64), -decay * torch.rand(*batch, n, dtype=F64)
    return [x.to(dtype) for x in (q, k, torch.randn(*batch, n, d_v, dtype=F64), beta, g)]


def rule(q, k, v, beta, g, state=None):
    q, k, v, beta, g = (x.to(F64) for x in (q, k, v, beta, g))
    S, o = torch.zeros(*k.shape[:-2], k.shape[-1], v.shape[-1], dtype=F64) if state is None else state, []
    for t in range(k.shape[-2]):
        S = g[..., t, None, None].exp() * S
        key, read = k[..., t, :, None], k[..., t, None, :] @ S
        S = S + key @ (beta[..., t, None, None] * (v[..., t, None, :] - read))
        o.append(q[..., t, None, :] @ S)
    return torch.cat([v[..., :0, :], *o], -2), S


def check_rule(function, *chunk):
    for n, decay, state in [(9, 1, None), (13, 1, torch.randn(2, 5, 3, dtype=F64)), (12, 300, None)]:
        given, before = zip(*((x, x.clone()) for x in draw(n, decay=decay)), strict=True)
        torch.testing.assert_close(function(*given, state, *chunk), rule(*given, state), **NEAR)
        assert all(map(torch.equal, given, before))
    half = draw(200, dtype=torch.bfloat16, decay=0.01)
    torch.testing.assert_close(function(*half, None, *chunk)[1], rule(*half)[1], **ROUNDED)


def test_gated_delta_recurrent():
    check_rule(lab.gated_delta_recurrent)
    q, k, v, beta, g = draw(4)
    with pytest.raises(ValueError, match="1"):
        lab.gated_delta_recurrent(q, k, v, beta[..., :1], g, None)
    given = draw(400, 32, 32, (), F32)
    with AllocationMeter() as meter:
        lab.gated_delta_recurrent(*given, None)
    assert meter.peak_bytes <= 4 * (32 * 32 * 12 + 4 * 400 * 32)


def test_gated_delta_chunked():
    with pytest.raises(ValueError, match="chunk"):
        lab.gated_delta_chunked(*draw(4), None, 0)
    for chunk in (1, 4, 5, 100):
        check_rule(lab.gated_delta_chunked, chunk)
    leaves = [x.requires_grad_() for x in draw(9)]
    grads = [
        torch.autograd.grad(o.sum() + S.sum(), leaves)
        for o, S in (lab.gated_delta_chunked(*leaves, None, 4), rule(*leaves))
    ]
    torch.testing.assert_close(*grads, **NEAR)
    given = draw(1024, 16, 16, (), F32)
    with AllocationMeter() as memory, ProductMeter() as products:
        lab.gated_delta_chunked(*given, None, 32)
    assert memory.peak_bytes <= 4 * 1024 * 64 and products.flops >= 2 * 1024 * (2 * 16 * 16 + 32 * 16)


def test_checkpoint_plan():
    with pytest.raises(ValueError, match="every"):
        lab.checkpoint_plan(4, 0, 1, 1)
    for tokens, every, n in itertools.product((0, 10, 17, 24), (1, 2, 5), (0, 1, 2, 3, 9)):
        kept, replay = lab.checkpoint_plan(tokens, every, 10, 10 * n + 9)
        assert replay == [p - max([0, *(c for c in kept if c <= p)]) for p in range(tokens + 1)]
        assert set(kept) <= set(range(every, tokens + 1, every)) and len(kept) <= n
        plans = [[*range(stride, tokens + 1, stride)][:n] for stride in range(every, tokens + 1, every)]
        worst = [max(b - a - 1 for a, b in itertools.pairwise([0, *plan, tokens + 1])) for plan in plans]
        assert max(replay) == min([tokens, *worst])


def test_longest_common_hit():
    for tokens, drafts, kind, _ in itertools.product(range(6, 40), range(6), ("attention", "state"), range(3)):
        a, b = ({i for i in range(20) if random.random() < 0.8} for _ in range(2))
        groups = [(kind, random.choice([2, 3, 4]), a), ("state", 3, b)]
        hits = [h for h in range(1, tokens - drafts) if h % 3 == h % groups[0][1] == 0 and h // 3 - 1 in b]
        hits = [h for h in hits if a >= set(range(n := h // groups[0][1])) or (kind == "state" and n - 1 in a)]
        assert lab.longest_common_hit(groups[:: random.choice([1, -1])], tokens, drafts) == max(hits, default=0)
    for kind, block, name in (("window", 4, "window"), ("state", 0, "block"), ("state", -4, "block")):
        with pytest.raises(ValueError, match=name):
            lab.longest_common_hit([("attention", 4, set()), (kind, block, {0})], 9)


def test_accept_drafts():
    with pytest.raises(ValueError, match="2"):
        lab.accept_drafts(torch.zeros(2, 4), torch.zeros(2, 4), [0, 1], torch.zeros(3), 1)
    assert lab.accept_drafts(torch.tensor([[1.0, 5, 5]]), torch.zeros(0, 3), [], torch.tensor([0.9]), 0) == [1]
    never, first = torch.tensor([[-torch.inf, 5.0, 1.0]] * 2), torch.tensor([[2.0, 0.0, 0.0]])
    for drafts, T in itertools.product(([], [0]), (0, 1)):
        n = len(drafts)
        assert lab.accept_drafts(never[: n + 1], first[:n], drafts, torch.zeros(n + 1), T) == [1]
    for n, T, _ in itertools.product(range(4), (0, 0.5, 1, 2), range(20)):
        scores, guesses, u = torch.randn(n + 1, 5), torch.randn(n, 5), torch.rand(n + 1)
        p, q = ((x.double() / (T or 1e-9)).softmax(-1) for x in (scores, guesses))
        drafts = [int(row.multinomial(1)) for row in q]
        i = next((i for i, x in enumerate(drafts) if u[i] * q[i, x] >= p[i, x]), n)
        before = scores.clone(), guesses.clone()
        weights = (p[i] - q[i]).clamp(min=0) if i < n else p[n]
        last = int((weights.cumsum(-1) <= u[n] * weights.sum()).sum())
        assert lab.accept_drafts(scores, guesses, drafts, u, T) == [*drafts[:i], last]
        assert torch.equal(scores, before[0]) and torch.equal(guesses, before[1])


def test_HybridCache():
    cache, texts = lab.HybridCache(200, 4, 8, 2, 3, 3), {"a": [x[:, :0] for x in draw(1, 3, dtype=F32)[1:]]}
    for step in range(60):
        seq, x, what = random.choice([*texts]), draw(random.randrange(1, 8), 3, dtype=F32)[1:], random.randrange(6)
        n, length, new = x[0].shape[1], texts[seq][0].shape[1], str(step)
        held = cache.state(seq) if length else torch.zeros(1)
        before, given = held.clone(), [y.clone() for y in x]
        if step > 12 and what < 2:
            at = cache.restore(seq, new, random.randrange(length + 1)) if what else cache.fork(seq, new) or length
            assert cache.length(new) == at and (at % 8 == 0 or not what)
            texts[new] = [y[:, :at] for y in texts[seq]]
            continue
        cache.append(seq, *given, what > 3)
        for y in given:
            y.zero_()
        if what > 3:
            assert cache.restore(seq, new, length + n) == length // 8 * 8
            cache.free(new)
            cache.rollback(seq, n := random.randrange(n + 1))
        texts[seq] = [torch.cat([old, y[:, :n]], 1) for old, y in zip(texts[seq], x, strict=True)]
        assert torch.equal(held, before)
        for name, (k, *others) in texts.items():
            got = [cache.keys(name), cache.values(name), cache.state(name)]
            torch.testing.assert_close(got, [k, others[0], rule(k, k, *others)[1]], **ROUNDED)
        assert len(texts) > 1 or cache.num_free() == 200 - -(-k.shape[1] // 4)

    def tokens(n):
        return draw(n, 3, dtype=F32)[1:]

    def refused(call, *given, match):
        free = cache.num_free()
        with pytest.raises(ValueError, match=match):
            call(*given)
        assert cache.num_free() == free

    cache = lab.HybridCache(3, 4, 8, 2, 3, 3)
    cache.append("a", *tokens(6))
    cache.fork("a", "b")
    cache.append("b", *tokens(2), True)
    refused(cache.fork, "b", "e", match="drafts")
    cache.rollback("b", 2)
    refused(cache.append, "c", *tokens(1), match="num_blocks")
    refused(cache.fork, "c", "d", match="c")
    refused(lab.HybridCache, 4, 4, 6, 1, 3, 3, match="every")
    cache.free("b")
    cache.fork("a", "b")
    cache.append("c", *tokens(3))
    refused(cache.append, "b", *tokens(1), match="num_blocks")
    with AllocationMeter() as meter:
        (cache := lab.HybridCache(40, 2, 32, 1, 64, 64)).append("a", *draw(4, 64, 64, (1,), F32)[1:])
        before = meter.live_bytes
        cache.append("a", *draw(3, 64, 64, (1,), F32)[1:], True)
        cache.rollback("a", 1)
    assert meter.live_bytes <= before + 1000
    with AllocationMeter() as meter:
        (cache := lab.HybridCache(40, 2, 32, 1, 16, 16)).append("a", *draw(64, 16, 16, (1,), F32)[1:])
    assert meter.live_bytes <= 4 * (40 * 2 * 32 + 6 * 256) and cache.length("a") == 64


def test_replay_cost():
    with pytest.raises(ValueError, match="block"):
        lab.replay_cost("all", 10, 1, 1, 0)
    ways, shares, kept = ("align", "all", "ring"), (0, 500, 999), ((0, 0), (4, 0), (4, 2), (4, 4))
    for way, block, chunk, shared, (n, m) in itertools.product(ways, (16, 30), (100, 256), shares, kept):
        apart = block if way == "all" else chunk // block * block
        states = 1000 // apart + 1 + (n if way == "all" else n > 0)
        want = states * 100 + 7 * n * (way == "ring"), shared % apart + m * (way == "align" and m < n)
        assert lab.replay_cost(way, 1000, 100, 7, block, chunk, shared, n, m) == want
