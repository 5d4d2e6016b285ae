"""Lab 10: attention in Triton's language: forward, backward and paged, and blocks that the compiler accepts."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """An example: out = x, n adjacent numbers each. Launch: copy_kernel[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n  # the last program has fewer than BLOCK numbers
    tl.store(out + places, tl.load(x + places, mask=inside, other=0.0), mask=inside)


def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row: out[i, j] = exp(x[i, j]) / Σ_k exp(x[i, k]).

    Computed by one kernel, which loads each element of x once and stores each element of out once.

    Args:
        x: (rows, columns), float32 or float16, any strides; at most 2¹⁷ columns.

    Returns:
        (rows, columns) in x's dtype, from sums in float32. A row of only −inf gives zeros.

    Raises:
        ValueError: x does not have two axes.
        TypeError: x is neither float32 nor float16.

    Example:
        [[0.0, 1.0986]] gives [[0.25, 0.75]], since exp(1.0986) = 3.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def flash_forward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, with one program per block of queries, which passes over the keys once.

    With s[i, j] = Q[i] · K[j] / √d, over the keys j that query i sees:
    L[i] = log Σ_j exp(s[i, j]), natural logarithm, and O[i] = Σ_j exp(s[i, j] − L[i]) V[j].

    Args:
        Q: queries, (..., N_q, d), float32 or float16. The heads together may hold more than 2³¹ elements.
        K: keys, (..., N_k, d), with Q's leading axes and dtype.
        V: values, (..., N_k, d_v), likewise; d_v may differ from d, N_k from N_q.
        causal: query i sees key j only when j ≤ i, both counted from 0. Tiles in which no query of the block sees any
            key are neither loaded nor computed.
        block_q: queries of a program: a power of two, at least 16; need not divide N_q, may exceed it.
        block_k: keys of a tile, likewise.

    Returns:
        (O, L): O is (..., N_q, d_v) in Q's dtype; L is (..., N_q), float32. Products of float32 are exact (no tf32),
        sums are float32. Without keys (N_k = 0) O is 0 and L is −inf.

    Raises:
        ValueError: naming both shapes, when Q and K differ in d, or K and V in N_k; naming the argument, when a block
            size is not a power of two or below 16.
        TypeError: an input is neither float32 nor float16.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]] gives O = [[0.6698]], L = [1.1079].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def flash_backward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    O: torch.Tensor,
    L: torch.Tensor,
    dO: torch.Tensor,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of Σ O ∘ dO with respect to Q, K and V, from the forward pass's O and L.

    With p[i, j] = exp(s[i, j] − L[i]), D[i] = Σ_c dO[i, c] O[i, c], ds[i, j] = p[i, j] (Σ_c dO[i, c] V[j, c] − D[i]):
    dV[j] = Σ_i p[i, j] dO[i], dQ[i] = Σ_j ds[i, j] K[j] / √d, dK[j] = Σ_i ds[i, j] Q[i] / √d.

    Args:
        Q: as in `flash_forward`, and so are K, V, causal, block_q and block_k.
        K: keys.
        V: values.
        O: the forward pass's output, (..., N_q, d_v), in Q's dtype.
        L: its log-sum-exp, (..., N_q), float32.
        dO: the gradient of the loss with respect to O, of its shape and dtype.
        causal: tiles in which no query sees any key are neither loaded nor computed.
        block_q: queries of a tile.
        block_k: keys of a tile.

    Returns:
        (dQ, dK, dV), shaped as Q, K and V, in their dtype; sums are float32. No address is written by two programs,
        except by atomic operations.

    Raises:
        ValueError: as in `flash_forward`.
        TypeError: as in `flash_forward`.

    Example:
        In the example of `flash_forward`, with dO = [[1]]: dV = [[0.6698], [0.3302]], dQ = [[0.1564, −0.1564]].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    """Attention of one query per sequence over keys and values in blocks, read in `num_splits` parts in parallel.

    Token t of sequence b is in block block_table[b, t // block_size], at place t % block_size, for t below
    context_lens[b]. Query head h reads key head h // (H_q / H_kv). o[b, h] = Σ_t softmax_t(q[b, h] · k_t / √d) v_t.

    Args:
        q: (batch, H_q, d), float32 or float16.
        k_cache: (num_blocks, block_size, H_kv, d), contiguous, in q's dtype; H_kv divides H_q. It may hold more than
            2³¹ elements.
        v_cache: (num_blocks, block_size, H_kv, d_v), likewise.
        block_table: (batch, most blocks of a sequence), int32 or int64. Entries that a sequence does not need may be
            −1.
        context_lens: (batch,), the number of tokens of each sequence, which may be 0.
        num_splits: the parts into which each sequence's tokens are cut, at least 1; each has programs of its own.

    Returns:
        (batch, H_q, d_v) in q's dtype; 0 for a sequence without tokens.

    Raises:
        ValueError: naming both numbers, when H_kv does not divide H_q; naming num_splits, when it is below 1.
        TypeError: q is neither float32 nor float16.

    Example:
        Blocks of 2 with the values 1, 2 | 3, 4 | 5, 6, keys of 0, a table [2, 0] and 3 tokens: o is the mean of 5, 6
        and 1, which is 4.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def choose_config(head_dim: int, dtype_bytes: int, arch: int) -> tuple[int, int, int, int]:
    """Blocks, warps and stages with which your forward kernel fits a multiprocessor and keeps every tile in registers.

    Args:
        head_dim: d and d_v, 32, 64 or 128.
        dtype_bytes: 2 for float16, 4 for float32.
        arch: 80 (A100: 163 KiB of shared memory a block) or 90 (H100: 227 KiB, products of 64 rows and more by wgmma).

    Returns:
        (block_q, block_k, num_warps, num_stages): blocks are powers of two from 16 on; num_warps is 4 or 8; num_stages,
        the tiles of keys in flight at once, at least 2. block_q is at least 64 for float16 and 32 for float32, since K
        and V are read once for every block of queries.

    Raises:
        ValueError: naming the argument, for another head_dim, dtype_bytes or arch.
    """
    # YOUR CODE HERE
    raise NotImplementedError()
