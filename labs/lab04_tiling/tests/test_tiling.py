"""Lab 04's suite: attention in tiles, exact and small, and the bytes it moves on a machine that counts them."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import tiling
from tiling import choose_blocks, count_tiles, tiled_attention

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays
from labkit.simulated_memory import HBMArray, Machine, SRAMOverflow, watch_machines
from labkit.testing import io_formulas as forms
from labkit.testing.compare import (
    as_array,
    assert_at_most,
    assert_close,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_tuple,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.programs import program
from labkit.testing.reference import attention, random_qkv, roundings


def on_machine(function, arrays, blocks, sram_bytes, sealed=True, used=False):
    """Call tiled_traffic or naive_traffic, by its name, on a fresh machine: what the call moved, and its output.

    `blocks` are (block_q, block_k), or a dict to pass them by name. A sealed machine gets handles of the arrays, any
    other the arrays themselves. With `used`, the machine has counted something before.
    """
    machine = Machine(sram_bytes, sealed=sealed)
    given = [machine.hbm(array) for array in arrays] if sealed else list(arrays)
    positional, named = ((), blocks) if isinstance(blocks, dict) else (blocks, {})
    if used:
        machine.store(given[0], np.s_[:], machine.load(given[0], np.s_[:]))

    def counts():
        return {
            "loaded": machine.loaded,
            "stored": machine.stored,
            **{name: machine.loaded_from(array) for name, array in zip("qkv", given, strict=True)},
        }

    before = counts()
    result = getattr(tiling, function)(machine, *given, *positional, **named)
    moved = {name: now - before[name] for name, now in counts().items()}
    is_handle = isinstance(result, HBMArray)
    state = {"in_use": machine.in_use, "high_water": machine.high_water, "host_read": machine.host_read}
    told = {"is_handle": is_handle, "kind": type(result).__name__, "stored_to_output": machine.stored_to(result)}
    return {**moved, **state, **told, "output": result.numpy() if is_handle else result}


@program
def scores_computed(Q, K, V, block_q, block_k):
    """(output, entries) of a causal tiled_attention: the entries are those of its products over a width of d.

    Where no other product is as wide, they are the scores. Who copies Q and K to plain arrays first is not seen; then
    the count is too small, never too large.
    """
    n_entries, d = 0, Q.shape[-1]

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
            nonlocal n_entries
            plain = [np.asarray(x) if isinstance(x, Watched) else x for x in inputs]
            if out is not None:
                options["out"] = tuple(np.asarray(x) if isinstance(x, Watched) else x for x in out)
            result = getattr(ufunc, method)(*plain, **options)
            if ufunc is np.matmul and plain[0].shape[-1] == d:
                n_entries += result.size
            return result.view(Watched) if isinstance(result, np.ndarray) else result

    output = tiling.tiled_attention(*(x.view(Watched) for x in (Q, K, V)), block_q, block_k, causal=True)
    return output, n_entries


@program
def exponents_of_stand_ins(arguments, called, chosen):
    """io_exponents with stand-ins for the two functions that it calls; `arguments` are its own, by name.

    `chosen(sram_bytes, d, dtype_bytes)` says what choose_blocks returns. `called(how)` is told how tiled_traffic was
    called and says what it then moves: (loads, stores, elements of a row of Q moved each time).
    """

    def tiled_traffic(machine, Q, K, V, block_q, block_k):
        how = {
            "shapes": [x.shape for x in (Q, K, V)],
            "dtypes": [str(x.dtype) for x in (Q, K, V)],
            "blocks": (block_q, block_k),
            "sram_bytes": machine.sram_bytes,
            "traffic_before": machine.traffic,
        }
        n_loads, n_stores, width = called(how)
        O = machine.allocate((1, width), np.float32)
        for n in range(n_loads):
            tile = machine.load(Q, np.s_[:1, :width])
            if n < n_stores:
                machine.store(O, np.s_[:], tile)
        return machine.allocate(Q.shape, np.float32)

    def choose_blocks(sram_bytes, d, dtype_bytes=4):
        return chosen(sram_bytes, d, dtype_bytes)

    with _changed(tiling, tiled_traffic=tiled_traffic, choose_blocks=choose_blocks):
        return tiling.io_exponents(**arguments)


def exponents_and_machines(Ns, ds, sram_sizes):
    """io_exponents, and of each machine it used (shape of the first input loaded from, sram_bytes, traffic)."""
    with watch_machines() as machines:
        exponents = tiling.io_exponents(Ns, ds, sram_sizes)
    loaded = [(machine, [each for each in machine._ledger.moved.values() if each.loaded]) for machine in machines]
    inputs = [(machine, [each.hbm for each in moved if not each.stored]) for machine, moved in loaded]
    return exponents, [(arrays[0].shape, machine.sram_bytes, machine.traffic) for machine, arrays in inputs if arrays]


@program
@contextlib.contextmanager
def _changed(owner, **attributes):
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


DTYPES = (np.float16, np.float32, np.float64)
CUTS = {
    "even": (32, 32, 8, 8),
    "wide": (24, 40, 4, 10),
    "tall": (40, 24, 10, 4),
    "ragged": (63, 129, 16, 10),
    "ragged_tall": (129, 63, 10, 16),
    "few_queries": (5, 70, 4, 16),
    "one_by_one": (7, 5, 1, 1),
    "ragged_queries": (10, 20, 8, 4),
    "rows": (9, 11, 1, 4),
    "columns": (11, 9, 4, 1),
    "larger_than_all": (6, 7, 50, 40),
}
by_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


class TestCountTiles:
    def test_worked_example(self):
        assert_count((8, 8, 4, 2), False, 8)
        assert_count((8, 8, 4, 2), True, 6)

    @causal_or_not
    @by_cut
    def test_every_tile_with_an_entry(self, cut, causal):
        assert_count(cut, causal)

    @causal_or_not
    def test_random_sizes(self, rng, causal):
        for _ in range(60):
            assert_count(tuple(int(n) for n in (*rng.integers(1, 40, 2), *rng.integers(1, 14, 2))), causal)

    @pytest.mark.parametrize("cut", [(0, 8, 4, 4), (8, 0, 4, 4), (0, 0, 1, 1)])
    @causal_or_not
    def test_no_queries_or_no_keys(self, cut, causal):
        assert_count(cut, causal, 0)

    def test_keys_beyond_the_last_query(self):
        assert_count((6, 1000, 4, 8), True, 2)

    def test_result_is_an_int(self):
        for causal in (False, True):
            assert_type("the number of tiles", count_tiles(9, 7, 2, 3, causal), (int, np.integer), "an int")

    @pytest.mark.parametrize("name", ["block_q", "block_k"])
    @pytest.mark.parametrize("size", [0, -2])
    def test_block_sizes_below_one(self, name, size):
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        assert_raises(ValueError, lambda: count_tiles(8, 8, **blocks), when=f"for {name}={size}", mentions=[name])


def assert_count(cut, causal, want=None):
    """Compare with going through every tile and asking whether one of its entries counts."""
    N_q, N_k, block_q, block_k = cut
    visited = tiles_with_an_entry(*cut, causal)
    want = len(visited) if want is None else want
    n_q, n_k = -(-N_q // block_q), -(-N_k // block_k)
    square = max(block_q, block_k)
    usual = {
        "last, smaller tiles are left out: round up": (N_q // block_q) * (N_k // block_k),
        "block_q and block_k are swapped": len(tiles_with_an_entry(N_q, N_k, block_k, block_q, causal)),
    }
    if causal:
        usual = {
            "causal is ignored": n_q * n_k,
            "tile (I, J) is taken when J ≤ I, which is right for square tiles only": sum(
                min(i + 1, n_k) for i in range(n_q)
            ),
            "the first query of a tile decides, but its last one sees the most": sum(
                c * block_k <= r * block_q for r in range(n_q) for c in range(n_k)
            ),
            "tiles that the diagonal crosses are left out": sum(
                min((c + 1) * block_k, N_k) - 1 <= r * block_q for r in range(n_q) for c in range(n_k)
            ),
            "entries on the diagonal itself are taken for hidden": sum(
                c * block_k < min((r + 1) * block_q, N_q) - 1 for r in range(n_q) for c in range(n_k)
            ),
            "the last block of queries is taken for a full one": sum(
                c * block_k < (r + 1) * block_q for r in range(n_q) for c in range(n_k)
            ),
            "the diagonal is counted from the bottom right": sum(
                c * block_k <= min((r + 1) * block_q, N_q) - 1 + N_k - N_q for r in range(n_q) for c in range(n_k)
            ),
            "half of all tiles are taken": n_q * n_k // 2,
            "the larger block size is used both ways": len(tiles_with_an_entry(N_q, N_k, square, square, True)),
        } | usual
    name = f"count_tiles({N_q}, {N_k}, {block_q}, {block_k}, causal={causal})"
    assert_equal(name, count_tiles(N_q, N_k, block_q, block_k, causal), want, suspects=usual)


def tiles_with_an_entry(N_q, N_k, block_q, block_k, causal):
    entries = np.ones((N_q, N_k), bool)
    i, j = np.nonzero(np.tril(entries) if causal else entries)
    return set(zip((i // block_q).tolist(), (j // block_k).tolist(), strict=True))


# Attention: what is right, and what usual mistakes make of it


def assert_attention(Q, K, V, block_q, block_k, causal=False, mask=None, got=None, hint="", usual=None):
    """Compare an output (by default the student's, from tiled_attention) with attention computed in float64."""
    options = {"causal": causal} | ({} if mask is None else {"mask": mask})
    got = tiled_attention(Q, K, V, block_q, block_k, **options) if got is None else got
    want = attention(Q, K, V, causal=causal, mask=mask).output
    n_steps = -(-K.shape[-2] // block_k)
    plain = [looser(order.output, want, n_steps) for order in roundings(Q, K, V, causal=causal, mask=mask)]
    usual = suspects(Q, K, V, block_q, block_k, causal, mask) | (usual or {})
    assert_close("the output", got, want, plain=plain, dtype=Q.dtype, suspects=usual, hint=hint)


def looser(plain, want, n_steps):
    """`plain`, moved away from `want` by half a rounding for each of `n_steps`: every tile may rescale once."""
    size = np.abs(want).max(initial=0)
    away = np.where(plain.astype(np.float64) < want, -1, 1) * n_steps * np.finfo(plain.dtype).eps / 2 * size
    return (plain.astype(np.float64) + away).astype(plain.dtype)


def suspects(Q, K, V, block_q, block_k, causal, mask):
    """What usual mistakes make of the output: {cause: function that computes it}."""
    (N_q, d), (N_k, d_v) = Q.shape[-2:], V.shape[-2:]
    i, j = np.arange(N_q)[:, None], np.arange(N_k)
    hidden = (j > i) if causal else np.zeros((N_q, N_k), bool)
    hidden = hidden if mask is None else hidden | mask

    def of(hidden, **options):
        return lambda: attention(Q, K, V, mask=hidden, **options).output

    def summed(rescale_o, rescale_l):
        return lambda: of_blocks(Q, K, V, hidden, block_k, rescale_o, rescale_l)

    found = {
        "the output is not rescaled when the maximum moves (l is)": summed(False, True),
        "l is not rescaled when the maximum moves (the output is)": summed(True, False),
        "nothing is rescaled when the maximum moves": summed(False, False),
        "the scores are not divided by √d": of(hidden, scale=1.0),
        "the scores are divided by d in place of √d": of(hidden, scale=1 / d),
        "each block of keys has a softmax of its own, and their outputs are averaged": lambda: averaged(
            Q, K, V, hidden, block_k
        ),
    }
    if N_k % block_k:
        found["the last, smaller block of keys is dropped"] = of(hidden | (j >= N_k // block_k * block_k))
        moved = np.where(j >= N_k // block_k * block_k, N_k - block_k, 0)
        if N_k > block_k:
            found["the last block of keys is moved back to full size, so that keys count twice"] = lambda: twice(
                Q, K, V, hidden, moved, block_k
            )
    if N_q % block_q:
        found["the last, smaller block of queries is left as it was allocated"] = lambda: np.where(
            i < N_q // block_q * block_q, attention(Q, K, V, mask=hidden).output, 0
        )
    if d_v != d:
        found["the scale is taken from the width of V in place of Q's"] = of(hidden, scale=d_v**-0.5)
    without_key = np.all(np.broadcast_to(hidden, (*hidden.shape[:-2], N_q, N_k)), -1)[..., None]
    if without_key.any():
        found["a row without any key is spread evenly over all of them"] = lambda: np.where(
            without_key, V.astype(float).mean(-2, keepdims=True), attention(Q, K, V, mask=hidden).output
        )
    if causal:
        given = False if mask is None else mask
        square = min(block_q, block_k)
        first_key, last_query = j // block_k * block_k, np.minimum((i // block_q + 1) * block_q, N_q) - 1
        found |= {
            "causal is ignored": of(np.zeros((N_q, N_k), bool) | given),
            "a query does not see its own key: hidden is j > i, not j ≥ i": of((j >= i) | given),
            "the diagonal is counted from the bottom right": of((j > i + N_k - N_q) | given),
            "positions are compared inside the tile, not in the whole sequence": of(
                (j % block_k > i % block_q) | (first_key > last_query) | given
            ),
            "tiles that the diagonal crosses are taken whole": of((first_key > last_query) | given),
            "the first query of a tile decides whether it is skipped, but its last one sees the most": of(
                (j > i) | (first_key > i // block_q * block_q) | given
            ),
            "tile (I, J) is taken when J ≤ I, which is right for square tiles only": of(
                (j > i) | (j // block_k > i // block_q) | given
            ),
            "tiles that the diagonal crosses are left out": of(
                ((j // block_k + 1) * block_k - 1 > i // block_q * block_q) | given
            ),
            "one block size is used for both when tiles are skipped": of((j > i) | (j // square > i // square) | given),
        }
    if mask is not None:
        own = (j > i) if causal else np.zeros((N_q, N_k), bool)
        found |= {
            "the mask is ignored": of(own),
            "True is taken as 'keep': here True means masked out": of(own | ~mask),
        }
        if mask.ndim > 2:
            found["the first mask of the batch is used for all"] = of(own | mask[(0,) * (mask.ndim - 2)])
        if mask.shape[-1] == N_k and N_k > block_k:
            found["every tile gets the mask of the first block of keys"] = of(own | np.take(mask, j % block_k, axis=-1))
    return found


def of_blocks(Q, K, V, hidden, block_k, rescale_o, rescale_l):
    """Attention over blocks of keys whose sums are taken at the running maximum, rescaled at the end or never."""
    with np.errstate(all="ignore"):
        s = np.where(hidden, -np.inf, np.einsum("...id,...jd->...ij", Q, K).astype(float) / math.sqrt(Q.shape[-1]))
        cuts = range(0, K.shape[-2], block_k)
        peaks = np.maximum.accumulate([s[..., c : c + block_k].max(-1) for c in cuts])
        at = np.where(np.isfinite(peaks), peaks, 0)
        parts = [np.exp(s[..., c : c + block_k] - at[n][..., None]) for n, c in enumerate(cuts)]
        mend = np.exp(at - at[-1])[..., None]
        o = sum(
            p @ V[..., c : c + block_k, :].astype(float) * (mend[n] if rescale_o else 1)
            for n, (c, p) in enumerate(zip(cuts, parts, strict=True))
        )
        l = sum(p.sum(-1, keepdims=True) * (mend[n] if rescale_l else 1) for n, p in enumerate(parts))
        return o / np.where(l == 0, 1, l)


def averaged(Q, K, V, hidden, block_k):
    cuts = range(0, K.shape[-2], block_k)
    hidden = np.broadcast_to(hidden, (*hidden.shape[:-2], Q.shape[-2], K.shape[-2]))
    parts = [slice(c, c + block_k) for c in cuts]
    return sum(attention(Q, K[..., p, :], V[..., p, :], mask=hidden[..., p]).output for p in parts) / len(parts)


def twice(Q, K, V, hidden, moved, block_k):
    extra = np.arange(int(moved.max()), K.shape[-2])
    kept = np.arange(K.shape[-2] // block_k * block_k)
    order = np.concatenate([kept, extra])
    hidden = np.broadcast_to(hidden, (*hidden.shape[:-2], Q.shape[-2], K.shape[-2]))
    return attention(Q, K[..., order, :], V[..., order, :], mask=hidden[..., order]).output


class TestTiledAttention:
    def test_worked_example(self):
        Q, K, V = (np.array(x, np.float32) for x in ([[1, 0]], [[1, 0], [0, 1]], [[1], [0]]))
        assert_attention(Q, K, V, 1, 1)

    @causal_or_not
    @by_cut
    def test_shapes(self, rng, cut, causal):
        Q, K, V = random_qkv(rng, n_queries=cut[0], n_keys=cut[1], d=5, d_v=3)
        hint = "the last tiles are smaller: a buffer has block_q or block_k rows, the tile fewer"
        if causal:
            hint = "position i + row of the tile against j + column; the last query of a tile decides what it visits"
        assert_attention(Q, K, V, *cut[2:], causal=causal, hint=hint)

    @pytest.mark.parametrize("d_v", [20, 4, 1])
    def test_values_of_another_width(self, rng, d_v):
        Q, K, V = random_qkv(rng, n_queries=21, n_keys=33, d=8, d_v=d_v)
        assert_attention(Q, K, V, 8, 5, hint="d is taken for d_v somewhere")

    def test_maximum_moves_at_every_tile(self, rng):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=40, d=4, d_v=6, logit_scale=2)
        Q[:, 0] = np.abs(Q[:, 0]) + 2
        K[:, 0] = np.sort(K[:, 0]) * 3
        assert_attention(Q, K, V, 5, 8, hint="a new maximum in a row: everything summed before belongs to the old one")

    def test_last_keys_count_most(self, rng):
        Q, K, V = random_qkv(rng, n_queries=10, n_keys=23, d=4)
        Q[:, 0], K[:, 0] = 4, np.where(np.arange(23) > 20, 4, 0)
        assert_attention(Q, K, V, 4, 5)

    @pytest.mark.parametrize("batch", [(3,), (2, 3), (1, 1)])
    @causal_or_not
    def test_batch(self, rng, batch, causal):
        Q, K, V = random_qkv(rng, n_queries=13, n_keys=18, d=4, d_v=6, batch=batch)
        assert_attention(Q, K, V, 5, 7, causal=causal, hint="each head has rows of m and l of its own")

    @pytest.mark.parametrize("shared", ["K and V", "Q"])
    def test_leading_axes_broadcast(self, rng, shared):
        Q, K, V = random_qkv(rng, n_queries=13, n_keys=18, d=4, d_v=6, batch=(2, 3))
        Q, K, V = (Q[:1, :1], K, V) if shared == "Q" else (Q, K[:, :1], V[:, :1])
        assert_attention(Q, K, V, 5, 7, hint=f"{shared} has a leading axis of 1, shared by all heads")

    def test_queries_without_a_batch(self, rng):
        Q, K, V = random_qkv(rng, n_queries=9, n_keys=14, d=4, batch=(3,))
        assert_attention(Q[0], K, V, 4, 5, hint="the output has the leading axes of all three, broadcast")

    @pytest.mark.parametrize("dtype", DTYPES)
    @causal_or_not
    def test_precisions(self, rng, dtype, causal):
        Q, K, V = random_qkv(rng, n_queries=33, n_keys=41, d=8, d_v=12, dtype=dtype)
        assert_attention(Q, K, V, 10, 12, causal=causal)

    @pytest.mark.parametrize("logit_scale", [30, -100])
    @causal_or_not
    def test_large_logits(self, rng, logit_scale, causal):
        Q, K, V = random_qkv(rng, n_queries=31, n_keys=45, d=16, logit_scale=logit_scale)
        assert_attention(Q, K, V, 8, 16, causal=causal, hint="take the maximum from the scores before exp")

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_all_logits_far_from_zero(self, rng, sign):
        Q, K, V = random_qkv(rng, n_queries=10, n_keys=17, d=16)
        Q[:, 0], K[:, 0] = 64, sign * 64
        assert_attention(Q, K, V, 4, 5, hint="m must start below every score: at −inf")

    @pytest.mark.parametrize("shape", [(19, 30), (1, 30), (30,), (19, 1)], ids=str)
    @causal_or_not
    def test_mask(self, rng, shape, causal):
        Q, K, V = random_qkv(rng, n_queries=19, n_keys=30, d=6, d_v=4)
        mask = rng.random(shape) < 0.4
        assert_attention(Q, K, V, 5, 8, causal=causal, mask=mask, hint=f"the mask has shape {shape} and broadcasts")

    @pytest.mark.parametrize(
        "shape", [(2, 3, 19, 30), (2, 1, 19, 30), (3, 19, 30), (2, 1, 1, 30), (1, 3, 19, 1)], ids=str
    )
    @causal_or_not
    def test_mask_of_each_batch_entry(self, rng, shape, causal):
        Q, K, V = random_qkv(rng, n_queries=19, n_keys=30, d=6, d_v=4, batch=(2, 3))
        mask = rng.random(shape) < 0.4
        assert_attention(Q, K, V, 5, 8, causal=causal, mask=mask, hint=f"the mask has shape {shape} and broadcasts")

    @pytest.mark.parametrize("masked", ["first", "middle", "last", "all"])
    def test_whole_tiles_masked(self, rng, masked):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=24, d=6, d_v=5)
        mask = np.zeros((12, 24), bool)
        mask[:, {"first": np.s_[:8], "middle": np.s_[8:16], "last": np.s_[16:], "all": np.s_[:]}[masked]] = True
        assert_attention(Q, K, V, 4, 8, mask=mask, hint="−inf − (−inf): a tile of such scores changes nothing")

    @causal_or_not
    def test_rows_without_a_key(self, rng, causal):
        Q, K, V = random_qkv(rng, n_queries=14, n_keys=20, d=6, d_v=5, batch=(2,))
        mask = rng.random((2, 14, 20)) < 0.3
        mask[0, 3] = mask[1, 7:9] = True
        mask[:, 0, 0] = True
        assert_attention(Q, K, V, 4, 6, causal=causal, mask=mask, hint="0/0 or −inf − (−inf): then the output is 0")

    def test_mask_with_large_logits(self, rng):
        Q, K, V = random_qkv(rng, n_queries=14, n_keys=20, d=16, logit_scale=60)
        mask = rng.random((14, 20)) < 0.5
        mask[:, 0] = False
        assert_attention(Q, K, V, 4, 6, mask=mask, hint="masked scores are −inf: no finite number is below every score")

    def test_arguments_are_left_alone(self, rng):
        Q, K, V = random_qkv(rng, n_queries=9, n_keys=11, d=4)
        mask = rng.random((9, 11)) < 0.3
        before = [x.copy() for x in (Q, K, V, mask)]
        tiled_attention(Q, K, V, 4, 4, causal=True, mask=mask)
        for name, now, then in zip(("Q", "K", "V", "mask"), (Q, K, V, mask), before, strict=True):
            assert_unchanged(name, now, then)

    def test_no_keys_and_no_queries(self, rng):
        Q, K, V = random_qkv(rng, n_queries=5, n_keys=6, d=4, d_v=3)
        got = as_array("the output", tiled_attention(Q, K[:0], V[:0], 4, 4))
        require(got.shape == (5, 3) and not got.any(), f"without keys the output is zeros of (5, 3), got {got.shape}")
        assert_equal("the output's shape without queries", tiled_attention(Q[:0], K, V, 4, 4).shape, (0, 3))

    @pytest.mark.parametrize("blocks", [(6, 10), (10, 6), (8, 8), (7, 3), (3, 7), (16, 4), (4, 16)], ids=str)
    @pytest.mark.parametrize("sizes", [(40, 40), (23, 50), (50, 23)], ids=str)
    def test_causal_tiles_are_skipped(self, rng, blocks, sizes):
        (block_q, block_k), (N_q, N_k) = blocks, sizes
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=4)
        for start in range(0, N_q, block_q):
            stop = min(start + block_q, N_q)
            unseen = -(-stop // block_k) * block_k  # the first key of the first tile that these queries do not visit
            K_trap, V_trap = K.copy(), V.copy()
            K_trap[unseen:] = V_trap[unseen:] = np.nan
            with np.errstate(all="ignore"):
                got = as_array("the output", tiled_attention(Q, K_trap, V_trap, block_q, block_k, causal=True))
            n_spoilt = int(np.isnan(got[:stop]).any(axis=-1).sum())
            require(
                not n_spoilt,
                f"NaN laid into keys {unseen} and up reaches {n_spoilt} of the queries 0 to {stop - 1}, whose tiles of "
                f"{block_q} × {block_k} end at key {unseen - 1}\nUsual cause: tiles without a visible entry are "
                "computed and then masked; the rule for leaving them out holds\nfor square tiles only; or other block "
                "sizes are used than the ones given",
            )
            assert_attention(Q[:stop], K, V, block_q, block_k, causal=True, got=got[:stop])

    @pytest.mark.parametrize("cut", [(40, 40, 6, 10), (23, 50, 16, 4), (50, 23, 4, 16)], ids=str)
    def test_no_scores_beyond_the_tiles(self, rng, cut):
        N_q, N_k, block_q, block_k = cut
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=11, d_v=5)
        output, n_scores = scores_computed(Q, K, V, block_q, block_k)
        visited = tiles_with_an_entry(*cut, True)
        area = sum(min(block_q, N_q - r * block_q) * min(block_k, N_k - c * block_k) for r, c in visited)
        assert_at_most(
            f"the scores computed for N_q = {N_q}, N_k = {N_k}, blocks of {block_q} × {block_k}, causal",
            n_scores,
            area,
            unit="entries",
            hint=f"The {len(visited)} tiles to visit have {area:,} entries, all tiles {N_q * N_k:,}. Usual cause: the "
            "scores of a tile are computed before it is skipped",
        )
        assert_attention(Q, K, V, block_q, block_k, causal=True, got=output)

    @pytest.mark.parametrize("mode", ["causal", "mask", "causal and mask"])
    def test_memory(self, rng, mode):
        self.assert_small(rng, 1024, 64, mode, blocks=(64, 64))

    def test_memory_at_4096(self, rng):
        self.assert_small(rng, 4096, 64, blocks=(256, 128))

    def test_memory_of_a_batch(self, rng):
        self.assert_small(rng, 512, 32, batch=(2, 3), blocks=(32, 64))

    def assert_small(self, rng, N, d, mode="", batch=(), blocks=()):
        Q, K, V = (rng.standard_normal((*batch, N, d), dtype=np.float32) for _ in "QKV")
        options = {"causal": "causal" in mode} | ({"mask": rng.random(N) < 0.1} if "mask" in mode else {})
        small = {name: value[:8] if name == "mask" else value for name, value in options.items()}
        tiled_attention(Q[..., :8, :], K[..., :8, :], V[..., :8, :], 4, 4, **small)
        peak = measure_arrays(tiled_attention, Q, K, V, *blocks, warm=False, **options).peak_bytes
        matrix = 4 * math.prod(batch) * N * N
        assert_at_most(
            f"the peak at N = {N}, d = {d}, blocks of {blocks[0]} × {blocks[1]}{mode and ', '}{mode}",
            peak,
            4 * Q.nbytes,
            hint="The limit is 4·N·d elements, the output included; one N × N array of the scores would be "
            f"{matrix:,} bytes, one of booleans {matrix // 4:,}",
        )

    @pytest.mark.parametrize(
        "cut", [(256, 256, 8, 256), (256, 256, 256, 8), (64, 2048, 64, 16), (2048, 64, 16, 64)], ids=str
    )
    def test_small_blocks_need_little(self, rng, cut):
        N_q, N_k, *blocks = cut
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=2, dtype=np.float64)
        tiled_attention(Q, K, V, *blocks)
        peak = measure_arrays(tiled_attention, Q, K, V, *blocks, warm=False).peak_bytes
        tile, copies = 8 * math.prod(blocks), 6 * 8 * 4 * (max(N_q, N_k) + sum(blocks))
        assert_at_most(
            f"the peak at N_q = {N_q}, N_k = {N_k}, d = 2, blocks of {blocks[0]} × {blocks[1]}, float64",
            peak,
            6 * tile + copies + BOOKKEEPING_BYTES,
            hint=f"A tile of scores has {tile:,} bytes\n"
            "Usual cause: block sizes of your own, one of the two used for both, or whole rows of scores",
        )

    def test_one_block_is_one_tile(self, rng):
        N = 512
        Q, K, V = random_qkv(rng, n_queries=N, d=4, dtype=np.float64)
        tiled_attention(Q[:8], K, V, 8, 8)
        peak = measure_arrays(tiled_attention, Q, K, V, N, N, warm=False).peak_bytes
        require(
            peak >= 8 * N * N,
            f"the peak with blocks of {N} × {N} is {peak:,} bytes, but one tile of scores has {8 * N * N:,}\n"
            "Usual cause: the block sizes given are not the ones used",
        )

    @pytest.mark.parametrize("name", ["block_q", "block_k"])
    @pytest.mark.parametrize("size", [0, -2])
    def test_block_sizes_below_one(self, rng, name, size):
        Q, K, V = random_qkv(rng, n_queries=6, d=4)
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        when = f"for {name}={size}"
        assert_raises(ValueError, lambda: tiled_attention(Q, K, V, **blocks), when=when, mentions=[name])

    @pytest.mark.parametrize(
        ("shapes", "mentions"),
        [
            (((6, 4), (8, 5), (8, 3)), ("(6, 4)", "(8, 5)")),
            (((6, 4), (8, 4), (7, 3)), ("(8, 4)", "(7, 3)")),
            (((6, 4), (8, 4), (1, 3)), ("(8, 4)", "(1, 3)")),
        ],
        ids=["other_d", "other_N_k", "one_value_for_all"],
    )
    def test_shapes_that_do_not_fit(self, shapes, mentions):
        Q, K, V = (np.ones(shape, np.float32) for shape in shapes)
        when = "for shapes that do not fit"
        assert_raises(ValueError, lambda: tiled_attention(Q, K, V, 4, 4), when=when, mentions=mentions)

    @pytest.mark.parametrize("shape", [(6, 7), (5, 8), (2,), (9, 8)], ids=str)
    def test_mask_that_does_not_broadcast(self, shape):
        Q, K, V = (np.ones(s, np.float32) for s in ((6, 4), (8, 4), (8, 3)))
        assert_raises(
            ValueError,
            lambda: tiled_attention(Q, K, V, 4, 4, mask=np.zeros(shape, bool)),
            when=f"for a mask of shape {shape} and scores of (6, 8)",
            mentions=[str(shape)],
        )


# The machine: inputs in a sealed HBM, so that nothing can be computed from what was not loaded

AMPLE = 1 << 20
TRIPS = {
    "ragged": (23, 31, 6, 5, 6, 4),
    "ragged_wide": (20, 50, 4, 7, 7, 16),
    "even": (24, 32, 8, 8, 8, 8),
    "columns": (15, 12, 5, 3, 5, 1),
    "rows": (9, 20, 3, 4, 1, 5),
}
by_trip = pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)


class Run:
    """One call of a student's function on a sealed machine, and what the machine counted in it."""

    def __init__(self, function, arrays, blocks, sram_bytes=AMPLE, used=False):
        self.arrays, self.blocks = arrays, blocks
        told = on_machine(function, arrays, blocks, sram_bytes, used=used)
        self.loaded, self.stored, self.q, self.k, self.v = (told[name] for name in ("loaded", "stored", "q", "k", "v"))
        self.in_use, self.high_water, host_read = told["in_use"], told["high_water"], told["host_read"]
        require(
            told["is_handle"],
            f"the result is {told['kind']}, expected what machine.allocate returned: the output lies in HBM",
        )
        require(
            host_read == 0,
            f"{host_read:,} bytes were read out of HBM past the machine (np.asarray or .numpy()): data comes by "
            "machine.load alone",
        )
        require(
            self.q + self.k + self.v > 0,
            "nothing was loaded from Q, K and V: the bytes are to be moved, not calculated",
        )
        self.output = told["output"]

    def rounds(self, name, array):
        """How often an array was loaded, on average over its elements."""
        return f"{name} {getattr(self, name.lower()) / array.nbytes:.3g} ×"

    @property
    def told(self):
        return ", ".join(self.rounds(name, array) for name, array in zip("QKV", self.arrays, strict=True))


def trip_arrays(rng, trip, dtype=np.float32, **options):
    N_q, N_k, d, d_v, *_ = trip
    return random_qkv(rng, n_queries=N_q, n_keys=N_k, d=d, d_v=d_v, dtype=dtype, **options)


def assert_written(arrays, told):
    """The output is right and was stored by the machine: it lies in an array here, in which anybody may write."""
    assert_attention(*arrays, 6, 4, got=told["output"])
    require(told["stored_to_output"] >= told["output"].nbytes, "the output was not written by machine.store")


class TestTiledTraffic:
    @by_trip
    def test_output(self, rng, trip):
        arrays, blocks = trip_arrays(rng, trip), trip[4:]
        assert_attention(*arrays, *blocks, got=Run("tiled_traffic", arrays, blocks).output)

    def test_output_in_float64(self, rng):
        arrays = trip_arrays(rng, TRIPS["ragged"], np.float64)
        assert_attention(*arrays, 6, 4, got=Run("tiled_traffic", arrays, (6, 4)).output)

    def test_maximum_moves_at_every_tile(self, rng):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=40, d=4, d_v=6, logit_scale=2)
        Q[:, 0], K[:, 0] = np.abs(Q[:, 0]) + 2, np.sort(K[:, 0]) * 3
        assert_attention(Q, K, V, 5, 8, got=Run("tiled_traffic", (Q, K, V), (5, 8)).output)

    @pytest.mark.parametrize("logit_scale", [30, -100])
    def test_large_logits(self, rng, logit_scale):
        arrays = trip_arrays(rng, (23, 31, 16, 5), logit_scale=logit_scale)
        assert_attention(*arrays, 6, 4, got=Run("tiled_traffic", arrays, (6, 4)).output, hint="the maximum comes first")

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @by_trip
    def test_bytes_are_those_of_the_order_of_the_loops(self, rng, trip, dtype):
        assert_tiled_bytes(Run("tiled_traffic", trip_arrays(rng, trip, dtype), trip[4:]))

    def test_worked_example(self, rng):
        trip = (8, 8, 4, 4, 4, 2)
        run = Run("tiled_traffic", trip_arrays(rng, trip), trip[4:])
        assert_tiled_bytes(run)
        if run.k == run.arrays[1].nbytes * 2:
            assert_equal("the traffic with queries in the outer loop", run.loaded + run.stored, 768)

    def test_smaller_blocks_move_more(self, rng):
        arrays = trip_arrays(rng, (48, 48, 8, 8))
        moved = [run.loaded + run.stored for run in (Run("tiled_traffic", arrays, (b, b)) for b in (4, 8, 16, 24))]
        require(
            sorted(set(moved), reverse=True) == moved,
            f"blocks of 4, 8, 16 and 24 move {moved} bytes: smaller blocks must move more\n"
            "Usual cause: the block sizes given are not the ones used",
        )

    def test_a_machine_in_use_goes_on_counting(self, rng):
        arrays = trip_arrays(rng, TRIPS["ragged"])
        assert_tiled_bytes(Run("tiled_traffic", arrays, (6, 4), used=True))

    def test_plain_arrays_in_hbm(self, rng):
        arrays = trip_arrays(rng, TRIPS["ragged"])
        before = [array.copy() for array in arrays]
        assert_written(arrays, on_machine("tiled_traffic", arrays, (6, 4), AMPLE, sealed=False))
        for name, now, then in zip("QKV", arrays, before, strict=True):
            assert_unchanged(name, now, then)

    def test_sram_does_not_grow_with_the_sequence(self, rng):
        high = []
        for n in (3, 12):
            run = Run("tiled_traffic", trip_arrays(rng, (8 * n, 8 * n, 4, 4)), (8, 8))
            high.append(run.high_water)
        assert_at_most(
            "SRAM in use at once with 12 blocks",
            high[1],
            high[0],
            hint=f"With 3 blocks of the same size it was {high[0]:,}. Usual cause: tiles are kept from round to round",
        )

    @pytest.mark.parametrize("blocks", [(16, 16), (16, 4), (4, 16)], ids=str)
    def test_a_few_tiles_at_a_time(self, rng, blocks):
        block_q, block_k = blocks
        N, d = 64, 8
        run = Run("tiled_traffic", trip_arrays(rng, (N, N, d, d)), blocks)
        room = 4 * (7 * block_q * d + 4 * block_k * d + 4 * block_q * block_k + 8 * block_q)
        assert_at_most(
            f"SRAM in use at once with blocks of {block_q} × {block_k}, d = {d}",
            run.high_water,
            room,
            hint=f"That is room for 7 tiles of {block_q} × {d}, 4 of {block_k} × {d}, 4 of scores and 8 columns\n"
            "Usual cause: names of the last round keep its tiles alive beside this round's: del them",
        )
        least = 4 * (block_q * d + block_k * d + block_q * block_k)
        require(
            run.high_water >= least,
            f"SRAM held {run.high_water:,} bytes at most; Q's tile of {block_q} × {d}, K's of {block_k} × {d} "
            f"and their product take {least:,}\nUsual cause: the block sizes given are not the ones used",
        )

    def test_sram_is_empty_afterwards(self, rng):
        run = Run("tiled_traffic", trip_arrays(rng, TRIPS["ragged"]), (6, 4))
        assert_equal("the bytes of SRAM still in use after the call", run.in_use, 0, hint="a tile is kept somewhere")

    def test_blocks_too_large_overflow(self, rng):
        arrays = trip_arrays(rng, (64, 64, 8, 8))
        Run("tiled_traffic", arrays, (4, 4), sram_bytes=8192)
        assert_raises(
            SRAMOverflow,
            lambda: Run("tiled_traffic", arrays, (64, 64), sram_bytes=8192),
            when="for blocks of 64 × 64 in an SRAM of 8192 B, where the scores alone take 16,384",
        )

    @pytest.mark.parametrize("name", ["block_q", "block_k"])
    @pytest.mark.parametrize("size", [0, -1])
    def test_block_sizes_below_one(self, rng, name, size):
        arrays = trip_arrays(rng, (6, 6, 4, 4))
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        assert_raises(
            ValueError,
            lambda: on_machine("tiled_traffic", arrays, blocks, AMPLE, sealed=False)["output"],
            when=f"for {name}={size}",
            mentions=[name],
        )


def assert_tiled_bytes(run):
    """The bytes of each array must be those of one of the two orders of the loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    (N_q, d), (N_k, d_v), size = Q.shape, V.shape, Q.dtype.itemsize
    T_q, T_k = -(-N_q // block_q), -(-N_k // block_k)
    form = {"n_queries": N_q, "n_keys": N_k, "d": d, "d_v": d_v, "block_q": block_q, "block_k": block_k}
    queries_out, keys_out = (
        f(**form, dtype_bytes=size) for f in (forms.queries_outside_traffic, forms.keys_outside_traffic)
    )
    if (run.k, run.v) == (K.nbytes, V.nbytes) and T_q > 1 and run.q == T_k * Q.nbytes:
        # Whether the state starts in SRAM or in HBM, and whether a last pass divides, is free; so is m and l in one.
        state, visits = N_q * (d_v + 2) * size, run.loaded - run.q - run.k - run.v
        lean = keys_out.loaded - run.q - run.k - run.v
        assert_at_most("what is loaded of the state (keys in the outer loop)", visits, lean + 3 * state)
        assert_at_most("what is stored (keys in the outer loop)", run.stored, keys_out.stored + 3 * state)
        require(
            visits >= (T_k - 1) * N_q * (d_v + 1) * size,
            f"{visits:,} bytes of the state were loaded: with keys in the outer loop the state of every query must go "
            f"to HBM and back for each of {T_k} blocks of keys",
        )
        return
    usual = ""
    if run.q > Q.nbytes and (run.k, run.v) == (T_q * K.nbytes, T_q * V.nbytes):
        usual = "\nThat is exactly what comes out when Q's tile is loaded again for every block of keys"
    elif run.k == 2 * T_q * K.nbytes:
        usual = "\nUsual cause: the keys are gone through twice, once for the maximum"
    elif (run.k, run.v) == (K.nbytes, V.nbytes):
        usual = "\nUsual cause: all of K and V is loaded at once, whatever the blocks are"
    require(
        (run.q, run.k, run.v) == (Q.nbytes, T_q * K.nbytes, T_q * V.nbytes),
        f"blocks of {block_q} × {block_k}, {T_q} of queries and {T_k} of keys: loaded {run.told}\n"
        f"Expected Q once, K and V {T_q} times (queries in the outer loop), or K and V once, Q {T_k} times{usual}",
    )
    assert_equal(
        "the bytes loaded",
        run.loaded,
        queries_out.loaded,
        hint="something besides Q, K and V is loaded: a state in HBM?",
    )
    assert_equal(
        "the bytes stored",
        run.stored,
        queries_out.stored,
        hint="with queries in the outer loop each row of the output is stored once, and nothing else",
    )


class TestNaiveTraffic:
    @by_trip
    def test_output(self, rng, trip):
        (Q, K, V), blocks = arrays, _ = trip_arrays(rng, trip), trip[4:]
        swapped = attention(K, Q, Q)
        powers = np.exp(swapped.lse)[:, None] * swapped.weights
        usual = {
            "the softmax runs over the queries": lambda: swapped.weights.T @ V,
            "the weights are not divided by their sum": lambda: (powers / powers.max(0)).T @ V,
        }
        assert_attention(*arrays, *blocks, got=Run("naive_traffic", arrays, blocks).output, usual=usual)

    @pytest.mark.parametrize("logit_scale", [30, -100])
    def test_large_logits(self, rng, logit_scale):
        arrays = trip_arrays(rng, (23, 31, 16, 5), logit_scale=logit_scale)
        assert_attention(*arrays, 6, 4, got=Run("naive_traffic", arrays, (6, 4)).output, hint="the maximum comes first")

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @by_trip
    def test_bytes(self, rng, trip, dtype):
        assert_naive_bytes(Run("naive_traffic", trip_arrays(rng, trip, dtype), trip[4:]))

    def test_worked_example(self, rng):
        run = Run("naive_traffic", trip_arrays(rng, (8, 8, 4, 4)), (4, 2))
        assert_naive_bytes(run)
        if run.k == run.v == 2 * run.arrays[1].nbytes:
            assert_equal("the traffic with queries in the outer loops", run.loaded + run.stored, 1792)

    def test_a_machine_in_use_goes_on_counting(self, rng):
        assert_naive_bytes(Run("naive_traffic", trip_arrays(rng, TRIPS["ragged"]), (6, 4), used=True))

    def test_plain_arrays_in_hbm(self, rng):
        arrays = trip_arrays(rng, TRIPS["ragged"])
        assert_written(arrays, on_machine("naive_traffic", arrays, (6, 4), AMPLE, sealed=False))

    def test_runs_where_the_matrix_does_not_fit(self, rng):
        arrays = trip_arrays(rng, (80, 80, 8, 8))
        run = Run("naive_traffic", arrays, (8, 8), sram_bytes=4096)
        assert_attention(*arrays, 8, 8, got=run.output)
        assert_naive_bytes(run)

    def test_blocks_too_large_overflow(self, rng):
        arrays = trip_arrays(rng, (64, 64, 8, 8))
        Run("naive_traffic", arrays, (4, 4), sram_bytes=8192)
        assert_raises(
            SRAMOverflow,
            lambda: Run("naive_traffic", arrays, (64, 64), sram_bytes=8192),
            when="for blocks of 64 × 64 in an SRAM of 8192 B, where the scores alone take 16,384",
        )

    @pytest.mark.parametrize("name", ["block_q", "block_k"])
    @pytest.mark.parametrize("size", [0, -1])
    def test_block_sizes_below_one(self, rng, name, size):
        arrays = trip_arrays(rng, (6, 6, 4, 4))
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        assert_raises(
            ValueError,
            lambda: on_machine("naive_traffic", arrays, blocks, AMPLE, sealed=False)["output"],
            when=f"for {name}={size}",
            mentions=[name],
        )


def assert_naive_bytes(run):
    """S and P each stored and loaded once; the products in either order of their loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    T_q, T_k = -(-len(Q) // block_q), -(-len(K) // block_k)
    matrix, output = len(Q) * len(K) * Q.itemsize, len(Q) * V.shape[1] * Q.itemsize
    first = (run.q, run.k) in ((Q.nbytes, T_q * K.nbytes), (T_k * Q.nbytes, K.nbytes))
    again = (T_k - 1) * output if run.v == V.nbytes and T_q > 1 else 0
    require(
        first and run.v in (T_q * V.nbytes, V.nbytes),
        f"blocks of {block_q} × {block_k}, {T_q} of queries and {T_k} of keys: loaded {run.told}\n"
        f"Expected Q once, K and V {T_q} times (or, with keys outside, K or V once and Q {T_k} times)",
    )
    both = run.loaded - run.q - run.k - run.v - again
    named = "the bytes loaded of S and P"
    usual = {
        "S never went to HBM: softmax was computed from tiles in SRAM": matrix,
        "neither S nor P went to HBM: that is tiled attention, not the standard one": 0,
        "S is loaded twice: a whole row fits into SRAM, once is enough": 3 * matrix,
        "S is loaded three times: a whole row fits into SRAM, once is enough": 4 * matrix,
    }
    assert_equal(named, both, 2 * matrix, suspects=usual, hint=f"each is {matrix:,} B and is loaded once")
    usual = {
        "S never went to HBM": matrix + output + again,
        "a further N_q × N_k array is stored": 3 * matrix + output + again,
        "an array is filled in HBM before it is written": 2 * matrix + 2 * output + again,
    }
    assert_equal(
        "the bytes stored", run.stored, 2 * matrix + output + again, suspects=usual, hint="S, P and the output"
    )


# Blocks that fit: what no order of the steps can do without, and how much a long sequence then moves

SRAMS = [(8_192, 16), (32_768, 64), (65_536, 64), (100_001, 32), (131_072, 128), (1 << 20, 64)]
by_sram = pytest.mark.parametrize(("sram_bytes", "d"), SRAMS)
WASTE = 3


def blocks_of(sram_bytes, d, **options):
    """The student's blocks, as two ints of at least 1."""
    got = assert_tuple("choose_blocks's result", choose_blocks(sram_bytes, d, **options), ("block_q", "block_k"))
    for name, block in zip(("block_q", "block_k"), got, strict=True):
        assert_type(name, block, (int, np.integer), "an int")
        require(block >= 1, f"{name} is {block} for sram_bytes={sram_bytes}, d={d}: expected at least 1")
    return got


def assert_fits(blocks, sram_bytes, d, dtype_bytes=4):
    """Q, the output, a block of keys or values, the scores, m and l: nobody can do without these at once."""
    block_q, block_k = blocks
    least = dtype_bytes * (2 * block_q * d + block_k * d + block_q * block_k + 2 * block_q)
    scores = dtype_bytes * block_q * block_k
    assert_at_most(
        f"what blocks of {block_q} × {block_k} need at the very least, d = {d}, {dtype_bytes} B each",
        least,
        sram_bytes,
        hint=f"Q, the output, one block of keys, the scores ({scores:,} B), m and l. Usual cause: the scores or d are "
        "left out, or elements are taken for bytes",
    )


class TestChooseBlocks:
    def test_worked_example(self):
        when = "for 768 B, in which d=64 leaves no room for a temporary"
        assert_raises(ValueError, lambda: choose_blocks(768, 64), when=when, mentions=["768", "64"])

    @pytest.mark.parametrize("dtype_bytes", [2, 4, 8])
    @by_sram
    def test_fits(self, sram_bytes, d, dtype_bytes):
        assert_fits(blocks_of(sram_bytes, d, dtype_bytes=dtype_bytes), sram_bytes, d, dtype_bytes)

    def test_float32_is_the_default(self):
        assert_equal("choose_blocks(65536, 64)", choose_blocks(65_536, 64), choose_blocks(65_536, 64, 4))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("sram_bytes", "d"), SRAMS[:-1])
    def test_fits_with_every_temporary(self, sram_bytes, d, dtype):
        size = np.dtype(dtype).itemsize
        block_q, block_k = blocks_of(sram_bytes, d, dtype_bytes=size)
        assert_fits((block_q, block_k), sram_bytes, d, size)
        Q, K = np.ones((2 * block_q + 1, d), dtype), np.ones((2 * block_k + 1, d), dtype)
        try:
            on_machine("tiled_traffic", (Q, K, K), (block_q, block_k), sram_bytes, sealed=False)
        except SRAMOverflow as overflow:
            require(
                False,
                f"your tiled_traffic overflows with your blocks of {block_q} × {block_k}, d = {d}:\n{overflow}\n"
                "Usual cause: a temporary is not counted, like the product of weights and values before it is added",
            )

    @pytest.mark.parametrize("dtype_bytes", [2, 4])
    @by_sram
    def test_makes_use_of_sram(self, sram_bytes, d, dtype_bytes):
        self.assert_well_used(sram_bytes, d, dtype_bytes)

    def test_memories_drawn_at_random(self, rng):
        for _ in range(4):
            self.assert_well_used(int(rng.integers(1 << 15, 1 << 20)), int(rng.integers(12, 96)), 4)

    def assert_well_used(self, sram_bytes, d, dtype_bytes):
        blocks = blocks_of(sram_bytes, d, dtype_bytes=dtype_bytes)
        assert_fits(blocks, sram_bytes, d, dtype_bytes)
        N = 1 << 16
        shares = [
            form(N, N, d, d, *blocks).total / form(N, N, d, d, *best(sram_bytes, d, dtype_bytes)).total
            for form, best in (
                (forms.queries_outside_traffic, forms.queries_outside_blocks),
                (forms.keys_outside_traffic, forms.keys_outside_blocks),
            )
        ]
        assert_at_most(
            f"the traffic with blocks of {blocks[0]} × {blocks[1]}, {sram_bytes:,} B of SRAM, d = {d}, in units of "
            "what the best blocks move,",
            round(min(shares), 2),
            WASTE,
            unit="",
            hint="One block size decides the traffic (block_q with queries outside): it must grow as SRAM does",
        )

    def test_serves_your_own_loop(self):
        sram_bytes, d, N = 65_536, 32, 1024
        blocks = blocks_of(sram_bytes, d)
        Q = np.ones((N, d), np.float32)
        told = on_machine("tiled_traffic", (Q, Q, Q), blocks, sram_bytes, sealed=False)
        least = forms.queries_outside_traffic(N, N, d, d, *forms.queries_outside_blocks(sram_bytes, d)).total
        assert_at_most(
            f"what your tiled_traffic moves with your blocks of {blocks[0]} × {blocks[1]} in {sram_bytes:,} B of SRAM",
            told["loaded"] + told["stored"],
            WASTE * least,
            hint="Usual cause: the wrong one of the two block sizes is large. Which one decides how often K and V "
            "(or Q) are loaded in your order of the loops?",
        )

    @pytest.mark.parametrize("d", [8, 64, 128])
    def test_small_srams(self, d):
        """Too little for 1 × 1 is an error, twelve rows of d are enough; between, either, but blocks must fit."""
        for sram_bytes in range(4, 4 * 12 * d + 64, 52):
            try:
                blocks = choose_blocks(sram_bytes, d)
            except ValueError:
                enough = 4 * 12 * d
                require(
                    sram_bytes < enough,
                    f"a ValueError for sram_bytes={sram_bytes}, d={d}: {enough} B are enough for 1 × 1",
                )
            else:
                assert_tuple("choose_blocks's result", blocks, ("block_q", "block_k"))
                require(min(blocks) >= 1, f"choose_blocks({sram_bytes}, {d}) is {blocks}: expected ValueError")
                assert_fits(blocks, sram_bytes, d)

    @pytest.mark.parametrize(("sram_bytes", "dtype_bytes"), [(1, 4), (256, 4), (1024, 8)])
    def test_not_even_one_by_one(self, sram_bytes, dtype_bytes):
        when = f"for sram_bytes={sram_bytes}, d=64, dtype_bytes={dtype_bytes}"
        assert_raises(
            ValueError,
            lambda: choose_blocks(sram_bytes, 64, dtype_bytes),
            when=when,
            mentions=[str(sram_bytes), "64"],
        )


# Exponents: the student's loop over machines, with stand-ins for the functions it calls


class StandIns:
    """A tiled_traffic that moves bytes by a rule only this object knows, and a choose_blocks that notes its blocks."""

    def __init__(self, rng):
        self.rng, self.bytes, self.calls, self.problems = rng, {}, [], []

    def exponents(self, Ns, ds, sram_sizes):
        """What the student's io_exponents makes of them."""
        arguments = {"Ns": Ns, "ds": ds, "sram_sizes": sram_sizes}
        return exponents_of_stand_ins(arguments, self.called, self.choose_blocks)

    def called(self, how):
        """Note a call of tiled_traffic, and say what it moves: so many loads and stores, of so many elements."""
        (N, d, *_), M = (*how["shapes"][0], 1, 1), how["sram_bytes"]
        if how["traffic_before"]:
            self.problems.append("tiled_traffic was called on a machine already used: each run needs a fresh one")
        if set(how["shapes"]) != {(N, d)} or set(how["dtypes"]) != {"float32"}:
            shapes = ", ".join(map(str, how["shapes"]))
            self.problems.append(f"Q, K, V are {shapes} of {how['dtypes'][0]}: expected (N, d), float32")
        block_q, block_k = how["blocks"]
        if (block_q, block_k) != self.choose_blocks(M, d):
            self.problems.append(f"blocks of {block_q} × {block_k} are not those of choose_blocks({M}, {d})")
        n_loads, n_stores, width = self.moves(N, d, M)
        self.calls.append((N, d, M))
        self.bytes[N, d, M] = (n_loads + n_stores) * width * 4
        return n_loads, n_stores, width

    def moves(self, N, d, M):
        """Loads, stores, and the elements moved by each."""
        n_loads = int(self.rng.integers(2, 60))
        return n_loads, -(-n_loads // 3), d

    def choose_blocks(self, sram_bytes, d, dtype_bytes=4):
        if dtype_bytes != 4:
            self.problems.append(f"choose_blocks was asked for {dtype_bytes} bytes an element: float32 has 4")
        return sram_bytes % 7 + 1, d % 5 + 1

    def assert_ran(self, grid):
        """Every combination of the grid was run as the handout says."""
        require(
            self.calls,
            "tiled_traffic was never called: the exponents are to be measured on machines, not known beforehand",
        )
        require(not self.problems, self.problems and self.problems[0])
        missing = set(itertools.product(*grid)) - set(self.bytes)
        require(not missing, f"{len(missing)} combinations were never run, e.g. (N, d, M) = {min(missing, default=0)}")


class PowerLaw(StandIns):
    """A tiled_traffic that moves N²·d/M elements exactly."""

    def moves(self, N, d, M):
        return N * N * d // M, 0, 1


@pytest.fixture
def stand_ins(rng):
    return StandIns(rng)


def assert_exponents(got, want, why):
    got = assert_keys("io_exponents's result", got, ("N", "d", "M"))
    for name in "NdM":
        assert_type(f"the exponent of {name}", got[name], (float, np.floating), "a float")
        off = abs(float(got[name]) - want[name])
        require(off < 1e-6, f"the exponent of {name} is {got[name]:.5f}, expected {want[name]:.5f}: {why}")


GRID = ([40, 64, 96], [4, 8, 12], [1024, 1536, 4096])


class TestIoExponents:
    def test_fits_what_was_counted(self, stand_ins):
        got = stand_ins.exponents(*GRID)
        stand_ins.assert_ran(GRID)
        want = forms.fit_exponents(lambda *setting: stand_ins.bytes[setting], *GRID)
        loose = "least squares on the logarithms of what was counted"
        assert_exponents(got, want, loose)

    def test_two_values_each(self, stand_ins):
        grid = ([32, 128], [16, 4], [2048, 1024])
        got = stand_ins.exponents(*grid)
        stand_ins.assert_ran(grid)
        want = forms.fit_exponents(lambda *setting: stand_ins.bytes[setting], *grid)
        assert_exponents(got, want, "the fit of what was counted, whatever order the values come in")

    def test_every_combination_once(self, stand_ins):
        stand_ins.exponents(*GRID)
        seen = sorted(stand_ins.calls)
        want = sorted(itertools.product(*GRID))
        require(seen == want, f"{len(seen)} runs of {len(set(seen))} combinations, expected {len(want)}, each once")

    def test_a_power_law(self, rng):
        got = PowerLaw(rng).exponents([32, 64], [4, 8, 16], [1024, 2048, 4096])
        assert_exponents(got, {"N": 2.0, "d": 1.0, "M": -1.0}, "the traffic is N²·d/M exactly")

    def test_your_own_traffic(self):
        grid = ([96, 192], [8, 16], [4096, 16384])
        got, machines = exponents_and_machines(*grid)
        # The first array loaded from is Q or K: every order of the loops begins with one of them.
        counted = {(*shape, sram_bytes): traffic for shape, sram_bytes, traffic in machines}
        missing = set(itertools.product(*grid)) - set(counted)
        require(not missing, f"{len(missing)} of 8 combinations moved no bytes on a machine of their own")
        assert_exponents(
            got, forms.fit_exponents(lambda *s: counted[s], *grid), "the fit of what your machines counted"
        )
        require(
            1.5 < got["N"] < 2.1 and -1.5 < got["M"] < -0.4,
            f"the exponents are N {got['N']:.2f} and M {got['M']:.2f}; the paper's theorem has 2 and −1\n"
            "Usual cause: choose_blocks does not use what SRAM there is, or the block sizes have no influence",
        )

    @pytest.mark.parametrize("name", ["Ns", "ds", "sram_sizes"])
    @pytest.mark.parametrize("values", [[64], [64, 64], []], ids=["one", "equal", "none"])
    def test_fewer_than_two_different_values(self, stand_ins, name, values):
        arguments = {"Ns": [32, 64], "ds": [4, 8], "sram_sizes": [1024, 2048]} | {name: values}
        assert_raises(
            ValueError,
            lambda: stand_ins.exponents(**arguments),
            when=f"for {name}={values}: no line through one point",
            mentions=[name],
        )
