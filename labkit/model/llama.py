"""A transformer of Llama's form: RMSNorm, rotary positions, grouped heads, gated SiLU. Attention is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, silu

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of one layer: (layer, q (..., H, n, d), k (..., H_kv, n, d), v (..., H_kv, n, d)) to (..., H, n, d)."""


@dataclass(frozen=True)
class Sizes:
    """The numbers that define a model: counts, widths, the longest text, and the constants of rotation and norm."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    hidden: int
    vocab: int
    context: int
    rotary_base: float = 10_000.0
    epsilon: float = 1e-5
    attention_every: int = 1
    """Each layer of this number has attention; the others have a state: `labkit.model.hybrid`."""

    def has_attention(self, layer: int) -> bool:
        """Whether this layer, counted from 0, has attention and not a state."""
        return (layer + 1) % self.attention_every == 0

    def cache_bytes(self, tokens: int = 1, number_bytes: int = 4) -> int:
        """The bytes of the keys and values of `tokens` tokens in all layers with attention, and of the states."""
        with_cache = self.layers // self.attention_every
        states = (self.layers - with_cache) * self.heads * self.head_dim**2
        return (2 * with_cache * self.kv_heads * self.head_dim * tokens + states) * number_bytes


class Llama:
    """The model of Touvron et al. 2023 with grouped heads, for any `Sizes`.

    `weights` are named as in a GGUF file: `token_embd.weight` (vocab, width), `blk.0.attn_q.weight` (out, in), …,
    `output_norm.weight`. Without `output.weight` the embedding is the output matrix too. Rotation turns neighbouring
    numbers of a head, x[0::2] with x[1::2]; rows of the query and key matrices are in that order in GGUF files.
    """

    def __init__(self, sizes: Sizes, weights: dict[str, torch.Tensor]) -> None:
        self.sizes, self.weights = sizes, weights
        half = sizes.head_dim // 2
        self.speeds = sizes.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        if "rope_freqs.weight" in weights:  # Llama 3.1 and later: slower turns for longer texts
            self.speeds = self.speeds / weights["rope_freqs.weight"].double()

    def hidden(self, tokens: torch.Tensor, attend: Attend, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The state of each token after all layers, (..., n, width), to be passed to `scores`.

        Args:
            tokens: (..., n), integers.
            attend: attention, called once per layer with the queries, keys and values of these tokens.
            positions: (n,), of the tokens in their text; None leaves q and k unrotated.
        """
        x = self.embed(tokens)
        for block in self.blocks(attend, positions):
            x = block(x)
        return x

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens' vectors, (..., n, width)."""
        return self.weights["token_embd.weight"][tokens]

    def blocks(self, attend: Attend, positions: torch.Tensor | None) -> list[Callable[[torch.Tensor], torch.Tensor]]:
        """The layers as functions from (..., n, width) to the same shape."""
        turn = self._turn(positions)

        def block_of(layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: self._block(layer, x, attend, turn)

        return [block_of(layer) for layer in range(self.sizes.layers)]

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """The scores (logits) of all possible next tokens, (..., n, vocab)."""
        name = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        return linear(self._norm(hidden, "output_norm"), self.weights[name])

    def _block(self, layer: int, x: torch.Tensor, attend: Attend, turn: Turn) -> torch.Tensor:
        """One layer: attention, then the gated network; each is added to its input."""
        own = f"blk.{layer}"
        normed = self._norm(x, f"{own}.attn_norm")
        found = self.mixed(layer, normed, attend, turn)
        x = x + linear(found.transpose(-3, -2).flatten(-2), self.weights[f"{own}.attn_output.weight"])
        normed = self._norm(x, f"{own}.ffn_norm")
        gate, up = (linear(normed, self.weights[f"{own}.ffn_{name}.weight"]) for name in ("gate", "up"))
        return x + linear(silu(gate) * up, self.weights[f"{own}.ffn_down.weight"])

    def mixed(self, layer: int, x: torch.Tensor, attend: Attend, turn: Turn) -> torch.Tensor:
        """What a layer's heads take from the tokens' vectors x (..., n, width) by attention, (..., H, n, d)."""
        q, k, v = (self._heads(x, f"blk.{layer}.attn_{name}.weight") for name in "qkv")
        return attend(layer, rotated(q, turn), rotated(k, turn), v)

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """(..., n, width) as heads, (..., heads, n, d), contiguous."""
        return linear(x, self.weights[name]).unflatten(-1, (-1, self.sizes.head_dim)).transpose(-3, -2).contiguous()

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.sizes.epsilon)

    def _turn(self, positions: torch.Tensor | None) -> Turn:
        """Cosines and sines of the angles at these positions, (n, d / 2), the same in each layer."""
        if positions is None:
            return None
        dtype = self.weights["token_embd.weight"].dtype
        angles = positions.double()[:, None] * self.speeds
        return angles.cos().to(dtype), angles.sin().to(dtype)


Turn = tuple[torch.Tensor, torch.Tensor] | None


def rotated(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """x (..., n, d) with neighbouring numbers rotated by the angles of `turn`, if any (Su et al. 2021)."""
    if turn is None:
        return x
    cos, sin = turn
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
