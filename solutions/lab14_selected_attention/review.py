"""What every right selected_attention.py does, and no wrong one."""

from functools import partial

import pytest
import selected_attention as lab
import torch

from labkit.meters.calls import UninitialisedIsNaN, measured
from labkit.meters.moved import MovedBytes

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
best_first = partial(torch.argsort, dim=-1, descending=True, stable=True)  # of equal scores the lower number first


def called(function, *args):
    """The result of a call that leaves its arguments alone, and relies on no uninitialised memory."""
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    with UninitialisedIsNaN():
        got = function(*args)
    for old, new in zip(before, args, strict=True):
        assert not isinstance(old, torch.Tensor) or torch.allclose(old, new, 0, 0, equal_nan=True)
    return got


def near(got, want, dtype, tolerance=1e-9):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    assert torch.allclose(got.to(F64), want.to(F64), tolerance, tolerance)


def refuses(function, *calls):
    """Each call's arguments, and after them what its error names."""
    for *args, match in calls:
        with pytest.raises(ValueError, match=match):
            function(*args)


def cost(function, *args):
    """Bytes that are read of each tensor, in order, and what else `measured` counts."""
    with MovedBytes(**{f"{i}": x for i, x in enumerate(args) if isinstance(x, torch.Tensor)}) as moved:
        _, counts = measured(function, *args)
    return list(moved.read.values()), counts


def test_page_bounds():
    cases = [((2, 11, 6), 4, 9e30, F32), ((11, 3), 4, -9, BF16), ((8, 5), 4, 0, F64), ((3, 2), 8, 2e4, F32)]
    for size, page, offset, dtype in [*cases, ((0, 2), 3, 0, F32)]:
        K = (torch.randn(size) + offset * (1 + torch.rand(size))).to(dtype)
        pages = K.split(page, -2) if len(K) else []
        for got, extreme in zip(called(lab.page_bounds, K, page), (torch.amin, torch.amax), strict=True):
            near(got, torch.stack([extreme(x, -2) for x in pages], -2) if pages else K, dtype, 0)
    for dtype in (F32, BF16):
        K = torch.randn(1029, 32).to(dtype)
        (read,), counts = cost(lab.page_bounds, K, 16)
        assert read <= 2 * K.nbytes and counts["peak_bytes"] <= K.nbytes // 2
    refuses(lab.page_bounds, (K, 0, "page"))


def test_page_scores():
    for dtype, batch in [(F64, (2,)), (F32, ()), (BF16, ())]:
        q, keys = (torch.randn(*batch, *size).to(dtype) for size in ((16, 32), (2, 512, 4, 32)))
        lows, highs = keys.amin(-2), keys.amax(-2)
        products = [q[..., None, :].to(F64) * x.to(F64).repeat_interleave(8, -3) for x in (lows, highs)]
        got, precise = called(lab.page_scores, q, lows, highs), F32 if dtype == BF16 else dtype
        near(got, torch.maximum(*products).sum(-1), precise, 1e-9 if dtype == F64 else 2e-5)
        (_, *read), counts = cost(lab.page_scores, q, lows, highs)
        assert max(read) <= lows.nbytes and counts["peak_bytes"] <= q.numel() * 512 // 2 * precise.itemsize
    refuses(lab.page_scores, (q[:5], lows, highs, "H_q.*H_kv|5.*2"), (q, lows, highs[:, :4], "512.*4"))


def test_select_pages():
    cases = [((2, 6, 12), 2, 5, 11), ((6, 12), 3, 4, 7), ((4, 50), 2, 20, 49), ((2, 300), 2, 100, 299)]
    cases += [((4, 9), 1, 12, 5), ((2, 5), 2, 2, 4), ((4, 30), 2, 6, 29), ((2, 1), 1, 3, 0)]
    for size, heads, budget, current in cases:
        infinite = torch.tensor([-torch.inf, 0, torch.inf])[torch.randint(3, size)]
        for scores, after in [(torch.randn(size), 100), (torch.randn(size).round(), torch.nan), (infinite, 100)]:
            scores[..., current + 1 :] = after
            between = scores[..., 1:current].unflatten(-2, (heads, -1)).amax(-2)
            best = best_first(between)[..., : budget - 2] + 1
            ends = torch.tensor([0, current][: current + 1]).expand(*best.shape[:-1], -1)
            got = called(lab.select_pages, scores, heads, budget, current)
            assert got.dtype == torch.int64 and torch.equal(got, torch.cat([ends, best], -1).sort(-1).values)
    scores = torch.zeros(4, 6)
    wrong = [(2, 1, 5, "budget"), (2, 3, 6, "current"), (2, 3, -1, "current"), (3, 3, 5, "4.*3")]
    refuses(lab.select_pages, *((scores, *each) for each in wrong))


def test_selected_decode():
    cases = [(37, 5, [[0, 3, 7], [1, 2, 4]], 1, F64), (37, 5, [[1, 7], [0, 2]], 3e4, F64), (9, 4, [[], []], 1, F64)]
    cases += [(40, 5, [[0, 7], [6, 7]], 1, F32), (500, 5, [[*range(60)], [*range(20, 80)]], 1, BF16)]
    for n, page, pages, far, dtype in cases:
        q, K, V = (torch.randn(2, *size).to(dtype) for size in ((6, 8), (2, n, 8), (2, n, 3)))
        q, pages = far * q, torch.tensor(pages, dtype=torch.int64).expand(2, 2, -1)
        chosen = (torch.arange(n)[:, None] // page == pages[..., None, :]).any(-1)
        K_of, V_of, chosen_of = (x.repeat_interleave(3, 1) for x in (K.to(F64), V.to(F64), chosen))
        S = ((K_of @ q[..., None].to(F64)).squeeze(-1) / 8**0.5).masked_fill(~chosen_of, -torch.inf)
        want = (S.softmax(-1).nan_to_num()[..., None, :] @ V_of).squeeze(-2), S.logsumexp(-1)
        K, V = (x.masked_fill(~chosen[..., None], torch.nan) for x in (K, V))
        o, lse = called(lab.selected_decode, q, K, V, pages, page)
        near(o, want[0], dtype, {F64: 1e-9, F32: 1e-5, BF16: 5e-3}[dtype])
        near(lse, want[1], F32 if dtype == BF16 else dtype, 1e-9 if dtype == F64 else 1e-5)
    for dtype in (F32, BF16):
        q, K, V = (torch.randn(*size, 64).to(dtype) for size in ((8,), (2, 4096), (2, 4096)))
        (_, *read, _), counts = cost(lab.selected_decode, q, K, V, torch.arange(8).expand(2, 8) * 20, 16)
        chosen_bytes = 2 * 8 * 16 * 64 * dtype.itemsize  # of K, and of V
        assert max(read) <= chosen_bytes and counts["peak_bytes"] <= 3 * 2 * chosen_bytes * 4 // dtype.itemsize
    q, K, V, p = torch.zeros(4, 6), torch.zeros(2, 9, 6), torch.zeros(2, 9, 3), torch.tensor([[0, 1], [1, 2]])
    refuses(lab.selected_decode, (q, K, V, p + 1, 4, "pages"), (q, K, V, p - 1, 4, "pages"))
    refuses(lab.selected_decode, (q, K, V, p, 0, "page"), (q[:3], K, V, p, 4, "3.*2"))


def plain_sparse(Q, K, V, block, top):
    own, n_full = torch.arange(Q.shape[-2]) // block, Q.shape[-2] // block
    means = K[..., : n_full * block, :].unflatten(-2, (n_full, block)).mean(-2)
    gate = (Q @ means.mT).masked_fill(torch.arange(n_full) >= own[:, None], -torch.inf)
    seen = (own == best_first(gate)[..., :top, None]).any(-2) | (own == own[:, None])
    S = (Q @ K.mT / Q.shape[-1] ** 0.5).masked_fill(~seen.tril(), -torch.inf)
    return S.softmax(-1) @ V


def test_block_sparse_attention():
    sparse, cases = lab.block_sparse_attention, [(29, 4, 2, 1), (48, 6, 4, 1), (29, 4, 0, 1), (20, 1, 3, 1)]
    for n, block, top, far in [*cases, (9, 50, 2, 1), (29, 4, 20, 300)]:
        Q, K, V = (torch.randn(2, n, d, dtype=F64) for d in (6, 6, 5))
        near(called(sparse, far * Q, K, V, block, top), plain_sparse(far * Q, K, V, block, top), F64)
        leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
        results = [function(*leaves, block, top).square().sum() for function in (sparse, plain_sparse)]
        for got, want in zip(*(torch.autograd.grad(x, leaves) for x in results), strict=True):
            near(got, want, F64)
    Q, K, V = torch.randn(64, 4).round(), torch.randn(4, 4).round().repeat(16, 1), torch.randn(64, 3)  # equal blocks
    near(sparse(Q, K, V, 4, 3), plain_sparse(Q, K, V, 4, 3), F32, 1e-5)
    Q, K = torch.randint(-3, 4, (520, 6)) / 16, torch.randint(90, 111, (520, 6))  # means that bfloat16 would round
    Q, K, V = (x.to(BF16) for x in (Q, K, torch.randn(520, 5)))
    near(sparse(Q, K, V, 64, 2), plain_sparse(Q.float(), K.float(), V.float(), 64, 2), BF16, 1e-2)
    for n, dtype in ((512, F32), (1024, BF16)):
        _, counts = cost(sparse, *torch.randn(3, n, 8).to(dtype), 32, 2)
        assert not counts["fused"] and counts["peak_bytes"] <= 4 * n * n // 2
        assert 0 < counts["flops"] <= 2 * 2 * n * (3 * 32 * 2 * 8 + n // 32 * 8)
    Q, V = torch.zeros(8, 4), torch.zeros(8, 3)
    refuses(sparse, (Q, Q, V, 0, 1, "block"), (Q, Q, V, 2, -1, "top"))
    refuses(sparse, (Q, Q[:7], V[:7], 2, 1, "8, 4.*7, 4"), (Q, Q, V[:7], 2, 1, "8, 4.*7, 3"))


def test_index_top_tokens():
    cases = [(6, 30, 5, 3, 1), (23, 23, 9, 3, 2.0**40), (7, 7, 40, 3, 1), (70, 130, 5, 1, 1), (20, 20, 5, 0, 1)]
    for n_q, n_k, top, most, far in [*cases, (60, 300, 20, 9, 1)]:  # whole numbers: many scores are equal
        for dtype in (F32, F64, BF16):
            q, w, k = (torch.randint(-most, most + 1, (2, *s)).to(dtype) for s in ((n_q, 3, 8), (n_q, 3), (n_k, 8)))
            w = w.abs() if most == 9 else w * far
            scores = (w[..., None].to(F64) * (q.to(F64) @ k[:, None].to(F64).mT).relu()).sum(-2)
            position = torch.arange(n_k - n_q, n_k)[:, None]
            order = best_first(scores.masked_fill(torch.arange(n_k) > position, -torch.inf))
            order = torch.nn.functional.pad(order, (0, max(top - n_k, 0)), value=n_k)[..., :top]
            order = order.where(order <= position, n_k).sort(-1).values
            got = called(lab.index_top_tokens, q, w, k, top)
            assert got.dtype == torch.int64 and torch.equal(got, order.masked_fill(order == n_k, -1))
    inputs = [map(torch.randn, [(n, 4, 8), (n, 4), (n, 8)]) for n in (512, 1024)]
    short, long = (cost(lab.index_top_tokens, *each, 16)[1]["peak_bytes"] for each in inputs)
    assert short <= 4 * 512**2 and long <= 3 * short
    q, w, k = torch.zeros(3, 2, 4), torch.zeros(3, 2), torch.zeros(5, 4)
    refuses(lab.index_top_tokens, (q, w, k, 0, "top"), (q, w[:, :1], k, 2, "3, 1"))
    refuses(lab.index_top_tokens, (q, w, k[:, :3], 2, "5, 3"), (q, w, k[:2], 2, "2, 4"))


def test_selection_bytes():
    for tokens in (1, 10, 95, 96, 97, 100, 130, 1000):
        for budget in (2, 3, 9, 2048):
            full, nearby = (tokens - 1) // 16, 512 * min(tokens, 132)  # pages before the last one
            rows = [("whole", 0, tokens), ("dsa", 32 * tokens, min(budget, tokens))]
            rows.append(("quest", 512 * (full + 1), tokens - 16 * max(0, full + 1 - budget)))
            for method, extra, n_read in [*rows, ("moba", 256 * full, tokens - 16 * max(0, full - budget))]:
                got = lab.selection_bytes(method, tokens, 512, 0, 0, 16, budget, 32)
                assert tuple(got) == (512 * tokens + extra, extra + 512 * n_read)
            assert tuple(lab.selection_bytes("window", tokens, 512, window=128, sinks=4)) == (nearby, nearby)
    refuses(lab.selection_bytes, ("h2o", 10, 4, "h2o"), ("whole", 0, 4, "tokens"))
