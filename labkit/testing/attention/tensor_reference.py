"""Attention on torch tensors, computed plainly in a chosen precision, with its gradients by autograd."""

from typing import NamedTuple

import torch


class Attention(NamedTuple):
    """What attention makes: `output (..., N_q, d_v)`, `weights (..., N_q, N_k)`, `lse (..., N_q)`."""

    output: torch.Tensor
    weights: torch.Tensor
    lse: torch.Tensor


class Gradients(NamedTuple):
    """Gradients of the loss, each of the shape of what it is the gradient of."""

    dQ: torch.Tensor
    dK: torch.Tensor
    dV: torch.Tensor


def attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Attention:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1), every step in `dtype`; autograd can follow it.

    `Q (..., N_q, d)`, `K (..., N_k, d)`, `V (..., N_k, d_v)`, leading axes broadcast. `mask`, broadcast to
    `(..., N_q, N_k)`, is True where a key is masked out; `causal` masks key j from query i when j > i. The scale is
    1/√d unless given. A row with every key masked has weights and output 0 and log-sum-exp −inf. The log-sum-exp is
    natural, and of a half-precision `dtype` it is float32, taken of the scores in `dtype`.
    """
    q, k, v = (x.to(dtype) for x in (Q, K, V))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    if causal:
        hidden = (~hidden).triu(1)
    if mask is not None:
        hidden = hidden | mask
    if hidden.shape[-1] == 0:
        return Attention(scores @ v, scores, scores.new_full(scores.shape[:-1], -torch.inf, dtype=_long(dtype)))
    blind = hidden.all(-1, keepdim=True)  # rows that see no key: softmax would make NaN of them
    seen = scores.masked_fill(hidden & ~blind, -torch.inf)
    weights = seen.softmax(-1).masked_fill(blind, 0)
    lse = seen.to(_long(dtype)).logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    return Attention(weights @ v, weights, lse)


def gradients(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    dO: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Gradients:
    """The gradients of the sum of `output ∘ dO`, `dO (..., N_q, d_v)`, by autograd through `attention`, in `dtype`."""
    leaves = [x.detach().to(dtype).clone().requires_grad_() for x in (Q, K, V)]
    with torch.enable_grad():
        output = attention(*leaves, mask=mask, causal=causal, scale=scale, dtype=dtype).output
        loss = (output * dO.detach().to(dtype)).sum()  # a gradient handed to autograd.grad costs seconds of imports
    return Gradients(*torch.autograd.grad(loss, leaves))


def gradients_with_penalty(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, dO: torch.Tensor, *, mask: torch.Tensor | None = None
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The gradients of the sum of `output ∘ dO` and of the squares of its own gradients; and those without the squares.

    In the dtype of the inputs, by autograd through autograd.
    """
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    total = (attention(*leaves, mask=mask).output * dO).sum()
    alone = torch.autograd.grad(total, leaves, create_graph=True)
    return torch.autograd.grad(total + sum((x**2).sum() for x in alone), leaves), alone


def _long(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize == 2 else dtype
