"""A page with the attention of every head over the prompt, from Lab 01's `standard_attention`."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from labkit.chat.adapters.base import per_query_head
from labkit.model.weights import Model

FOLDER = Path("plots")
MAX_TOKENS = 96
"""Of the prompt: a page for so many has 3 MB."""


def write_page(student: Any, model: Model, prompt: Sequence[int], file: Path = FOLDER / "attention.html") -> Path:
    """Run the model once over the prompt's last tokens, and write the weights of all heads as a page."""
    tokens = list(prompt)[-MAX_TOKENS:]
    weights: list[torch.Tensor] = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = per_query_head(q, k, v)
        hidden = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1).numpy()
        output, found = student.standard_attention(q.numpy(), k.numpy(), v.numpy(), mask=hidden)
        weights.append(torch.from_numpy(found))
        return torch.from_numpy(output)

    with torch.no_grad():
        model.llama.hidden(torch.tensor(tokens), attend, torch.arange(len(tokens)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(model.name, [model.text.decode_each(token) for token in tokens], weights), encoding="utf-8")
    return file


def page(name: str, tokens: Sequence[str], weights: Sequence[torch.Tensor]) -> str:
    """The page for one prompt: `weights` are (heads, n, n) for each layer. The square roots are stored, a byte each."""
    roots = (torch.stack(list(weights)).clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    data = {
        "tokens": list(tokens),
        "layers": roots.shape[0],
        "heads": roots.shape[1],
        "weights": base64.b64encode(roots.numpy().tobytes()).decode(),
    }
    parts = {"model": html.escape(name), "data": json.dumps(data).replace("<", "\\u003c")}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda mark: parts[mark[1]], template)
