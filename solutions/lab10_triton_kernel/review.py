"""What every right triton_kernel.py does, and no wrong one."""

import itertools
import math

import pytest
import torch
from triton_kernel import choose_config, flash_backward, flash_forward, paged_decode, softmax_rows

from labkit.kernels.resources import SHARED_BYTES, resources
from labkit.meters.kernels.adapter import int32_products
from labkit.meters.kernels.calls import compiled_call, kernel_call

F16, F32, F64 = torch.float16, torch.float32, torch.float64
# N_q, N_k, d, d_v, causal, batch, how far all scores lie from 0
CASES = [(37, 43, 8, 8, False, (), 0), (37, 43, 8, 5, True, (2, 3), 0), (5, 129, 20, 20, False, (), 0)]
CASES += [(65, 20, 20, 20, True, (2,), 0), (40, 41, 16, 16, False, (), 1e4), (40, 41, 16, 16, True, (), -1e4)]
both = pytest.mark.parametrize(("blocks", "dtype"), [((16, 32), F32), ((32, 16), F16)], ids=["float32", "float16"])
HEADS = (30, 30, 16, 16, True, (12,), 0)  # the last head begins at element 5,280


def near(got, want, tolerance, dtype):
    assert got.dtype == dtype and got.shape == want.shape
    assert torch.allclose(got.to(F64), want, rtol=tolerance, atol=tolerance * max(1, want.abs().amax()))


def run(function, given, *more, outside=()):
    """The result of a call whose kernels do nothing that a GPU does not forgive, and what they did."""
    result, seen = kernel_call(function, given, *more)
    assert seen["launches"] and not seen["problems"] and {*seen["outside_kernels"]} <= {*outside}
    assert seen["outside_numbers"] <= seen["numbers"] * (1 + len(outside))
    return result, seen


def compiles(function, given, *more, arch=80, stack=0, products=True, **options):
    """The compiler takes every kernel; float32 is multiplied in full, float16 on tensor cores."""
    taken = []
    for each in compiled_call(function, given, *more, archs=[arch], **options)[arch]:
        assert not each["error"]
        taken.append(resources(each["ptx"], each["shared"], arch))
        assert not taken[-1].tf32 and taken[-1].shared <= SHARED_BYTES[arch]
        assert taken[-1].stack <= stack
    assert not products or any(each.products for each in taken)


def test_softmax_rows():
    wide = torch.randn(9, 90) * 3
    rows = [torch.randn(7, 129), torch.randn(2, 64), torch.randn(1, 1), wide[::2, :41], wide.T, wide[:, ::3]]
    rows += [wide * 1e4, wide.half(), torch.rand(2, 70_000).half() / 10, wide.half()[:, ::2]]
    rows.append(wide.masked_fill(torch.arange(90) > torch.arange(9)[:, None] * 20 - 1, -math.inf))
    for x in rows:
        y, seen = run(softmax_rows, {"x": x})
        want = x.double().softmax(1).nan_to_num(0)
        assert y.dtype == x.dtype and torch.allclose(y.double(), want, rtol=1e-5 if x.dtype == F32 else 2e-3, atol=1e-7)
        assert seen["of_arguments"] == {"x": x.numel() * x.itemsize}
        assert sum(seen["loaded"].values()) == sum(seen["stored"].values()) == x.numel() * x.itemsize
    with int32_products() as found:
        run(softmax_rows, {"x": torch.randn(40, 1000)[:, :50]})
    assert max(found, default=0) < 39 * 1000
    compiles(softmax_rows, {"x": wide.half()}, products=False)
    for wrong, error, name in ((torch.ones(3), ValueError, "3"), (wide.bfloat16(), TypeError, "bfloat16")):
        with pytest.raises(error, match=name):
            softmax_rows(wrong)


def draw(n_q, n_k, d, d_v, causal, batch=(), far=0.0, dtype=F32):
    """Q, K and V; dO, O and L."""
    Q, K, V, dO = (torch.randn(*batch, n, w).to(dtype) for n, w in ((n_q, d), (n_k, d), (n_k, d_v), (n_q, d_v)))
    if far:
        Q[..., 0], K[..., 0] = abs(far) ** 0.5, far / abs(far) ** 0.5
    return {"Q": Q, "K": K, "V": V}, dO


def plain(Q, K, V, causal, dO=None):
    """O and L, or the gradients, in float64."""
    leaves = [x.detach().to(F64).requires_grad_() for x in (Q, K, V)]
    S = leaves[0] @ leaves[1].mT / math.sqrt(Q.shape[-1])
    S = S.masked_fill(torch.ones(S.shape[-2:]).triu(1).bool(), -math.inf) if causal else S
    O, L = S.softmax(-1) @ leaves[2], S.logsumexp(-1)
    return (O.detach(), L.detach()) if dO is None else torch.autograd.grad(O, leaves, dO.to(F64))


def forward(given, causal, *blocks, tolerance=None):
    dtype = given["Q"].dtype
    (O, L), seen = run(flash_forward, given, causal, *blocks)
    want = plain(*given.values(), causal)
    near(O, want[0], tolerance or (1e-5 if dtype == F32 else 2e-3), dtype)
    near(L, want[1], 1e-5 if dtype == F32 else 1e-3, F32)
    return seen


def backward(given, dO, causal, *blocks, tolerance=None, first=0):
    dtype = dO.dtype
    O, L = plain(*given.values(), causal)
    given = {**given, "O": O.to(dtype), "L": L.float(), "dO": dO}
    gradients, seen = run(flash_backward, given, causal, *blocks)
    for got, want in zip(gradients, plain(*list(given.values())[:3], causal, dO), strict=True):
        near(got[..., first:], want[..., first:], tolerance or (3e-5 if dtype == F32 else 4e-3), dtype)
    return seen, given, gradients


def refuses(function, given, *others):
    """Shapes that do not fit, block sizes, and dtypes."""
    Q, K, V = given.values()
    for wrong in ((Q[..., :7], K, V), (Q, K[:4], V), (Q, K, V[:4])):
        with pytest.raises(ValueError, match=r"\d+, \d+.*\d+, \d+"):
            function(*wrong, *others)
    for name, size in (("block_q", 8), ("block_q", 24), ("block_k", 0), ("block_k", 48)):
        with pytest.raises(ValueError, match=name):
            function(Q, K, V, *others, **{name: size})
    with pytest.raises(TypeError, match="float64"):
        function(Q.double(), K.double(), V.double(), *others)


def n_tiles(n_q, n_k, block_q, block_k):
    """How many tiles have a key that some query sees, when causal."""
    return sum(k < min(q + block_q, n_q) for q in range(0, n_q, block_q) for k in range(0, n_k, block_k))


@both
def test_flash_forward(blocks, dtype):
    for *sizes, batch, far in CASES:
        given, _ = draw(*sizes, batch, far, dtype)
        forward(given, sizes[-1], *blocks, tolerance=1e-2 if far else None)
    given = {name: x.mT.contiguous().mT for name, x in draw(20, 30, 8, 8, False, dtype=dtype)[0].items()}
    forward(given, False, *blocks)
    before = [x.clone() for x in given.values()]
    flash_forward(*given.values())
    assert all(map(torch.equal, given.values(), before))


def test_flash_forward_sums():
    given, _ = draw(16, 16 * 46, 16, 16, False, dtype=F16)  # many small weights after large ones
    given["Q"][:, 1:], given["K"][:, 1:], given["Q"][:, 0], given["K"][:256, 0], given["K"][256:, 0] = (
        0,
        0,
        4,
        2.6,
        -2.6,
    )
    given["V"].mul_(0.02).add_(1)[256:] += 0.3
    forward(given, False, 16, 16, tolerance=1e-3)
    given, _ = draw(40, 40, 16, 16, False, far=1024.0, dtype=F16)  # all scores are 256 and a little
    forward(given, False, 16, 16, tolerance=4e-3)
    empty = {"Q": given["Q"], "K": given["K"][:0], "V": given["V"][:0]}
    (O, L), _ = kernel_call(flash_forward, empty)
    assert not O.any() and L.isneginf().all()


def test_flash_forward_costs():
    for dtype, blocks in ((F32, (16, 16)), (F16, (32, 64))):
        seen = forward(draw(63, 129, 32, 32, False, dtype=dtype)[0], False, *blocks)
        numbers = 63 * 32 + -(-63 // blocks[0]) * 129 * 64
        assert sum(seen["loaded"].values()) == numbers * dtype.itemsize
        assert sum(seen["stored"].values()) == 63 * 32 * dtype.itemsize + 63 * 4
    for blocks in ((16, 16), (16, 32)):
        seen, tiles = forward(draw(80, 112, 32, 32, True)[0], True, *blocks), n_tiles(80, 112, *blocks)
        assert sum(seen["loaded"].values()) <= 4 * (80 * 32 + tiles * blocks[1] * 64)
        assert 0 < sum(map(math.prod, seen["products"])) <= tiles * blocks[0] * blocks[1] * 64
    *sizes, batch, _ = HEADS
    with int32_products() as found:
        forward(draw(*sizes, batch)[0], True, 16, 16)
    assert max(found, default=0) < 11 * 30 * 16
    refuses(flash_forward, draw(6, 5, 8, 8, False)[0])
    compiles(flash_forward, draw(16, 16, 16, 16, False)[0], False, 16, 16, stack=math.inf, products=False)
    compiles(flash_forward, draw(16, 16, 64, 64, True, dtype=F16)[0], True, 64, 64)
    compiles(flash_forward, draw(16, 16, 5, 3, False, dtype=F16)[0], False, 16, 16)


@both
def test_flash_backward(blocks, dtype):
    for *sizes, batch, far in CASES:
        given, dO = draw(*sizes, batch, far, dtype)
        # far from 0 the first columns of dQ and dK are sums of large numbers that cancel
        backward(given, dO, sizes[-1], *blocks, tolerance=2e-2 if far else None, first=int(far != 0))
    given, dO = draw(20, 30, 8, 8, False, (2,), dtype=dtype)
    given = {name: x.mT.contiguous().mT for name, x in given.items()}
    backward(given, torch.ones((), dtype=dtype).expand(dO.shape), False, *blocks)


def test_flash_backward_sums():
    for along_queries in (True, False):  # one tile adds 8, thirty others 0.0035
        n_q, n_k = (496, 16) if along_queries else (16, 496)
        given, dO = draw(n_q, n_k, 16, 16, False, dtype=F16)
        sign = 1.0 - 2.0 * (torch.arange(n_k) % 2)[:, None]
        given["Q"][:], given["K"][:], given["V"][:], dO[:] = 0, 0, sign, 1.2
        given["Q"][:, 0], given["K"][:, 1:2] = 1, sign
        part = dO if along_queries else given["K"]
        part[:16], part[16:] = part[:16] / part[:16].abs().max() * 8, part[16:] / part[16:].abs().max() * 0.0035
        backward(given, dO, False, 16, 16, tolerance=1e-3)
    given, dO = draw(8, 40, 16, 16, False, far=1024.0, dtype=F16)
    backward(given, dO, False, 16, 16, tolerance=1e-2, first=1)
    given, dO = draw(8, 40, 16, 16, False, dtype=F16)
    given["V"][:, 0], dO[:, 0] = 32, 32
    given["K"].add_(1)
    backward(given, dO, False, 16, 16, tolerance=2e-2)
    _, whole, (_, _, dV) = backward(*draw(40, 40, 8, 8, False), False, 32, 32)
    whole["L"] += math.log(2)
    near(run(flash_backward, whole, False, 32, 32)[0][2], dV.double() / 2, 1e-5, F32)
    for without in ("QOL", "KV"):
        part = {n: x[:0] if n in without or (n == "dO" and "Q" in without) else x for n, x in whole.items()}
        if without == "KV":
            part["L"] = torch.full_like(part["L"], -math.inf)
        gradients, _ = kernel_call(flash_backward, part)
        for got, like in zip(gradients, "QKV", strict=True):
            assert got.shape == part[like].shape and not got.any()


def test_flash_backward_costs():
    seen, _, _ = backward(*draw(64, 64, 32, 32, True), True, 16, 16)
    tiles = n_tiles(64, 64, 16, 16)
    assert sum(seen["loaded"].values()) <= 4 * (tiles * 16 * 384 + 4 * 64 * 66)
    assert 0 < sum(map(math.prod, seen["products"])) <= 7 * tiles * 16 * 16 * 32
    *sizes, batch, _ = HEADS
    for causal in (True, False):
        with int32_products() as found:
            backward(*draw(*sizes, batch), causal, 16, 16)
        assert max(found, default=0) < 11 * 30 * 16
    _, whole, _ = backward(*draw(16, 16, 16, 16, False), False, 16, 16)
    compiles(flash_backward, whole, False, 16, 16, stack=math.inf, products=False)
    Q, K, V, *others = whole.values()
    refuses(flash_backward, {"Q": Q[:, :8], "K": K[:5, :8], "V": V[:5, :8]}, *others)
    _, whole, _ = backward(*draw(16, 16, 64, 64, True, dtype=F16), True, 32, 32)
    compiles(flash_backward, whole, True, 32, 32, arch=90)


def paged(lengths, size, kv=2, group=2, d=16, d_v=16, dtype=F32, change=None):
    """The arguments of a call: what no sequence needs is NaN; and o."""
    n_blocks = [-(-n // size) for n in lengths]
    order = iter(torch.randperm(sum(n_blocks) + 2).tolist())
    table = torch.full((len(lengths), max(n_blocks) + 1), -1)
    caches = [torch.full((sum(n_blocks) + 2, size, kv, width), math.nan, dtype=dtype) for width in (d, d_v)]
    q, outputs = torch.randn(len(lengths), kv * group, d).to(dtype), []
    for b, n in enumerate(lengths):
        table[b, : n_blocks[b]] = torch.tensor([next(order) for _ in range(n_blocks[b])], dtype=torch.int64)
        k, v = (torch.randn(n, kv, width).to(dtype) for width in (d, d_v))
        if change:
            change(q, k, v)
        places = table[b, torch.arange(n) // size], torch.arange(n) % size
        caches[0][places], caches[1][places] = k, v
        k, v = (x.to(F64).repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        weights = (k @ q[b].to(F64)[..., None] / d**0.5).softmax(1)
        outputs.append((weights * v).sum(1))
    names = "q", "k_cache", "v_cache", "block_table", "context_lens"
    return dict(zip(names, (q, *caches, table, torch.tensor(lengths)), strict=True)), torch.stack(outputs)


def decode(lengths, size, splits, *options, tolerance=None, **more):
    given, want = paged(lengths, size, *options, **more)
    o, seen = run(paged_decode, given, splits, outside=["an exponential"])
    near(o, want, tolerance or (1e-5 if o.dtype == F32 else 2e-3), given["q"].dtype)
    return seen, given


def all_near_256(q, k, v):
    q[..., 0], k[..., 0] = 32, 32


def long_tail(q, k, v):
    q[:], k[:], v[:], v[512:] = 0, 0, 1, 1.3
    q[..., 0], k[:512, ..., 0], k[512:, ..., 0] = 4, 2.6, -2.6


def cancelling(q, k, v):
    q[:], v[64:], v[:64] = 0, -1000, 1000
    v[:15] += 0.5


def test_paged_decode():
    cases = [
        ((45, 5, 1), 8, 2, 2, 2, 16, 5),
        ((37, 5), 8, 1),
        ((37, 5), 8, 5),
        ((13, 6), 4, 2, 2, 3),
        ((2, 9, 1), 4, 5),
    ]
    cases += [((13, 6), 4, 2, 1, 17), ((5, 0, 9), 4, 2), *(((17, 64), size, 2, 2, 2, 20, 20) for size in (1, 5, 64))]
    for case, dtype in itertools.product(cases, (F32, F16)):
        decode(*case, dtype=dtype)
    decode((30, 9), 4, 2, change=lambda q, k, v: q.mul_(1000), tolerance=1e-3)
    decode((200, 64), 16, 4, dtype=F16, change=all_near_256, tolerance=4e-3)
    decode((512 + 32 * 75,), 64, 1, 1, 1, dtype=F16, change=long_tail, tolerance=1e-3)
    decode((128,), 64, 2, 1, 1, dtype=F16, change=cancelling, tolerance=1e-3)


def test_paged_decode_costs():
    for splits, kv, group in ((1, 2, 4), (3, 1, 4)):
        seen, given = decode((41, 19, 5), 8, splits, kv, group, 32, 32)
        for name in ("k_cache", "v_cache"):
            assert seen["of_arguments"][name] == 65 * kv * 32 * 4
        assert sum(seen["stored"].values()) <= 3 * kv * group * 4 * (splits * 33 + 32)
        assert seen["readers"]["k_cache"] >= 2 * kv * splits
    for table in (torch.int32, torch.int64):
        given, _ = paged((44, 35), 4)
        with int32_products() as found:
            run(paged_decode, given | {"block_table": given["block_table"].to(table)}, 2, outside=["an exponential"])
        assert max(found, default=0) < 1024
    compiles(paged_decode, paged((40,), 16, group=4)[0], 2, stack=math.inf, products=False)
    compiles(paged_decode, paged((40,), 16, group=4, d=64, d_v=64, dtype=F16)[0], 2)
    q, *rest = paged((9, 4), 4)[0].values()
    for error, name, *wrong in (
        (ValueError, "3.*2|2.*3", q[:, :3], 2),
        (ValueError, "splits", q, 0),
        (TypeError, "64", q.double(), 2),
    ):
        with pytest.raises(error, match=name):
            paged_decode(wrong[0], *rest, wrong[1])


def test_choose_config():
    compiled = [(128, 2, 80), (128, 4, 80), (64, 4, 80), (32, 4, 90), (64, 2, 90)]
    for d, size, arch in itertools.product((32, 64, 128), (2, 4), (80, 90)):
        block_q, block_k, num_warps, num_stages = choose_config(d, size, arch)
        assert all(block >= 16 and block.bit_count() == 1 for block in (block_q, block_k))
        assert num_warps in (4, 8) and num_stages >= 2 and block_q >= 128 // size
        if (d, size, arch) in compiled:
            given, options = draw(16, 16, d, d, True, dtype=F16 if size == 2 else F32)[0], {"products": size == 2}
            options |= {"num_warps": num_warps, "num_stages": num_stages, "arch": arch, "stack": 256}
            compiles(flash_forward, given, True, block_q, block_k, **options)
    for wrong, name in (((48, 2, 80), "head_dim"), ((64, 3, 80), "dtype_bytes"), ((64, 2, 75), "arch")):
        with pytest.raises(ValueError, match=name):
            choose_config(*wrong)
