"""The example of `lab kernel`: a matrix product, one tile per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def tile_product(A: torch.Tensor, B: torch.Tensor, block_m: int, block_n: int, block_k: int = 32) -> torch.Tensor:
    """A B for A (M, K) and B (K, N), from sums in float32."""
    (m, k), n = A.shape, B.shape[1]
    C = torch.empty(m, n, dtype=A.dtype, device=A.device)
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    product_kernel[grid](A, B, C, m, n, k, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k)
    return C


@triton.jit
def product_kernel(A, B, C, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Multiplies rows of A by columns of B in blocks of BLOCK_K; the sums stay in registers."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_inside = (rows[:, None] < m) & (inner[None, :] < k)
        b_inside = (inner[:, None] < k) & (columns[None, :] < n)
        a = tl.load(A + rows[:, None] * k + inner[None, :], mask=a_inside, other=0.0)
        b = tl.load(B + inner[:, None] * n + columns[None, :], mask=b_inside, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    c_inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(C + rows[:, None] * n + columns[None, :], total.to(C.dtype.element_ty), mask=c_inside)
