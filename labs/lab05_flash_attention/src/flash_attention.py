"""Lab 05: FlashAttention-2, forward and backward; its memory grows with N and not with N²."""

import torch


def flash_forward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, one tile of scores at a time, and the number per query that the backward pass needs.

    With s[i, j] = Q[i] · K[j] / √d, over the keys j that query i sees:
    L[i] = log Σ_j exp(s[i, j]), natural logarithm, and O[i] = Σ_j exp(s[i, j] − L[i]) V[j].
    Leading axes are a batch: each entry is a separate attention.

    Args:
        Q: queries, (..., N_q, d), float64, float32, bfloat16 or float16.
        K: keys, (..., N_k, d), with Q's leading axes and dtype.
        V: values, (..., N_k, d_v), likewise; d_v may differ from d, N_k from N_q.
        causal: query i sees key j only when j ≤ i, both counted from 0, whatever N_q and N_k are. Tiles in which no
            query sees any key are not computed.
        block_q: queries in a tile, at least 1; need not divide N_q, may exceed it.
        block_k: keys in a tile, likewise.

    Returns:
        (O, L): O is (..., N_q, d_v) in Q's dtype; L is (..., N_q), float32 for half-precision inputs, otherwise in
        Q's dtype. Both are finite for logits of any size. Sums are kept in L's dtype. Without keys (N_k = 0) O is 0
        and L is −inf. No tensor has more than a few times block_q · block_k elements per batch entry, or N · d.

    Raises:
        ValueError: naming both shapes, when Q and K differ in d, or K and V in N_k; naming the argument, when a block
            size is below 1.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]]: the scores are 0.7071 and 0, L = log(e^0.7071 + 1) = 1.1079
        and O = e^(0.7071 − 1.1079) = 0.6698.
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
    """The gradients of Σ O ∘ dO with respect to Q, K and V, one tile at a time; the weights are recomputed.

    With p[i, j] = exp(s[i, j] − L[i]) for the keys j that query i sees, otherwise 0, and D[i] = Σ_c dO[i, c] O[i, c]:
    dV[j] = Σ_i p[i, j] dO[i]. The gradient of score s[i, j] is ds[i, j] = p[i, j] (dO[i] · V[j] − D[i]), so
    dQ[i] = Σ_j ds[i, j] K[j] / √d and dK[j] = Σ_i ds[i, j] Q[i] / √d.

    Args:
        Q: queries, (..., N_q, d), as given to `flash_forward`.
        K: keys, (..., N_k, d).
        V: values, (..., N_k, d_v).
        O: the output that `flash_forward` returned, (..., N_q, d_v).
        L: the log-sum-exp that it returned, (..., N_q).
        dO: the gradient of the loss with respect to O, (..., N_q, d_v), in O's dtype; it need not be contiguous.
        causal: as given to `flash_forward`; the same tiles are left out.
        block_q: queries in a tile, at least 1; need not be the forward pass's.
        block_k: keys in a tile, likewise.

    Returns:
        (dQ, dK, dV), with the shapes and the dtype of Q, K and V; sums are kept in L's dtype. A key that no query sees
        has the gradients 0. Intermediate tensors are as small as `flash_forward`'s.

    Raises:
        ValueError: as `flash_forward`.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]], dO = [[1]]: p = (0.6698, 0.3302), D = 0.6698,
        dV = [[0.6698], [0.3302]]; ds = (0.2212, −0.2212), so dQ = [[0.1564, −0.1564]] and
        dK = [[0.1564, 0], [−0.1564, 0]].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


class FlashAttention(torch.autograd.Function):
    """Attention that autograd can differentiate without any N_q × N_k tensor: `FlashAttention.apply(Q, K, V)`.

    It joins `flash_forward` and `flash_backward`. Between the two passes autograd keeps five tensors and nothing else:
    the inputs Q, K, V, the output O and one log-sum-exp L of shape (..., N_q). In float32 with N_q = N_k = 4096 and
    d = d_v = 64 that is, besides inputs and output, 16,384 bytes; the weights would be 67,108,864.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Attention's output; what `backward` needs is kept in `ctx`.

        Args:
            ctx: autograd's object for tensors (`ctx.save_for_backward`) and the flag (`ctx.is_causal`).
            Q: queries, (..., N_q, d), as for `flash_forward`.
            K: keys, (..., N_k, d).
            V: values, (..., N_k, d_v).
            is_causal: as `causal` of `flash_forward`; may be left out.

        Returns:
            O, (..., N_q, d_v), in Q's dtype: only the output. You choose the tiles, up to 2¹⁷ scores each.

        Raises:
            ValueError: as `flash_forward`.

        Example:
            FlashAttention.apply([[1, 0]], [[1, 0], [0, 1]], [[1], [0]]), as tensors, is [[0.6698]].
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, dO: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        """The gradients of `forward`'s arguments, one for each argument after `ctx`, in that order.

        Args:
            ctx: as `forward` left it.
            dO: gradient of the loss with respect to O, (..., N_q, d_v); it need not be contiguous.

        Returns:
            (dQ, dK, dV, None): None for an input that needs no gradient (`ctx.needs_input_grad`), and for is_causal.

        Raises:
            RuntimeError: where the gradients are to be differentiated again (under `create_graph=True`, when
                `torch.is_grad_enabled()` is true in a backward pass): they would be silently wrong.
        """
        # YOUR CODE HERE
        raise NotImplementedError()
