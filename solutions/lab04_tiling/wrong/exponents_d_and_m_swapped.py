"""The exponents of d and M are swapped.

Task: io_exponents
Killed by: TestIoExponents::test_a_power_law
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
    _, a, b, c = np.linalg.lstsq(np.array(rows), np.array(traffic), rcond=None)[0]
    return {"N": float(a), "d": float(c), "M": float(b)}
