"""What every right tiling.py does, and no wrong one."""

import itertools

import numpy as np
import pytest
from tiling import choose_blocks, count_tiles, io_exponents, naive_traffic, tiled_attention, tiled_traffic

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays, uninitialised_is_nan
from labkit.simulated_memory import Machine

CUTS = [(24, 40, 4, 10), (40, 24, 10, 4), (23, 50, 16, 4), (9, 70, 4, 16), (7, 5, 1, 1), (6, 7, 50, 40)]
by_cut = pytest.mark.parametrize("cut", CUTS, ids=str)


def plain(Q, K, V, hidden=False):
    S = np.where(hidden, -np.inf, np.float64(Q) @ np.float64(K).swapaxes(-1, -2) / Q.shape[-1] ** 0.5)
    powers = np.exp(S - S.max(-1, keepdims=True, initial=-1e300))
    return powers @ np.float64(V) / powers.sum(-1, keepdims=True).clip(min=1e-300)


def later(n_q, n_k):
    """What causal queries do not see."""
    return np.arange(n_k) > np.arange(n_q)[:, None]


def refuses_blocks(function, *args):
    for name, value in itertools.product(["block_q", "block_k"], [0, -2]):
        with pytest.raises(ValueError, match=name):
            function(*args, **{"block_q": 4, "block_k": 4, name: value})


def test_count_tiles(rng):
    for n_q, n_k, block_q, block_k in [*CUTS, (0, 5, 2, 2), (5, 0, 2, 2), *rng.integers(1, 30, (200, 4)).tolist()]:
        for seen in (np.ones((n_q, n_k), bool), ~later(n_q, n_k)):
            corners = itertools.product(range(0, n_q, block_q), range(0, n_k, block_k))
            want = sum(seen[i : i + block_q, j : j + block_k].any() for i, j in corners)
            found = count_tiles(n_q, n_k, block_q, block_k, bool(not seen.all()))
            assert found == want and isinstance(found, int)
    refuses_blocks(count_tiles, 8, 8)


@by_cut
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 2e-5), (np.float16, 1e-2)])
def test_tiled_attention(rng, cut, dtype, tolerance):
    n_q, n_k, *blocks = cut
    for batch, far, causal in itertools.product([((), ()), ((2, 1), (2, 3)), ((), (3,))], [0, 1e3, 1e7], [False, True]):
        sizes = (*batch[0], n_q, 6), (*batch[1], n_k, 6), (*batch[1], n_k, 3)
        Q, K, V = (rng.normal(size=size).astype(dtype) for size in sizes)
        if far and dtype is np.float16:
            continue
        if far:  # for one row after the other: far below 0, far above
            Q[..., 0], K[..., 0], error = far * (-1.0) ** np.arange(n_q), 1, max(tolerance, far * np.finfo(dtype).eps)
        places = rng.random((*batch[1], n_q, n_k)) < 0.4
        places[..., : n_k // 2], places[..., 2, :] = True, True
        for mask in (None, np.arange(n_k) >= 3, places, np.ones((1, n_k), bool), np.arange(n_q)[:, None] % 2 == 0):
            given = [x.copy() for x in (Q, K, V, *([] if mask is None else [mask]))]
            with uninitialised_is_nan():
                O = tiled_attention(*given[:3], *blocks, causal=causal, mask=None if mask is None else given[3])
            want = plain(Q, K, V, (False if mask is None else mask) | (later(n_q, n_k) & causal))
            assert O.dtype == dtype and O.shape == want.shape
            assert np.allclose(O, want, *[8 * error if far else tolerance] * 2)
            assert all(map(np.array_equal, given, (Q, K, V, mask)))


def test_tiled_attention_arguments(rng):
    Q, K, V = (rng.normal(size=size) for size in ((6, 4), (5, 4), (5, 3)))
    refuses_blocks(tiled_attention, Q, K, V)
    for *wrong, mask in (
        (Q[:, :3], K, V, None),
        (Q, K, V[:4], None),
        *((Q, K, V, np.ones(n, bool)) for n in (2, (6, 7))),
    ):
        with pytest.raises(ValueError, match=r"\d+, ?\d*.*\d+, \d+"):
            tiled_attention(*wrong, 2, 2, mask=mask)
    assert not tiled_attention(Q, K[:0], V[:0], 4, 4).any() and tiled_attention(Q[:0], K, V, 4, 4).shape == (0, 3)


@by_cut
def test_tiled_attention_tiles(rng, cut):
    """NaN in a value shows who computes its tile: 0 · NaN is NaN."""
    n_q, n_k, block_q, block_k = cut
    Q, K, V = (rng.normal(size=(n, 4)) for n in (n_q, n_k, n_k))
    for causal, j in itertools.product([False, True], range(n_k)):
        hidden, bad = np.arange(n_k) == j, V.copy()
        bad[j] = np.nan
        O = tiled_attention(Q, K, bad, block_q, block_k, causal, hidden)
        first = j // block_k * block_k  # the first key of the tile
        computed = [not causal or first < min(i // block_q * block_q + block_q, n_q) for i in range(n_q)]
        empty = int(n_k == 1 or (causal and j == 0))  # the first query may see no key: its output is 0
        assert np.array_equal(np.isnan(O).any(-1)[empty:], computed[empty:])


@pytest.mark.parametrize("mode", ["", "causal", "mask", "causal and mask"])
def test_tiled_attention_memory(rng, mode):
    for n_q, n_k, *blocks in [(256, 256, 8, 256), (256, 256, 256, 8), (2048, 64, 16, 64), (64, 2048, 16, 64)]:
        Q, K, V = (rng.normal(size=(n, 2)) for n in (n_q, n_k, n_k))
        options = {"causal": "causal" in mode, "mask": np.arange(n_k) >= n_k - 9 if "mask" in mode else None}
        peak, _, O = measure_arrays(tiled_attention, Q, K, V, *blocks, **options)
        assert peak <= 8 * (6 * blocks[0] * blocks[1] + 24 * (max(n_q, n_k) + sum(blocks))) + BOOKKEEPING_BYTES
    for n in (1024, 4096):
        Q, K, V = rng.normal(size=(3, n, 64)).astype(np.float32)
        hidden = options["causal"] & later(n, n) | ("mask" in mode and np.arange(n) >= n - 9)
        options["mask"] = np.arange(n) >= n - 9 if "mask" in mode else None
        peak, _, O = measure_arrays(tiled_attention, Q, K, V, 128, 128, warm=False, **options)
        assert peak <= 4 * Q.nbytes
        rows = np.arange(0, n, 111)
        assert np.allclose(O[rows], plain(Q[rows], K, V, np.broadcast_to(hidden, (n, n))[rows]), atol=1e-4)


def moved(rng, function, cut, dtype=np.float32, sram_bytes=1 << 20, far=0.0, d=6, d_v=4):
    """Runs on a machine: the machine, and bytes in all of Q, K, V, O and the scores, and loaded of Q, K and V."""
    n_q, n_k, *blocks = cut
    Q, K, V = (rng.normal(size=size).astype(dtype) for size in ((n_q, d), (n_k, d), (n_k, d_v)))
    Q[:, 0], K[:, 0] = far, np.linspace(0, 1, n_k)
    machine = Machine(sram_bytes, sealed=True)
    inputs = [machine.hbm(x) for x in (Q, K, V)]
    O = function(machine, *inputs, *blocks)
    loaded = [machine.loaded_from(x) for x in inputs]
    assert machine.host_read == machine.in_use == 0
    assert O.numpy().dtype == dtype and np.allclose(
        O.numpy(), plain(Q, K, V), *[1e-3 if dtype == np.float32 else 1e-9] * 2
    )
    return machine, [*(x.nbytes for x in (Q, K, V, O)), n_q * n_k * Q.itemsize], loaded


@by_cut
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiled_traffic(rng, cut, dtype):
    n_q, n_k, block_q, block_k = cut
    machine, (Q, K, V, O, _), loaded = moved(rng, tiled_traffic, cut, dtype, far=900.0)
    t_q, t_k, size = -(-n_q // block_q), -(-n_k // block_k), np.dtype(dtype).itemsize
    state = O + 2 * n_q * size
    if loaded == [Q, t_q * K, t_q * V] and t_q * t_k > 1:  # queries outside
        assert machine.loaded == sum(loaded) and machine.stored == O
    else:
        assert loaded == [t_k * Q, K, V]
        assert (t_k - 1) * O <= machine.loaded - sum(loaded) <= (t_k + 2) * state + O
        assert machine.stored <= (t_k + 2) * state + O
    tile = [min(block_q, n_q) * 6, min(block_k, n_k) * 6, min(block_q, n_q) * min(block_k, n_k)]
    assert sum(tile) * size <= machine.high_water <= size * (7 * tile[0] + 4 * tile[1] + 4 * tile[2] + 8 * block_q)
    refuses_blocks(tiled_traffic, Machine(1000), *np.ones((3, 4, 4)))
    with pytest.raises(MemoryError):
        moved(rng, tiled_traffic, (40, 40, 16, 16), sram_bytes=1600)


@by_cut
def test_naive_traffic(rng, cut):
    n_q, n_k, block_q, block_k = cut
    machine, (Q, K, V, O, S), loaded = moved(rng, naive_traffic, cut, far=900.0)
    t_q, t_k = -(-n_q // block_q), -(-n_k // block_k)
    assert loaded[:2] in ([Q, t_q * K], [t_k * Q, K]) and loaded[2] in (t_q * V, V)
    again = (t_k - 1) * O if loaded[2] == V and t_q > 1 else 0  # keys outside: the output so far
    assert machine.loaded == sum(loaded) + 2 * S + again and machine.stored == 2 * S + O + again
    refuses_blocks(naive_traffic, Machine(1000), *np.ones((3, 4, 4)))
    with pytest.raises(MemoryError):
        moved(rng, naive_traffic, (40, 40, 16, 16), sram_bytes=1600)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_choose_blocks(rng, dtype):
    size = np.dtype(dtype).itemsize
    for n_elements, d in [(12 * 16, 16), (16 * 4, 4), *((int(2**n), 32) for n in rng.uniform(9, 15, 8)), (1 << 17, 16)]:
        blocks = block_q, block_k = choose_blocks(n_elements * size, d, size)
        n_q, n_k = (min(2 * block + 1, 3000) for block in blocks)
        moved(rng, tiled_traffic, (n_q, n_k, *blocks), dtype, n_elements * size, d=d, d_v=d)
        if n_elements < 1 << 12:
            continue
        n = 1 << 16  # a query takes its row, its output, its product, and its scores with some keys
        queries_outside, keys_outside = 2 * n + 2 * n * n / block_q, 2 * n + 3 * n * n / block_k
        assert min(queries_outside, keys_outside) <= 4 * (2 * n + 2 * n * n / ((n_elements - 16 * d) / (3 * d + 19)))
        assert choose_blocks(n_elements * 4, d) == choose_blocks(n_elements * 4, d, 4)
    machine, *_ = moved(rng, tiled_traffic, (1024, 1024, *choose_blocks(1 << 16, 32)), sram_bytes=1 << 16, d=32, d_v=32)
    assert machine.traffic <= 4 * 4 * 2 * 1024 * 32 * (1 + 1024 / 138)
    with pytest.raises(ValueError, match=r"160.*64|64.*160"):
        choose_blocks(160, 64)


def test_io_exponents(rng, monkeypatch):
    grid, runs = ([16, 32, 48], [4, 8, 24], [4096, 8192, 40_000]), []

    def moves(machine, Q, K, V, *blocks):
        assert machine.traffic == 0 and Q.dtype == np.float32 and Q.shape == K.shape == V.shape
        assert blocks == (machine.sram_bytes % 7 + 1, Q.shape[1] % 5 + 1)
        for _ in range(int(rng.integers(3, 400_000 // machine.sram_bytes + 5))):
            machine.store(machine.allocate((1, 4), np.float32), np.s_[:], machine.load(Q, np.s_[:1, :4]))
            machine.load(K, np.s_[:2])
        runs.append((*Q.shape, machine.sram_bytes, machine.traffic))

    monkeypatch.setattr("tiling.tiled_traffic", moves)
    monkeypatch.setattr("tiling.choose_blocks", lambda M, d, size=4: (M % 7 + 1, d % 5 + 1) if size == 4 else None)
    found = io_exponents(*grid)
    assert sorted(run[:3] for run in runs) == sorted(itertools.product(*grid))
    logs = np.log(runs)
    want = np.linalg.lstsq(np.c_[np.ones(len(logs)), logs[:, :3]], logs[:, 3], rcond=None)[0]
    assert found == pytest.approx(dict(zip("NdM", want[1:], strict=True)))
    for i, name in enumerate(("Ns", "ds", "sram_sizes")):
        for values in ([], [64], [64, 64]):
            with pytest.raises(ValueError, match=name):
                io_exponents(*grid[:i], values, *grid[i + 1 :])
