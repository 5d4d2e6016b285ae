"""Sizes of whole models, and the parameters that follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSizes:
    """A decoder of equal layers: norm, attention, norm, feed-forward, each pair with a residual around it.

    `gated` models have three matrices in the feed-forward part (SwiGLU, as Llama), the others two (GELU, as GPT).
    `dropout` is whether the model is trained with it; its masks are kept for the backward pass. `positions` is how many
    positions are learned, 0 where positions are rotations. `tied`: the output layer is the embedding once more.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    biases: bool = False
    dropout: bool = False
    tied: bool = False
    positions: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")

    @property
    def query_width(self) -> int:
        """Width of all queries of a token, and of attention's output."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Numbers that are learned, in the whole model."""
        embeddings = (self.vocab + self.positions) * self.hidden
        output_layer = 0 if self.tied else self.vocab * self.hidden
        return embeddings + self.layers * self._layer_parameters + self._norm_parameters + output_layer

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.biases else 1)

    @property
    def _layer_parameters(self) -> int:
        attention = self.hidden * (self.query_width + 2 * self.kv_width) + self.query_width * self.hidden
        feed_forward = (3 if self.gated else 2) * self.hidden * self.ffn
        widths_out = (
            self.query_width + 2 * self.kv_width + self.hidden + (2 if self.gated else 1) * self.ffn + self.hidden
        )
        return attention + feed_forward + (widths_out if self.biases else 0) + 2 * self._norm_parameters


def gpt(layers: int, hidden: int, heads: int, vocab: int = 50257, positions: int = 1024) -> ModelSizes:
    """A model of GPT's kind: feed-forward parts of four widths, biases, dropout, learned positions, tied embeddings."""
    return ModelSizes(
        layers,
        hidden,
        heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=vocab,
        gated=False,
        biases=True,
        dropout=True,
        tied=True,
        positions=positions,
    )


MODELS = {
    "gpt-2": gpt(12, 768, 12),
    "gpt-2-xl": gpt(48, 1600, 25),
    "gpt-3": gpt(96, 12288, 96, positions=2048),
    "llama-3.2-1b": ModelSizes(16, 2048, 32, kv_heads=8, head_dim=64, ffn=8192, vocab=128256, tied=True),
    "llama-3-8b": ModelSizes(32, 4096, 32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256),
    "mistral-7b": ModelSizes(32, 4096, 32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000),
}
"""Models by name, with the sizes that their papers or published configurations give."""
