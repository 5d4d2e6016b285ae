"""What every right decoding.py does, and no wrong one."""

from fractions import Fraction
from functools import partial
from itertools import product

import decoding as lab
import pytest
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.calls import UninitialisedIsNaN
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
TOLERANCES = {F64: 1e-7, F32: 1e-4, BF16: 8e-3, torch.float16: 1e-3}


def draw(dtype, *sizes):
    return [torch.randn(size, dtype=F64).to(dtype) for size in sizes]


def near(got, want, dtype):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    assert torch.allclose(got.to(F64), want, TOLERANCES[dtype], TOLERANCES[dtype])


def refuses(function, *calls):
    """Each call's arguments, and after them what its error names."""
    for *args, match in calls:
        with pytest.raises(ValueError, match=match):
            function(*args)


def called(function, *args):
    """The result, the bytes read of K and of V, which are arguments 1 and 2, the peak, and the shapes of products."""
    before = [x.clone() for x in args[:3]]
    meters = AllocationMeter(), ProductMeter(), MovedBytes(k=args[1], v=args[2])
    with UninitialisedIsNaN(), meters[0], meters[1], meters[2]:
        got = function(*args)
    assert not meters[1].fused and all(torch.allclose(x, y, 0, 0, True) for x, y in zip(before, args, strict=False))
    return got, list(meters[2].read.values()), meters[0].peak_bytes, meters[1].shapes


def test_kv_cache_bytes():
    for tokens, window, latent, rope in product([0, 1, 5, 10**12], [None, 1, 5, 4096], [0, 13], [0, 5]):
        held, numbers = min(tokens, window or tokens), latent + rope if latent else 2 * 7 * 11
        got = lab.kv_cache_bytes(3, 7, 11, tokens, 4, window, latent, rope if latent else 0)
        assert type(got) is int and got == 3 * numbers * held * 4
    wrong = {"layers": 0, "kv_heads": 0, "head_dim": -1, "dtype_bytes": 0, "window": 0, "tokens": -1, "latent_dim": -1}
    for name, value in [*wrong.items(), ("rope_dim", -1), ("rope_dim", 8)]:
        with pytest.raises(ValueError, match=name):
            lab.kv_cache_bytes(**{"layers": 2, "kv_heads": 2, "head_dim": 4, name: value})


def plain(q, k, v, causal=False, scale=None):
    q, k, v = (x.to(F64).repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (q, k, v))
    S = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = torch.ones(S.shape[-2:]).triu(1 + S.shape[-1] - S.shape[-2]).bool()
    S = S.masked_fill(hidden, -torch.inf) if causal else S
    return S.softmax(-1).nan_to_num() @ v, S.logsumexp(-1)


def check_attention(attend, *cases):
    """Check attend(q, k, v, causal); a case has H_q, H_kv, N_q, N_k, causal, and the size of scores."""
    for (heads, kv_heads, n_q, n_k, causal, far), batch, dtype in product(cases, [(), (2, 3)], TOLERANCES):
        q, k, v = draw(dtype, (*batch, heads, n_q, 8), (*batch, kv_heads, n_k, 8), (*batch, kv_heads, n_k, 5))
        k[..., 0].abs_()
        q[..., 0] += far if dtype == F64 else 0
        (o, lse), want = called(attend, q, k, v, causal)[0], plain(q, k, v, causal)
        near(o, want[0], dtype)
        near(lse, want[1], F64 if dtype == F64 else F32)
    for dtype in (F32, BF16):
        q, k, v = draw(dtype, (8, 1, 128), (2, 1024, 128), (2, 1024, 128))
        _, read, peak_bytes, _ = called(attend, q, k, v, False)
        assert max(read) <= k.nbytes and peak_bytes <= k.nbytes // 2 + (0 if dtype == F32 else 3 * 2 * k.nbytes)
    q, k, v = torch.zeros(4, 1, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 3)
    refuses(attend, (q[:3], k, v, False, "3.*2"), (q[..., :5], k, v, False, "4, (1, )?5.*2, 5, 6"))
    refuses(attend, (q, k, v[:1], False, "2, 5, 6.*1, 5, 3"), (q, k, v[:, :4], False, "2, 5, 6.*2, 4, 3"))


def test_grouped_query_attention():
    cases = [(6, 2, 5, 9, True, 0), (4, 4, 7, 7, True, 0), (3, 1, 9, 5, True, 0), (4, 2, 43, 40, True, 1e3)]
    cases += [(6, 3, 1, 500, False, 0), (6, 3, 4, 20, False, 1e3), (4, 2, 24, 24, True, -1e7)]
    check_attention(lab.grouped_query_attention, *cases)
    q, k, v = draw(F64, (4, 3, 16), (2, 20, 16), (2, 20, 6))
    for scale in (0.5, 0.0):
        near(lab.grouped_query_attention(q, k, v, scale=scale)[0], plain(q, k, v, scale=scale)[0], F64)


def follow(cache_class, size, *calls, dtype=F32):
    """Append so many tokens, or truncate by a slice, call by call; after each, compare the cache with all tokens."""
    is_rolling, token_bytes = cache_class is lab.RollingKVCache, 2 * 2 * 32 * dtype.itemsize
    with AllocationMeter() as life:
        cache = cache_class(size, 2, 32, dtype)
    tokens, one = torch.zeros(2, 2, 0, 32, dtype=dtype), torch.zeros(2, 1, 32, dtype=dtype)
    for call in calls:
        if isinstance(call, slice):
            cache.truncate(call.stop)
            tokens = tokens[:, :, call]
        else:
            (new,) = draw(dtype, (2, 2, call, 32))
            tokens, least = torch.cat([tokens, new], 2), min(call, size) * token_bytes
            with MovedBytes() as moved, AllocationMeter() as memory:
                cache.append(*new)
            assert moved.written <= least * (1 + is_rolling) and memory.peak_bytes <= least * is_rolling
            new.fill_(torch.nan)
        for wrong in (one[:1], one[..., :2], one[:, :0], one.to(BF16 if dtype == F32 else F32), one[0]):
            refuses(cache.append, (one, wrong, "."), (wrong, one, "."))
        is_whole, room = tokens.shape[2] <= size, tokens.new_zeros(2, 2, size - len(cache) + 1, 32)
        refuses(cache.truncate, *((n, ".") for n in ((-1, len(cache) + 1) if is_whole else range(-1, size + 2))))
        refuses(cache.append, *([] if is_rolling else [(*room, f"max_len|{size}")]))
        with AllocationMeter() as reading:
            keys, values = cache.keys, cache.values
        assert reading.peak_bytes == 0 or not is_whole
        assert len(cache) == keys.shape[1] and torch.equal(torch.stack([keys, values]), tokens[:, :, -size:])
        del keys, values
    assert life.live_bytes <= size * token_bytes * (1 + is_rolling)


def test_KVCache():
    for dtype in TOLERANCES:
        follow(lab.KVCache, 10, 2, 1, 0, 3, slice(4), 6, slice(0), 7, dtype=dtype)
    follow(lab.KVCache, 600, 500, 1, 1, 7, 91)
    refuses(lab.KVCache, (0, 2, 3, F32, "max_len"), (4, 0, 3, F32, "kv_heads"), (4, 2, 0, F32, "head_dim"))


def test_RollingKVCache():
    for calls in ([1] * 9, [2] * 4, [3, 4, 5], [7, 1], [4, 1], [1, 8, 1], [2, 0, 9, 3], [3, slice(1), 3, 2]):
        follow(lab.RollingKVCache, 4, *calls, dtype=BF16)
    follow(lab.RollingKVCache, 256, 100, slice(90), 1, slice(0), 700, 1, 1, 7)
    refuses(lab.RollingKVCache, (0, 2, 3, F32, "window"), (4, 0, 3, F32, "kv_heads"), (4, 2, 0, F32, "head_dim"))


def in_splits(n_splits, q, k, v, causal):
    o, lse = lab.split_kv_decode(q.squeeze(-2), k, v, n_splits)
    return o.unsqueeze(-2), lse.unsqueeze(-1)


def test_split_kv_decode():
    for n_splits in (1, 5):
        sizes = [(37, 0), (7, 0), (3, 0), (0, 0), (40, 1e3), (500, 0)]
        check_attention(partial(in_splits, n_splits), *((6, 2, 1, n_k, False, far) for n_k, far in sizes))
    for n_splits, dtype in product((1, 4, 7), (F32, BF16)):
        args = *draw(dtype, (8, 128), (2, 1000, 128), (2, 1000, 96)), n_splits
        _, _, peak_bytes, shapes = called(lab.split_kv_decode, *args)
        assert all(96 in shape or max(shape) <= -(-1000 // n_splits) for shape in shapes)
        split_in_float32 = 0 if dtype == F32 else 2 * 2 * 1000 * 224 * 4 / n_splits
        assert peak_bytes <= 4 * 4 * (8 * 1000 + n_splits * 8 * 97) + split_in_float32
    refuses(lab.split_kv_decode, (*args[:3], 0, "num_splits"))
    q, k, v = draw(BF16, (4, 8), (2, 64, 8), (2, 64, 6))
    v += torch.tensor([100, -100]).repeat_interleave(32)[:, None]  # both parts are large, and their mean is small
    near(lab.split_kv_decode(0 * q, k, v, 2)[0], v.to(F64).mean(1).repeat_interleave(2, 0), BF16)


def test_num_splits_heuristic(rng):
    for total, sms, blocks, most in [[17, 20, 20, 20], *rng.integers(1, (60, 60, 300, 200), (1000, 4)).tolist()]:
        counted = range(1, min(most, sms, blocks) + 1)
        counted = [s for s in counted if s == 1 or -(-blocks // s) < -(-blocks // (s - 1))]
        efficiency = {s: Fraction(total * s, sms * -(-total * s // sms)) for s in counted}
        want = next(s for s in counted if efficiency[s] >= Fraction(85, 100) * max(efficiency.values()))
        assert lab.num_splits_heuristic(total, sms, blocks, most) == want
    assert lab.num_splits_heuristic(1, 1000, 1000) == 112  # of at most 128 by default
    for i, name in enumerate(["total_mblocks", "num_sms", "num_n_blocks", "max_splits"]):
        refuses(lab.num_splits_heuristic, (*[8] * i, 0, *[8] * (3 - i), name))


def test_BlockManager_finds_blocks():
    ids = {letter: ord(letter) for letter in "abcdex"} | {"A": ord("a") + 2**61 - 1}  # the hash of "a"
    # prompts, which of them are freed again at once; another prompt, and how many of its tokens are found
    stories = [("abcd", "", "abcde", 4), ("abcde", "", "abcd", 2), ("abcde", "", "cda", 0), ("abc", "", "abcd", 2)]
    stories += [("abc", "", "abcde", 2), ("abcde", "0", "abcda", 4), ("abcde xxxxxxxxxxxxxxxx", "01", "abcde", 0)]
    stories += [
        ("xxxxxxxxxxxx ab cd", "12", "abx", 2),
        ("abc ab xxxxxxxxxxxx", "12", "abd", 2),
        ("abcde", "", "Abx", 0),
    ]
    for (prompts, freed, last, n_found), n_at_once in product(stories, (1, 99)):
        manager = lab.BlockManager(8, 2)
        for seq_id, prompt in enumerate(prompts.split()):
            manager.allocate(seq_id, [ids[each] for each in prompt[:n_at_once]]).clear()
            for each in prompt[n_at_once:]:
                manager.append(seq_id, ids[each])
            if str(seq_id) in freed:
                manager.free(seq_id)
        table = manager.allocate("last", [ids[each] for each in last])
        assert len(table) == len(set(table)) == -(-len(last) // 2) and manager.num_cached_tokens("last") == n_found


def test_BlockManager_step_by_step():
    manager = lab.BlockManager(5, 2)
    assert manager.allocate("a", [1, 2, 3]) == [0, 1]
    manager.fork("a", "b")
    manager.fork("b", "c")
    assert [manager.num_cached_tokens(each) for each in "abc"] == [0, 3, 3] and manager.num_free_blocks() == 3
    assert [manager.append("b", 4), manager.append("a", 5), manager.append("c", 6)] == [(1, 2), (1, 3), None]
    assert manager.append("c", 7) is None and manager.num_free_blocks() == 0
    for each in "ab" * 2:
        with pytest.raises(RuntimeError):
            manager.append(each, 8)
    assert [manager.block_table(each) for each in "abc"] == [[0, 3], [0, 2], [0, 1, 4]]
    manager.free("b")
    assert manager.can_allocate([1, 2, 9]) and not manager.can_allocate([1, 2, 9, 9, 9])
    assert manager.append("a", 8) is None and manager.block_table("a") == [0, 3, 2]
    manager.block_table("a").clear()
    manager.free("a")
    assert manager.num_free_blocks() == 2 and manager.can_allocate([1, 2, 3, 6, 9])
    manager.free("c")
    assert manager.num_free_blocks() == 5 and not manager.can_allocate([1, 2, *[9] * 9])
    with pytest.raises(RuntimeError, match="1"):
        manager.allocate("d", [1, 2, *[9] * 9])
    assert manager.allocate("d", [9] * 7) == [2, 3, 4, 1]
    for method in (manager.free, manager.block_table, manager.num_cached_tokens):
        refuses(method, ("b", "'?b'?"))
    refuses(manager.append, ("b", 1, "'?b'?"))
    refuses(manager.fork, ("b", "new", "'?b'?"), ("d", "d", "d"))
    refuses(manager.allocate, ("d", [1], "d"), ("e", [], "."))
    refuses(lab.BlockManager, (0, 2, "num_blocks"), (2, 0, "block_size"))


def test_paged_attention():
    cases = [((8, 16), 8, 6, 2), ((7,), 8, 4, 1), ((17, 3, 16, 31), 4, 4, 4), ((5, 0, 9), 4, 6, 3), ((0, 0), 4, 2, 1)]
    cases += [((100, 7), 8, 4, 2), ((128, 120, 128, 97, 128, 128, 3, 0), 8, 8, 2)]
    for (lengths, size, heads, kv_heads), (dtype, far) in product(cases, [(F64, 1e3), *((x, 1) for x in TOLERANCES)]):
        n_blocks = [-(-n // size) for n in lengths]
        *own, free = torch.randperm(sum(n_blocks) + 3).split([*n_blocks, 3])
        q, k, v = draw(dtype, (len(lengths), heads, 16), *((sum(n_blocks) + 3, size, kv_heads, x) for x in (16, 12)))
        table, want = torch.full((len(lengths), max(n_blocks) + 1), -1), []
        for i, (n, blocks) in enumerate(zip(lengths, own, strict=True)):
            table[i, : len(blocks)] = blocks
            k_i, v_i = (x[blocks].flatten(0, 1)[:n].transpose(0, 1) for x in (k, v))
            want.append(plain(far * q[i, :, None], k_i, v_i)[0].squeeze(-2))
            for x in (k, v):
                x[blocks[-1:], n - size * (len(blocks) - 1) :] = 1e4
                x[free] = torch.nan
        for ids in (torch.int64, torch.int32):
            args = far * q, k, v, table.to(ids), torch.tensor(lengths, dtype=ids)
            o, read, peak_bytes, _ = called(lab.paged_attention, *args)
            near(o, torch.stack(want), dtype)
        assert max(read) <= sum(n_blocks) * size * kv_heads * 16 * dtype.itemsize
        assert peak_bytes <= 3 * 2 * max(lengths) * kv_heads * 16 * max(4, dtype.itemsize) + 20_000
    refuses(lab.paged_attention, (q[:, :3], *args[1:], "3.*2"), (*args[:4], args[4] + 1000, "context_lens"))
