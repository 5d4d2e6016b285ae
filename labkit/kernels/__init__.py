"""Triton kernels compiled without a GPU: the assembler's report, `lab kernel`'s table; and calls on a device."""
