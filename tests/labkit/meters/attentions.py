"""Forms of attention for tests of the tensor meters, and ways to run them."""

import math
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit.bench.variants import built_in_softmax, sdpa, written_out
from labkit.meters.tensors import AllocationMeter

BATCH, N, D = 2, 37, 12
SQUARE = BATCH * N * N
TALL = BATCH * N * D


def scores_of(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def sdpa_causal_heads(q, k, v):
    return functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]


def masked(q, k, v):
    mask = torch.zeros(N, N, dtype=torch.bool, device=q.device)
    mask[:, ::3] = True
    return scores_of(q, k).masked_fill(mask, -1e9).softmax(-1) @ v


def baddbmm(q, k, v):
    bias = torch.empty(BATCH, N, N, dtype=q.dtype, device=q.device)
    return torch.baddbmm(bias, q, k.transpose(-2, -1), beta=0.0, alpha=0.3).softmax(-1) @ v


def chunked_queries(q, k, v):
    return torch.cat([built_in_softmax(part, k, v) for part in q.split(10, dim=-2)], dim=-2)


def tiled_online(q, k, v):
    out, total, highest = torch.zeros_like(q), torch.zeros_like(q[..., :1]), torch.full_like(q[..., :1], -1e9)
    for k_block, v_block in zip(k.split(16, dim=-2), v.split(16, dim=-2), strict=True):
        scores = scores_of(q, k_block)
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        scale, weights = (highest - new).exp(), (scores - new).exp()
        out, total, highest = out * scale + weights @ v_block, total * scale + weights.sum(-1, keepdim=True), new
    return out / total


def in_place(q, k, v):
    scores = q @ k.transpose(-2, -1)
    scores.mul_(0.3)
    scores.sub_(scores.detach().amax(-1, keepdim=True))
    scores.exp_()
    return (scores @ v) / scores.sum(-1, keepdim=True)


def checkpointed(q, k, v):
    if not torch.is_grad_enabled():
        return written_out(q, k, v)
    return checkpoint(written_out, q, k, v, use_reentrant=False, preserve_rng_state=False)


def dropped_out(q, k, v):
    return functional.dropout(scores_of(q, k).softmax(-1), 0.2) @ v


def two_heads(q, k, v):
    def split(x):
        return x.view(BATCH, N, 2, D // 2).transpose(1, 2)

    return built_in_softmax(split(q), split(k), split(v)).transpose(1, 2).reshape(BATCH, N, D)


def self_attention(q, k, v):
    x = q + k * v
    return written_out(x, x, x)


def linear_causal(q, k, v):
    state = torch.einsum("bnd,bnv->bndv", k, v).cumsum(1)
    return torch.einsum("bnd,bndv->bnv", q, state)


class Recomputing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return built_in_softmax(q, k, v)

    @staticmethod
    def backward(ctx, d_out):
        q, k, v = ctx.saved_tensors
        weights = scores_of(q, k).softmax(-1)
        d_weights = d_out @ v.transpose(-2, -1)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True)) / math.sqrt(D)
        return d_scores @ k, d_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ d_out


def recomputing(q, k, v):
    return Recomputing.apply(q, k, v)


VARIANTS = [
    written_out,
    built_in_softmax,
    sdpa,
    sdpa_causal_heads,
    masked,
    baddbmm,
    chunked_queries,
    tiled_online,
    in_place,
    checkpointed,
    dropped_out,
    two_heads,
    self_attention,
    linear_causal,
    recomputing,
]


def inputs(device="cpu", dtype=torch.float32, shape=(BATCH, N, D), requires_grad=True):
    torch.manual_seed(0)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]


def forward_only(attention: Callable, q, k, v):
    with torch.no_grad():
        return attention(q, k, v)


def two_steps(attention: Callable, q, k, v):
    for _ in range(2):
        (attention(q, k, v) * 0.5).sum().backward()


def counted(run: Callable, *args, **options) -> AllocationMeter:
    with AllocationMeter(**options) as meter:
        run(*args)
    return meter
