"""Kernels in Triton, from outside of the process that runs them: what the assembler makes of their PTX, and a table."""
