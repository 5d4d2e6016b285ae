"""A tiny transformer with fixed random weights: the same tokens for the same prompt on every machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

SPEC: dict[str, int] = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 64}
"""The model of the traces. Two layers, so that keys and values of the second depend on all that came before."""

WEIGHTS_SEED = 13
SHARPNESS = 2.5
"""Times the usual spread of queries: attention looks at a few tokens, so that what it finds decides."""
ROTARY_BASE = 10_000.0

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""What attention finds: of (layer, q (n, H, d), k (n, H_kv, d), v (n, H_kv, d)), (n, H, d)."""


class Model:
    """A transformer of `spec`, in one dtype: norms without weights, rotary positions, greedy decoding."""

    def __init__(self, spec: dict[str, int] | None = None, dtype: torch.dtype = torch.float32) -> None:
        self.spec, self.dtype = dict(SPEC if spec is None else spec), dtype
        self.width = self.spec["heads"] * self.spec["head_dim"]
        drawn = _weights(tuple(sorted(self.spec.items())))
        self.weights = {name: torch.from_numpy(x).to(dtype) for name, x in drawn.items()}

    def logits(self, tokens: Sequence[int], positions: Sequence[int], attend: Attend) -> torch.Tensor:
        """The scores of all possible next tokens, (n, vocab), after each of n tokens of any sequences.

        `attend` is asked once a layer; q and k are turned to their positions before.
        """
        turns = self._turns(torch.tensor(positions))
        x = self.weights["embedding"][torch.tensor(tokens)]
        for layer in range(self.spec["layers"]):
            q, k, v = self._heads(layer, _norm(x), turns)
            found = attend(layer, q, k, v).to(self.dtype).flatten(1)
            x = x + found @ self.weights[f"out{layer}"]
            x = x + torch.relu(_norm(x) @ self.weights[f"up{layer}"]) @ self.weights[f"down{layer}"]
        return _norm(x) @ self.weights["unembedding"]

    def _turns(self, where: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the rotation angles at these positions, the same in each layer."""
        half = self.spec["head_dim"] // 2
        speeds = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = (where.double()[:, None] * speeds)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def _heads(self, layer: int, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        d = self.spec["head_dim"]
        q, k, v = ((x @ self.weights[f"{name}{layer}"]).unflatten(-1, (-1, d)) for name in "qkv")
        return _turned(q, *turns), _turned(k, *turns), v


@functools.cache
def _weights(spec: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """Weights in float32, drawn from one seed."""
    sizes, rng = dict(spec), np.random.default_rng(WEIGHTS_SEED)
    width, kv_width = (sizes[name] * sizes["head_dim"] for name in ("heads", "kv_heads"))

    def drawn(n_in: int, n_out: int, times: float = 1.0) -> Any:
        return (times * n_in**-0.5 * rng.standard_normal((n_in, n_out))).astype(np.float32)

    found = {"embedding": rng.standard_normal((sizes["vocab"], width)).astype(np.float32)}
    for layer in range(sizes["layers"]):
        found |= {f"q{layer}": drawn(width, width, SHARPNESS), f"k{layer}": drawn(width, kv_width)}
        found |= {f"v{layer}": drawn(width, kv_width), f"out{layer}": drawn(width, width, 2.0)}
        found |= {f"up{layer}": drawn(width, 2 * width), f"down{layer}": drawn(2 * width, width)}
    return found | {"unembedding": drawn(width, sizes["vocab"])}


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (n, heads, d) rotated by angles, the first half of a head's numbers with the second."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
