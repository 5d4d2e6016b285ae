"""Lab 11 in the model: four ranks share the prompt, filled up to a multiple of 8; torch computes one more token."""

from __future__ import annotations

from functools import partial

import torch

from labkit.chat.adapters.base import Adapter
from labkit.chat.setting import checked
from labkit.model.attention import grouped_attention

RANKS = 4
"""That share a prompt."""


class RingAttention(Adapter):
    """Lab 11: four ranks share the prompt, filled up to a multiple of 8; one more token is computed by torch."""

    attends = "ring_attention_forward"

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        from labkit.ranks.threads import run_ranks

        keys, values = self.so_far(layer, k, v)
        n = q.shape[-2]
        if n == 1:
            return grouped_attention(q, keys, values)
        more = -n % (2 * RANKS)
        shards = [self.student.shard(torch.nn.functional.pad(x, (0, 0, 0, more)), RANKS, "zigzag") for x in (q, k, v)]
        ring = partial(self.student.ring_attention_forward, causal=True, layout="zigzag")
        ran = run_ranks(ring, list(zip(*shards, strict=True)))
        self.sent_bytes, self.seq_len = [each.sent_bytes for each in ran.traffic], n + more
        output = self.student.unshard([o for o, _ in ran.results], "zigzag")[..., :n, :]
        return checked(output, q, "ring_attention_forward")

    def notes(self) -> list[str]:
        """See `Adapter`."""
        from labkit.testing.rings import Sizes, sent_bytes

        sizes = self.setting.sizes
        formula = sent_bytes(
            Sizes("ring", RANKS, self.seq_len, sizes.heads, sizes.kv_heads, sizes.head_dim, 4), backward=False
        )
        counted = f"{max(self.sent_bytes):,}"
        return [
            f"{RANKS} ranks with {self.seq_len // RANKS} tokens each: a rank sent {counted} bytes per layer; "
            f"by the formula {formula:,}"
        ]


ADAPTER = RingAttention
