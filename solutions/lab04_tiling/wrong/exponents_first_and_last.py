"""Slopes are taken from the first and the last value only.

Task: io_exponents
Killed by: TestIoExponents::test_fits_what_was_counted
"""

import numpy as np


def io_exponents(Ns, ds, sram_sizes):
    for name, values in (("Ns", Ns), ("ds", ds), ("sram_sizes", sram_sizes)):
        if len(set(values)) < 2:
            raise ValueError(f"{name} needs two different values, got {list(values)}")
    rows, traffic = [], []
    for N in Ns:
        for d in ds:
            for M in sram_sizes:
                machine = Machine(M)
                Q = K = V = np.ones((N, d), np.float32)
                tiled_traffic(machine, Q, K, V, *choose_blocks(M, d))
                rows.append([1, np.log(N), np.log(d), np.log(M)])
                traffic.append(np.log(machine.traffic))
    y = np.array(traffic).reshape(len(Ns), len(ds), len(sram_sizes))
    a = (y[-1] - y[0]).mean() / np.log(Ns[-1] / Ns[0])
    b = (y[:, -1] - y[:, 0]).mean() / np.log(ds[-1] / ds[0])
    c = (y[..., -1] - y[..., 0]).mean() / np.log(sram_sizes[-1] / sram_sizes[0])
    return {"N": float(a), "d": float(b), "M": float(c)}
