"""The exponents of the theorem are returned; no machine was ever run.

Task: io_exponents
Killed by: TestIoExponents::test_fits_what_was_counted
Killed by: TestIoExponents::test_two_values_each
Says: never called
"""


def io_exponents(Ns, ds, sram_sizes):
    for name, values in (("Ns", Ns), ("ds", ds), ("sram_sizes", sram_sizes)):
        if len(set(values)) < 2:
            raise ValueError(f"{name} needs two different values, got {list(values)}")
    return {"N": 2.0, "d": 2.0, "M": -1.0}
