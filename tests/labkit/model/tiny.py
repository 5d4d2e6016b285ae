"""A tiny random model of Llama's form as a GGUF file, written by gguf's own writer."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from labkit.model.llama import Llama, Sizes
from labkit.model.tokenizer import Text
from labkit.model.weights import weight_shapes, write_model

SIZES = Sizes(3, 6, 2, 8, width=48, hidden=80, vocab=300, context=512, rotary_base=5000.0, epsilon=2.0**-13)
SENTENCES = [
    "The sky is blue because short waves are scattered.",
    "Grüße aus Köln, naïve façade; ça va très bien, señor Ñandú?",
    "日本語の文章も、한국어도, और हिन्दी भी।",
    "Привет, мир! Ἐν ἀρχῇ ἦν ὁ λόγος. مرحبا بالعالم",
    "👩‍👩‍👧 emoji 🎉🏳️‍🌈, and ½ ² … “quotes”\n\n\tdef f(x):\n    return x**2  # 3.14159\r\n",
    "It's 12345 o'clock,   isn't it? They'll've",
]


def tiny_llama(seed: int = 0, sizes: Sizes = SIZES) -> Llama:
    """A model with random weights: norms near 1, matrices that keep numbers in range."""
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(sizes).items():
        drawn = torch.randn(shape, generator=draw)
        weights[name] = 1 + drawn / 10 if "norm" in name else drawn * 2 / shape[-1] ** 0.5
    return Llama(sizes, weights)


def tiny_text(n_tokens: int = SIZES.vocab) -> Text:
    """Byte-level BPE whose merges are learnt from the sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=n_tokens, initial_alphabet=alphabet))
    model = json.loads(learner.to_str())["model"]
    return Text(list(model["vocab"]), [" ".join(pair) for pair in model["merges"]], pre="smollm")


def write_tiny(file: Path, seed: int = 0) -> Path:
    """Write the tiny model."""
    write_model(file, "tiny", tiny_llama(seed), tiny_text())
    return file
