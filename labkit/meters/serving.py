"""Runs a server's cache: one layer of a step, or a whole run, whose bytes it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.meters.tensors import AllocationMeter

MOST_STEPS = 10_000


def run_layer(
    server: Any,
    layer: int,
    places: tuple[list[int], list[int]],
    k: torch.Tensor,
    v: torch.Tensor,
    reads: Sequence[tuple[torch.Tensor, list[int], int]],
) -> list[Any]:
    """Write the keys and values of a step, then attend for each piece of work; returns the unchanged outputs.

    Args:
        server: what has `write` and `attend`.
        layer: the layer.
        places: the block and the place in it of each token, two lists.
        k: keys (n, H_kv, d). v: values.
        reads: for each piece of work its queries, its block table and its first position.
    """
    server.write(layer, *places, k, v)
    return [server.attend(layer, q, table, start) for q, table, start in reads]


def held_while_serving(
    make: Callable[..., Any],
    spec: dict[str, int],
    nbytes: int,
    max_tokens: int,
    requests: Sequence[tuple[list[int], int]],
    metered: bool = True,
) -> dict[str, Any]:
    """Serve requests, (prompt, max_new), with random keys, values and next tokens; returns the bytes held.

    `live_bytes` holds what was alive before the first step and after each, all that the server made since `make` was
    called; empty where nothing is metered. Of each piece of work the last token attends. Told too are the server's
    `settings` and the `tokens` that were computed.
    """
    generator = torch.Generator().manual_seed(13)
    if not metered:
        return _serve_anything(make(spec, nbytes, max_tokens), spec, requests, generator, lambda: None)
    with AllocationMeter() as life:
        server, live = make(spec, nbytes, max_tokens), []
        told = _serve_anything(server, spec, requests, generator, lambda: live.append(life.live_bytes))
    return told | {"live_bytes": live}


def _serve_anything(
    server: Any,
    spec: dict[str, int],
    requests: Sequence[tuple[list[int], int]],
    generator: torch.Generator,
    look: Callable[[], None],
) -> dict[str, Any]:
    size, known, n_tokens = server.settings()["block_size"], {}, 0
    for id, (prompt, max_new) in enumerate(requests):
        server.submit(id, list(prompt), max_new)
        known[id] = [len(prompt), len(prompt) + max_new]
    look()
    for _ in range(MOST_STEPS):
        work = server.plan()["work"] if any(now < final for now, final in known.values()) else []
        if not work:
            break
        _any_layers(server, spec, work, size, generator)
        n_tokens += sum(len(piece["tokens"]) for piece in work)
        ended = [piece["id"] for piece in work if piece["start"] + len(piece["tokens"]) == known[piece["id"]][0]]
        for id in ended:
            known[id][0] += 1
        server.advance({id: known[id][0] % spec["vocab"] for id in ended})
        look()
    return {"settings": server.settings(), "tokens": n_tokens, "live_bytes": []}


def _any_layers(server: Any, spec: dict[str, int], work: Any, size: int, generator: torch.Generator) -> None:
    where = [
        (piece["blocks"][at // size], at % size)
        for piece in work
        for at in range(piece["start"], piece["start"] + len(piece["tokens"]))
    ]
    places = [block for block, _ in where], [place for _, place in where]
    for layer in range(spec["layers"]):
        k, v = torch.randn(2, len(where), spec["kv_heads"], spec["head_dim"], generator=generator)
        reads = [
            (
                torch.randn(1, spec["heads"], spec["head_dim"], generator=generator),
                piece["blocks"],
                piece["start"] + len(piece["tokens"]) - 1,
            )
            for piece in work
        ]
        run_layer(server, layer, places, k, v, reads)
