"""Memory for training a whole model, part by part, in closed form from its sizes; nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass

ATTENTIONS = ("written_out", "fused")
CHECKPOINTS = ("none", "selective", "layers")
ELEMENT_BYTES, FLOAT32_BYTES, MASK_BYTES = 2, 4, 1
"""Weights, gradients and activations have 16 bits; the optimizer, logits and log-sum-exps have 32; a mask's entry 8."""


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
        """The number of parameters of the whole model."""
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


def training_memory(
    sizes: ModelSizes, batch: int, seq_len: int, attention: str = "fused", checkpoint: str = "none"
) -> dict[str, int]:
    """Bytes of each part of a training step in mixed precision with Adam.

    Args:
        sizes: the model.
        batch: sequences in a step (on one device; nothing is shared out).
        seq_len: tokens in each.
        attention: `written_out` keeps arrays of seq_len × seq_len, `fused` one number a query and head.
        checkpoint: what runs twice: `none`; `selective`, attention's inside; `layers`, every layer from its input.

    Returns:
        dict with "weights", "gradients" (2 bytes a parameter each), "optimizer" (12: a float32 copy of the weights and
        Adam's two averages), "activations" (what layers keep for the backward pass, attention's inside left out),
        "attention" (its inside), "logits" (float32, kept by the loss). Where pieces run twice, the one that is computed
        again is counted.

    Raises:
        ValueError: `batch` or `seq_len` is below 1, or a choice is none of those listed.
    """
    for name, value in (("batch", batch), ("seq_len", seq_len)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for name, choice, choices in (("attention", attention, ATTENTIONS), ("checkpoint", checkpoint, CHECKPOINTS)):
        if choice not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {choice!r}")
    tokens = batch * seq_len
    alive_layers = 1 if checkpoint == "layers" else sizes.layers
    inputs_only = sizes.layers - alive_layers
    insides = sizes.layers if checkpoint == "none" else 1
    activations = alive_layers * layer_bytes(sizes) + inputs_only * ELEMENT_BYTES * sizes.hidden + _ends_bytes(sizes)
    return {
        "weights": ELEMENT_BYTES * sizes.parameters,
        "gradients": ELEMENT_BYTES * sizes.parameters,
        "optimizer": 3 * FLOAT32_BYTES * sizes.parameters,
        "activations": tokens * activations,
        "attention": tokens * insides * attention_bytes(sizes, seq_len, attention),
        "logits": tokens * FLOAT32_BYTES * sizes.vocab,
    }


def layer_bytes(sizes: ModelSizes) -> int:
    """Bytes that one layer keeps for each token, without the inside of attention.

    For a model of GPT's kind these are the 34·h bytes of Korthikanti et al. (2022), section 4.1, term by term.
    """
    norms = 2 * sizes.hidden
    attention = sizes.hidden + sizes.query_width + 2 * sizes.kv_width + sizes.query_width
    feed_forward = sizes.hidden + (4 if sizes.gated else 2) * sizes.ffn
    masks = 2 * sizes.hidden * MASK_BYTES if sizes.dropout else 0
    return ELEMENT_BYTES * (norms + attention + feed_forward) + masks


def attention_bytes(sizes: ModelSizes, seq_len: int, attention: str) -> int:
    """Bytes that the inside of one layer's attention keeps for each token, for all heads: the softmax and what follows.

    Written out with dropout these are the 5·a·s bytes of Korthikanti et al.: softmax, mask, and what the mask leaves.
    """
    if attention == "fused":
        return FLOAT32_BYTES * sizes.heads
    a_pair = 2 * ELEMENT_BYTES + MASK_BYTES if sizes.dropout else ELEMENT_BYTES
    return a_pair * sizes.heads * seq_len


def _ends_bytes(sizes: ModelSizes) -> int:
    """Outside the layers, for each token: the embedding's dropout, the last norm's input, the output layer's input."""
    return 2 * ELEMENT_BYTES * sizes.hidden + (MASK_BYTES * sizes.hidden if sizes.dropout else 0)
