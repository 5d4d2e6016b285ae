"""A small byte-level model, and how one training step runs: with which attention, and with or without checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from labkit.labs.catalog import ROOT
from labkit.model.attention import CachedAttention
from labkit.model.generate import next_scores
from labkit.model.hybrid import Hybrid
from labkit.model.llama import Attend, Llama, Sizes
from labkit.model.weights import random_weights

SIZES = Sizes(layers=4, heads=5, kv_heads=5, head_dim=32, width=160, hidden=432, vocab=256, context=256)
"""1.28 million parameters; a token is a byte."""
HYBRID_SIZES = replace(SIZES, attention_every=4)
"""The same with a state in three of four layers: 4,911 parameters more."""
BATCH, STEPS = 8, 400
RATE, WARM_STEPS = 4e-3, 20
HELD_OUT = 16
"""The last 1/16 of the text is never learnt: the loss on it is reported."""
TEMPERATURE = 0.6

Blocks = list[Callable[[torch.Tensor], torch.Tensor]]
Run = Callable[[Blocks, torch.Tensor], torch.Tensor]
"""Applies the layers, one after the other."""


@dataclass(frozen=True)
class Way:
    """One way to run a step: its name, its attention, and how the layers are applied."""

    name: str
    attend: Attend
    run: Run
    cached: Callable[[], Attend] = CachedAttention
    """Makes the attention that writes text, a few tokens at a time."""
    hybrid: bool = False
    """Whether the model is the one with states."""


def textbook(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention written out, whose weights autograd keeps."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def fused(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Torch's own attention."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def in_order(blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Apply the layers without checkpoints."""
    for block in blocks:
        x = block(x)
    return x


def checkpointed(lab06: Any) -> Run:
    """Apply the layers in segments that Lab 06 recomputes."""
    return lambda blocks, x: lab06.checkpoint_sequential(blocks, None, x)


def new_model(seed: int = 0, *, hybrid: bool = False) -> Llama:
    """The model before training; its weights require gradients. With `hybrid` three of four layers have a state."""
    kind, sizes = (Hybrid, HYBRID_SIZES) if hybrid else (Llama, SIZES)
    weights = random_weights(sizes, seed)
    return kind(sizes, {name: weight.requires_grad_() for name, weight in weights.items()})


def chapters() -> torch.Tensor:
    """The bytes of the course's chapters, one after the other."""
    files = sorted((ROOT / "docs").glob("[0-9][0-9]_*.md"))
    return torch.tensor(list(b"\n\n".join(file.read_bytes() for file in files)))


def loss_of(llama: Llama, rows: torch.Tensor, way: Way) -> torch.Tensor:
    """The mean of −log p over each row's bytes after its first, in nats; `rows` is (batch, n + 1)."""
    tokens, following = rows[:, :-1], rows[:, 1:]
    x = way.run(llama.blocks(way.attend, torch.arange(tokens.shape[1])), llama.embed(tokens))
    return cross_entropy(llama.scores(x).flatten(0, 1), following.flatten())


def train(llama: Llama, text: torch.Tensor, way: Way, steps: int = STEPS, seed: int = 0) -> Iterator[float]:
    """Train, and yield the loss of each step on random pieces of all but the end of the text (AdamW, cosine)."""
    draw = torch.Generator().manual_seed(seed)
    learnt = text[: len(text) - len(text) // HELD_OUT]
    matrices = [weight for weight in llama.weights.values() if weight.dim() > 1]
    norms = [weight for weight in llama.weights.values() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    warm = min(WARM_STEPS, steps)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm, total_iters=warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps - warm, 1), eta_min=RATE / 10),
        ],
        [warm],
    )
    for _ in range(steps):
        loss = loss_of(llama, pieces(learnt, BATCH, SIZES.context, draw), way)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        yield float(loss.detach())


def held_out_loss(llama: Llama, text: torch.Tensor, way: Way) -> float:
    """The loss on the end of the text, which is not learnt."""
    rest = text[len(text) - len(text) // HELD_OUT :]
    rows = rest[: len(rest) // (SIZES.context + 1) * (SIZES.context + 1)].unflatten(0, (-1, SIZES.context + 1))
    with torch.no_grad():
        return float(loss_of(llama, rows[:32], way))


def pieces(text: torch.Tensor, batch: int, length: int, draw: torch.Generator) -> torch.Tensor:
    """Random pieces of the text, (batch, length + 1)."""
    begins = torch.randint(len(text) - length, (batch, 1), generator=draw)
    return text[begins + torch.arange(length + 1)]


def writing(llama: Llama, begin: str, n_bytes: int, attend: Attend, seed: int = 0) -> str:
    """What the model writes after `begin`, drawn at random, likelier bytes more often; on one line."""
    draw = torch.Generator().manual_seed(seed)
    tokens, start = list(begin.encode()), 0
    with torch.no_grad():
        for _ in range(n_bytes):
            scores = next_scores(llama, tokens[start:], start, attend)
            start = len(tokens)
            tokens.append(int((scores / TEMPERATURE).softmax(-1).multinomial(1, generator=draw)))
    return " ".join(bytes(tokens).decode(errors="replace").split())
