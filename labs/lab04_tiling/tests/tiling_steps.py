"""Lab 04's steps: the answer's functions on machines and watched arrays, where the answer is; told are bare counts."""

import contextlib

import numpy as np
import tiling

from labkit.simulated_memory import HBMArray, Machine, watch_machines


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
