"""A model in which most layers have a recurrent state: the gated delta rule is an argument, as attention is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear, normalize, scaled_dot_product_attention, softplus

from labkit.model.attention import CachedAttention, expanded
from labkit.model.llama import Llama, Turn

Rule = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""The gated delta rule: (q, k, v, beta, g, state) to (o, state), as in Lab 15."""


class Hybrid(Llama):
    """A Llama whose layers have a state, but for each `sizes.attention_every`-th, which has attention.

    Queries and keys of a layer with a state are normalised, queries divided by √d, and not rotated. β is a sigmoid of
    the layer's input and the log decay −softplus of it, one for each head; heads are normalised after the rule (Yang,
    Kautz and Hatamizadeh 2024, without their convolution and output gate). Such a layer calls `attend.recur(layer, q,
    k, v, beta, g)`, with beta and g (..., H, n), which returns (..., H, n, d).
    """

    def mixed(self, layer: int, x: torch.Tensor, attend: Any, turn: Turn) -> torch.Tensor:
        """See `Llama`."""
        if self.sizes.has_attention(layer):
            return super().mixed(layer, x, attend, turn)
        own, weights = f"blk.{layer}", self.weights
        q, k, v = (self._heads(x, f"{own}.attn_{name}.weight") for name in "qkv")
        q, k = normalize(q, dim=-1) * q.shape[-1] ** -0.5, normalize(k, dim=-1)
        k, v = (expanded(each, q.shape[-3] // k.shape[-3]) for each in (k, v))
        beta = linear(x, weights[f"{own}.ssm_beta.weight"]).sigmoid()
        g = -softplus(linear(x, weights[f"{own}.ssm_alpha.weight"]) + weights[f"{own}.ssm_dt.bias"])
        return self._norm(attend.recur(layer, q, k, v, beta.mT, g.mT), f"{own}.ssm_norm")


class WholeText:
    """For training: torch's own attention, and states by a rule, of whole texts from their beginning."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    def recur(self, layer: int, *tokens: torch.Tensor) -> torch.Tensor:
        """See `Hybrid`."""
        return self.rule(*tokens, None)[0]


class CachedHybrid(CachedAttention):
    """For writing: torch's own attention with a cache, and states by a rule, which are kept from call to call."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule
        self.states: dict[int, torch.Tensor] = {}

    def recur(self, layer: int, *tokens: torch.Tensor) -> torch.Tensor:
        """See `Hybrid`."""
        o, self.states[layer] = self.rule(*tokens, self.states.get(layer))
        return o
