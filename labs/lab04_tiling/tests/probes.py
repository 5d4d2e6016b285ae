"""What runs next to the submission: simulated machines, tiles of scores seen in its products, uninitialised memory."""

import math

import numpy as np
import tiling

from labkit.meters.arrays import measure_arrays, uninitialised_is_nan
from labkit.simulated_memory import HBMArray, Machine
from labkit.testing.probes import probe


@probe
def on_machine(task, arrays, blocks, sram_bytes=1 << 20, sealed=True):
    """A call of tiled_traffic or naive_traffic on a fresh machine: its output, and what the machine counted.

    The inputs are in a sealed HBM, so that nothing can be computed from what was not loaded; or, not sealed, arrays.
    `output` is None if the result is not in the machine's HBM; `result` is the name of its type.
    """
    machine = Machine(sram_bytes, sealed)
    given = [machine.hbm(array) if sealed else array for array in arrays]
    result = getattr(tiling, task)(machine, *given, *blocks)
    names = ("loaded", "stored", "traffic", "in_use", "high_water", "host_read")
    counts = {name: getattr(machine, name) for name in names}
    counts |= dict(zip("qkv", map(machine.loaded_from, given), strict=True))
    output = result.numpy() if isinstance(result, HBMArray) else None
    return counts | {"output": output, "result": type(result).__name__}


@probe
def peak_and_output(*args, **options):
    """The most bytes that a call of tiled_attention allocates at one moment, and its output."""
    measured = measure_arrays(tiling.tiled_attention, *args, warm=False, **options)
    return measured.peak_bytes, measured.result


@probe
def attention_on_nan(*args, **options):
    """The output of tiled_attention where uninitialised memory holds NaN."""
    with uninitialised_is_nan():
        return tiling.tiled_attention(*args, **options)


@probe
def attention_and_tiles(Q, K, V, *args, **options):
    """The output of tiled_attention, and the tiles of its scores, (queries, keys).

    Tiles are products over a width of d, where no other product is as wide; a batch counts as many tiles. Q must be
    positive and K negative throughout: a product may be one of K and Q transposed. A submission that copies Q and K to
    plain arrays first is not seen: then there are too few tiles, never too many.
    """
    tiles = []
    d = Q.shape[-1]

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
            inputs = [plain(x) for x in inputs]
            if out is not None:
                options["out"] = tuple(plain(x) for x in out)
            result = getattr(ufunc, method)(*inputs, **options)
            if ufunc is np.matmul and inputs[0].shape[-1] == d:
                rows, columns = result.shape[-2:]
                tile = (rows, columns) if inputs[0].sum() > 0 else (columns, rows)
                tiles.extend([tile] * math.prod(result.shape[:-2]))
            return result.view(Watched) if isinstance(result, np.ndarray) else result

    def plain(x):
        return x.view(np.ndarray) if isinstance(x, np.ndarray) else x

    output = tiling.tiled_attention(*(x.view(Watched) for x in (Q, K, V)), *args, **options)
    return plain(output), tiles


@probe
def exponents_of_stand_ins(seed, Ns, ds, sram_sizes):
    """io_exponents with stand-ins for the two functions it calls: the result, and each call of tiled_traffic.

    The stand-in for tiled_traffic moves a random number of bytes, fewer where the SRAM is larger. That for
    choose_blocks returns blocks that mean nothing: `sram_bytes % 7 + 1` and `d % 5 + 1`, or (0, 0) where an element has
    not 4 bytes.
    """
    rng, calls = np.random.default_rng(seed), []

    def tiled_traffic(machine, Q, K, V, block_q, block_k):
        before, n_loads = machine.traffic, int(rng.integers(40, 60)) * 2048 // machine.sram_bytes
        O = machine.allocate((1, Q.shape[-1]), np.float32)
        for n in range(n_loads):
            tile = machine.load(Q, np.s_[:1])
            if n % 3 == 0:
                machine.store(O, np.s_[:], tile)
        call = {"shapes": [x.shape for x in (Q, K, V)], "dtype": str(Q.dtype), "blocks": (block_q, block_k)}
        call["loaded"] = machine.loaded
        calls.append({**call, "sram_bytes": machine.sram_bytes, "before": before, "traffic": machine.traffic - before})
        return machine.allocate(Q.shape, np.float32)

    def choose_blocks(sram_bytes, d, dtype_bytes=4):
        return (sram_bytes % 7 + 1, d % 5 + 1) if dtype_bytes == 4 else (0, 0)

    own = {name: getattr(tiling, name) for name in ("tiled_traffic", "choose_blocks")}
    vars(tiling).update(tiled_traffic=tiled_traffic, choose_blocks=choose_blocks)
    try:
        return tiling.io_exponents(Ns, ds, sram_sizes), calls
    finally:
        vars(tiling).update(own)
