"""What every right serving.py does, and no wrong one."""

from itertools import product

import pytest
import serving as lab
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.calls import measured
from labkit.meters.moved import MovedBytes
from labkit.serving.drive import serve_plans
from labkit.serving.engine import serve
from labkit.serving.model import SPEC
from labkit.serving.records import held_while_serving
from labkit.serving.requests import LIMITS, Request, any_requests, make_trace, prefix_tokens


def refuses(function, *calls):
    """Each call's arguments, and after them what its error names."""
    for *args, match in calls:
        with pytest.raises(ValueError, match=match):
            function(*args)


def test_cache_plan(rng):
    for *sizes, block_size, bits_at, spare in rng.integers(1, (9, 9, 5, 9, 33, 5, 10**6), (200, 7)).tolist():
        spec = dict(zip(("layers", "kv_heads", "heads", "head_dim"), sizes, strict=True))
        spec["head_dim"], bits = 4 * spec["head_dim"], (2, 4, 8, 32)[bits_at - 1]
        vector = spec["head_dim"] * bits // 8 + (4 if bits < 32 else 0)
        block = 2 * spec["layers"] * spec["kv_heads"] * vector * block_size
        for nbytes in (block, 2 * block - 1, block + spare, 10**15 * block - 1):
            assert lab.cache_plan(spec, nbytes, block_size, bits) == nbytes // block
    wrong = [
        (SPEC, 40_000, 8, 3, "bits"),
        (SPEC, 40_000, 8, 16, "bits"),
        (SPEC | {"head_dim": 6}, 40_000, 8, 2, "bits"),
    ]
    refuses(lab.cache_plan, *wrong, (SPEC, 40_000, 0, 8, "block_size"), (SPEC, 1279, 8, 8, "nbytes"))


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
    with pytest.raises(RuntimeError):
        manager.allocate("d", [1, 2, *[9] * 9])
    assert manager.allocate("d", [9] * 7) == [2, 3, 4, 1]
    for method in (manager.free, manager.block_table, manager.num_cached_tokens):
        refuses(method, ("b", "'?b'?"))
    refuses(manager.append, ("b", 1, "'?b'?"))
    refuses(manager.fork, ("b", "new", "'?b'?"), ("d", "d", "d"))
    refuses(manager.allocate, ("d", [1], "d"), ("e", [], "."))
    refuses(lab.BlockManager, (0, 2, "num_blocks"), (2, 0, "block_size"))


def draw_clear(bits, *shape):
    """Vectors whose scale and zero need no rounding, and as they are read again; no number is near a tie."""
    codes = torch.randint(2**bits, shape)
    codes[..., 0], codes[..., 1] = 0, 2**bits - 1
    scale, zero = (torch.randint(low, 33, (*shape[:-1], 1)) / 16 for low in (1, -32))
    scale, is_inside = scale / 2**bits, (codes > 0) & (codes < 2**bits - 1)
    read = codes * scale + zero
    return read + scale * 0.7 * (torch.rand(shape) - 0.5) * is_inside, read


def attention(q, k, v, start):
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1) for x in (k, v))
    hidden = torch.arange(k.shape[1]) > torch.arange(start, start + len(q))[:, None]
    S = (q.double().transpose(0, 1) @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    return (S.softmax(-1) @ v).transpose(0, 1)


def write(cache, layer, table, size, start, k, v):
    at = range(start, start + len(k))
    given = k.clone(), v.clone()
    cache.write(layer, [table[t // size] for t in at], [t % size for t in at], *given)
    assert torch.equal(given[0], k) or k.isnan().any()


def bytes_written(cache, heads, n):
    """What attention of two queries over n tokens writes, dequantized numbers and all."""
    with MovedBytes() as moved:
        cache.attend(0, torch.randn(2, heads, 32), list(range(128)), n - 2)
    return moved.written


def test_QuantizedBlocks_rounds():
    for bits, (spread, offset) in product((2, 4, 8), [(1, 0), (1e-3, 0), (3, 100), (0, 2.5e-3), (0, 0), (1e-9, 0)]):
        cache, v = lab.QuantizedBlocks(3, 2, 1, 2, 8, bits), offset + spread * torch.randn(40, 2, 8)
        for x in v:
            cache.write(0, [1], [0], torch.zeros(1, 2, 8), x[None])
            read, x = cache.attend(0, torch.ones(1, 2, 8), [1], 0)[0].double(), x.double()
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
            scale, zero = ((high - low) / (2**bits - 1)).half().double(), low.half().double()
            codes = torch.where(scale == 0, 0, (read - zero) / scale)
            steps = torch.where(scale == 0, 0, (x - zero) / scale).clamp(0, 2**bits - 1)
            assert (codes - steps).abs().max() <= 0.55 and (codes - codes.round()).abs().max() <= 0.1
            assert ((read - zero)[(scale == 0).expand_as(read)].abs() <= 1e-6).all()


def test_QuantizedBlocks():
    for bits, (kv_heads, group, size), sharp in product((2, 4, 8), [(2, 2, 4), (1, 4, 3), (3, 2, 5)], (1, 150, -150)):
        cache, blocks = lab.QuantizedBlocks(40, size, 2, kv_heads, 8, bits), torch.randperm(40).tolist()
        for block, layer in product(range(40), range(2)):
            write(cache, layer, [block], size, 0, *torch.full((2, size, kv_heads, 8), torch.nan))
        table, others, spare = blocks[:20], blocks[20:30], blocks[30]
        (k, k_read), (v, v_read) = (draw_clear(bits, 2, 60, kv_heads, 8) for _ in "kv")
        if sharp < 0:
            k, k_read = k + 3, k_read + 3
        for start, end in ((0, 5), (5, 16), (16, 17), (17, 53)):
            for layer in range(2):
                write(cache, layer, table, size, start, k[layer, start:end], v[layer, start:end])
            if start == 5:
                cache.copy(table[1], spare)
                for layer in range(2):
                    write(cache, layer, [table[1]], size, 0, *torch.randn(2, size, kv_heads, 8))
                table[1] = spare
                for layer in range(2):
                    write(cache, layer, others, size, 0, *torch.randn(2, 9, kv_heads, 8))
            for layer in range(2):
                q = (
                    sharp * torch.rand(end - start, kv_heads * group, 8)
                    if sharp < 0
                    else sharp * torch.randn(end - start, kv_heads * group, 8)
                )
                before, want = q.clone(), attention(q, k_read[layer, :end], v_read[layer, :end], start)
                got = cache.attend(layer, q, list(table), start)
                assert got.dtype == torch.float32 and torch.equal(q, before)
                assert torch.allclose(got.double(), want, 0, 1e-4 * max(1, abs(sharp)))
    for bits, n_bytes in ((2, 12), (4, 20), (8, 36)):
        k, v = torch.randn(2, 4096, 2, 32)
        with AllocationMeter() as life:
            cache = lab.QuantizedBlocks(128, 32, 1, 2, 32, bits)
            assert 0 <= life.live_bytes - 128 * 32 * 2 * 2 * n_bytes <= 64
            write(cache, 0, range(128), 32, 0, k, v)
            assert life.live_bytes <= 128 * 32 * 2 * 2 * n_bytes + 64
        q, table = torch.randn(2, 4, 32), list(range(128))
        peaks = [measured(cache.attend, 0, q, table, n - 2)[1] for n in (2048, 4096)]
        assert not peaks[1]["fused"] and peaks[1]["peak_bytes"] - peaks[0]["peak_bytes"] <= 32 * 2048
        assert bytes_written(cache, 4, 512) <= bytes_written(cache, 4, 4096) / 4  # nothing after the last query
    refuses(lab.QuantizedBlocks, *((4, 2, 1, 1, d, bits, "bits") for bits, d in ((1, 8), (3, 8), (32, 8), (2, 6))))


def plans(trace, num_blocks, size, max_tokens):
    scheduler = lab.Scheduler(num_blocks, size, max_tokens)
    return serve_plans(scheduler, trace, num_blocks, size, max_tokens).steps


def alone(n, length, max_new):
    """Requests that come together and share nothing."""
    return [Request(i, 0, tuple(100 * i + j for j in range(length)), max_new) for i in range(n)]


def test_Scheduler(rng):
    assert plans(alone(1, 12, 5), 8, 4, 32) == 5 and plans(alone(1, 100, 3), 16, 8, 32) == 6
    assert plans(alone(6, 8, 5), 30, 4, 120) == 5
    for size in (1, 3, 5, 8):
        plans(any_requests(rng, 16), -(-120 // size), size, int(rng.integers(8, 40)))
        plans(any_requests(rng, 16, longest=24, most_new=24, every=1), -(-56 // size), size, int(rng.integers(8, 40)))
    text = tuple(rng.integers(0, 64, 40).tolist())
    for later in (0, 1, 2):
        plans(
            [Request(0, 0, text, 4), Request(1, later, (*text, 7), 4), Request(2, later + 1, (*text, 9), 4)], 40, 4, 16
        )
    for n, max_tokens in product(range(20, 40, 2), (3, 5, 8)):
        some = [Request(1, 20, tuple(range(8)), 8), Request(2, 20, text[:n], 4)]
        plans(some, 12, 4, max_tokens)
        plans([Request(0, 0, tuple(range(43)), 2), *some], 12, 4, max_tokens)
    little = [Request(i, i // 2, (i, 7 * i, 3), 3) for i in range(1, 41)]
    plans([Request(0, 0, tuple(range(50)), 6), *little], 16, 4, 8)
    plans(sorted([Request(100, 3, tuple(range(56)), 6), *little], key=lambda each: each.arrival), 16, 4, 16)


def test_Scheduler_step_by_step():
    for n_blocks, names in ((4, ["first", "last"]), (6, ["first", "second", "last"])):
        scheduler, prompt = lab.Scheduler(n_blocks, 2, 9), [5, 6, 7]
        for i, name in enumerate(names):
            scheduler.submit(name, [10 * i, 10 * i + 1, 10 * i + 2], 5)
        for _ in range(2):
            served = [piece["id"] for piece in scheduler.plan()["work"]]
            scheduler.advance(dict.fromkeys(served, 9))
        assert [piece["id"] for piece in scheduler.plan()["work"]] == [each for each in served if each != "last"]
    scheduler = lab.Scheduler(4, 2, 8)
    wrong = [("r", [], 1, "r"), ("r", [1], 0, "r"), ("r", [1] * 8, 1, "r"), ("r", [1] * 5, 4, "r"), ("r", [1], 8, "r")]
    refuses(scheduler.submit, *wrong)
    for _ in range(2):
        scheduler.submit("r", prompt, 2)
        refuses(scheduler.submit, ("r", [3], 1, "r"))
        assert scheduler.plan() == {
            "copies": [],
            "work": [{"id": "r", "start": 0, "tokens": [5, 6, 7], "blocks": [0, 1]}],
        }
        refuses(scheduler.submit, ("r", [3], 1, "r"))
        scheduler.advance({"r": 9})
        assert prompt == [5, 6, 7] and scheduler.plan()["work"][0]["tokens"] == [9]
        scheduler.advance({"r": 9})
        break
    refuses(lab.Scheduler, (0, 2, 8, "num_blocks"), (4, 0, 8, "block_size"), (4, 2, 0, "max_tokens"))


def test_Scheduler_completions(rng):
    for n_prompt, n, max_new in ((13, 3, 6), (12, 2, 5), (1, 4, 3), (3, 3, 1)):
        trace = [Request(0, 0, tuple(range(n_prompt)), max_new, n), *alone(3, 9, 4)[1:]]
        served = serve_plans(lab.Scheduler(60, 4, 64), trace, 60, 4, 64)
        assert served.steps <= max(max_new, 4) and served.again == 0
    for size in (2, 3, 5):
        trace = any_requests(rng, 12, longest=24, most_new=16, every=1, most_completions=3)
        plans(trace, -(-52 // size), size, int(rng.integers(8, 40)))
    plans([Request(0, 0, tuple(range(10)), 6, 3)], 4, 4, 16)
    scheduler = lab.Scheduler(6, 2, 1)
    refuses(scheduler.submit, ("r", [5], 2, 0, "r"))
    scheduler.submit("r", [5], 2, 2)
    scheduler.plan()
    scheduler.advance({"r": 8, ("r", 1): 9})
    scheduler.advance({scheduler.plan()["work"][0]["id"]: 4})
    refuses(scheduler.submit, ("r", [3], 1, "r"))
    scheduler.advance({scheduler.plan()["work"][0]["id"]: 4})
    scheduler.submit("r", [3], 1)


def test_Server(rng):
    for kind in ("chat", "documents"):
        trace = make_trace(kind, int(rng.integers(10**6)))
        for nbytes in (200_000, 28_000):
            with AllocationMeter() as life:
                server = lab.Server(SPEC, nbytes, 48)
            assert life.live_bytes <= nbytes + nbytes // 8
            served = serve(server, trace, SPEC, nbytes, 48)
            assert nbytes < 200_000 or served.prefix_tokens >= prefix_tokens(trace, answers=False) * 6 // 10
    trace, limits = make_trace("real", 0), LIMITS["real"]
    server = lab.Server(SPEC, limits["nbytes"], limits["max_tokens"])
    sizes = server.settings()
    serve_plans(server, trace, sizes["num_blocks"], sizes["block_size"], limits["max_tokens"])
    wide = {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 64}
    for nbytes in (200_000, 600_000):
        held = held_while_serving(lab.Server, wide, nbytes, 32, [(list(range(n, n + 40)), 5) for n in range(3)])
        assert max(held["live_bytes"]) <= nbytes
    server = lab.Server(SPEC, 200_000, 16)
    sizes = server.settings()
    refuses(server.submit, (7, [1] * sizes["block_size"] * sizes["num_blocks"], 1, "7"))
    refuses(lab.Server, (SPEC, 30, 16, "nbytes"))
    k, v = torch.randn(2, sizes["block_size"], SPEC["kv_heads"], SPEC["head_dim"])
    q = torch.randn(1, SPEC["heads"], SPEC["head_dim"])
    for layer in range(SPEC["layers"]):
        write(server, layer, [0], sizes["block_size"], 0, k, v)
    before = [server.attend(layer, q, [0], sizes["block_size"] - 1) for layer in range(SPEC["layers"])]
    server.copy(0, 3)
    for layer in range(SPEC["layers"]):
        write(server, layer, [0], sizes["block_size"], 0, v, k)
        assert torch.allclose(before[layer], server.attend(layer, q, [3], sizes["block_size"] - 1))
