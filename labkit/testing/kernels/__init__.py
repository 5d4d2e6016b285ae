"""Kernels in Triton: what is asserted of them, and a softmax of rows to write first."""
