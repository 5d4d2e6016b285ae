"""What training a whole model takes, part by part: closed forms, with nothing allocated."""

from __future__ import annotations

from labkit.bench.model_sizes import ModelSizes

ATTENTIONS = ("written_out", "fused")
CHECKPOINTS = ("none", "selective", "layers")
ELEMENT_BYTES, FLOAT32_BYTES, MASK_BYTES = 2, 4, 1
"""Weights, gradients and activations have 16 bits; the optimizer, logits and log-sum-exps have 32; a mask's entry 8."""


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
        "attention" (its inside), "logits" (float32, kept by the loss). Where pieces run twice, the one that is there
        again is counted in.

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
    """What one layer keeps for each token, attention's inside left out.

    For a model of GPT's kind these are the 34·h bytes of Korthikanti et al. (2022), section 4.1, term by term.
    """
    norms = 2 * sizes.hidden
    attention = sizes.hidden + sizes.query_width + 2 * sizes.kv_width + sizes.query_width
    feed_forward = sizes.hidden + (4 if sizes.gated else 2) * sizes.ffn
    masks = 2 * sizes.hidden * MASK_BYTES if sizes.dropout else 0
    return ELEMENT_BYTES * (norms + attention + feed_forward) + masks


def attention_bytes(sizes: ModelSizes, seq_len: int, attention: str) -> int:
    """What the inside of one layer's attention keeps for each token: for all its heads, the softmax and what follows.

    Written out with dropout these are the 5·a·s bytes of Korthikanti et al.: softmax, mask, and what the mask leaves.
    """
    if attention == "fused":
        return FLOAT32_BYTES * sizes.heads
    a_pair = 2 * ELEMENT_BYTES + MASK_BYTES if sizes.dropout else ELEMENT_BYTES
    return a_pair * sizes.heads * seq_len


def _ends_bytes(sizes: ModelSizes) -> int:
    """Beside the layers, for each token: the embedding's dropout, the last norm's input, the output layer's input."""
    return 2 * ELEMENT_BYTES * sizes.hidden + (MASK_BYTES * sizes.hidden if sizes.dropout else 0)
