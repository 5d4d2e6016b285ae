"""One layer of a step of a server: what is written to its cache and what attention finds there, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def run_layer(
    server: Any,
    layer: int,
    places: tuple[list[int], list[int]],
    k: torch.Tensor,
    v: torch.Tensor,
    reads: Sequence[tuple[torch.Tensor, list[int], int]],
) -> list[Any]:
    """Write the keys and values of a step, then attend for each piece of work: its output, as it was returned.

    Args:
        server: what has `write` and `attend`.
        layer: the layer.
        places: the block and the place in it of each token, two lists.
        k: keys (n, H_kv, d). v: values.
        reads: for each piece of work its queries, its block table and its first position.
    """
    server.write(layer, *places, k, v)
    return [server.attend(layer, q, table, start) for q, table, start in reads]
