"""The shapes of six public models' building blocks, to be traced: `uv run lab trace docs/models.py:Attention`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal self-attention as GPT-2 and nanoGPT have it, (B, N, width) to the same; `flash` takes torch's kernel."""

    def __init__(self, width: int = 768, heads: int = 12, flash: bool = False, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.flash, self.causal = heads, flash, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, width) to (B, N, width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.flash:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if self.causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            weights = scores.softmax(-1)
            out = weights @ v
        return self.proj(out.transpose(1, 2).flatten(-2))


class ViTBlock(nn.Module):
    """A block of a vision transformer (ViT-B): norm, attention, norm, MLP; `recompute` checkpoints the MLP."""

    def __init__(self, width: int = 768, heads: int = 12, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, flash=True, causal=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, width) to (B, N, width)."""
        x = x + self.attn(self.norm1(x))
        if self.recompute:
            return x + checkpoint(self.mlp, self.norm2(x), use_reentrant=False)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Sequential):
    """`depth` such blocks, one after the other."""

    def __init__(self, depth: int = 4, width: int = 768, heads: int = 12, recompute: bool = False) -> None:
        super().__init__(*[ViTBlock(width, heads, recompute) for _ in range(depth)])


class LlamaLayer(nn.Module):
    """A decoder layer of Llama 3's form: RMSNorm, rotary positions, grouped keys and values, SwiGLU.

    `repeat` copies each head of keys and values for its group of queries before attention; without it torch's kernel is
    told that they are shared. `recompute` computes SwiGLU's product again in the backward pass.
    """

    def __init__(
        self,
        width: int = 1024,
        heads: int = 16,
        kv_heads: int = 4,
        inner: int = 3584,
        repeat: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.repeat, self.recompute = heads, kv_heads, repeat, recompute
        head = width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * head, bias=False)
        self.v = nn.Linear(width, kv_heads * head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, width) to (B, N, width)."""
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        if self.recompute:
            return x + checkpoint(self.swiglu, self.gate(y), self.up(y), use_reentrant=False)
        return x + self.swiglu(self.gate(y), self.up(y))

    def swiglu(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(B, N, inner), twice, to (B, N, width)."""
        return self.down(F.silu(gate) * up)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, width) to (B, N, width)."""
        q = rotate(self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        k = rotate(self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2))
        v = self.v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        if self.repeat:
            group = self.heads // self.kv_heads
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeat)
        return self.o(out.transpose(1, 2).flatten(-2))


class Llama(nn.Sequential):
    """`depth` such layers, one after the other."""

    def __init__(self, depth: int = 4, repeat: bool = True, recompute: bool = False) -> None:
        super().__init__(*[LlamaLayer(repeat=repeat, recompute=recompute) for _ in range(depth)])


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions: (B, heads, N, d), each pair of halves turned by its position's angle."""
    half = x.shape[-1] // 2
    rates = 10000 ** -(torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=x.dtype), rates)
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Experts(nn.Module):
    """A mixture of experts of Mixtral's form: each token goes to two of eight SwiGLU networks."""

    def __init__(self, width: int = 512, inner: int = 1792, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(experts))
        self.up = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, width) to (B, N, width)."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for expert, (gate, up, down) in enumerate(zip(self.gate, self.up, self.down, strict=True)):
            token, rank = torch.where(chosen == expert)
            given = tokens[token]
            made = down(F.silu(gate(given)) * up(given))
            out = out.index_add(0, token, made * weights[token, rank, None])
        return out.view_as(x)


class UNetBlock(nn.Module):
    """A residual block of a diffusion model's U-Net on its way up: the skip joined, norm, SiLU, convolution, twice."""

    def __init__(self, channels: int = 320, skip: int = 320, groups: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, channels + skip), nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels + skip, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels + skip, channels, 1)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) and (B, skip, H, W) to (B, channels, H, W)."""
        x = torch.cat((x, skip), 1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return self.shortcut(x) + y
