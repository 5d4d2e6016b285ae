"""What a scheduler or a server gives while a trace is played to it, call by call, and the bytes that it holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.meters.sessions import CallLog
from labkit.meters.tensors import AllocationMeter
from labkit.serving.model import Model
from labkit.serving.player import (
    Piece,
    Request,
    filling_prompt,
    made_up_token,
    places_of,
    play,
    run_layer,
    sampled_token,
    scores_after,
)


def record_plans(
    make: Callable[[], Any], trace: Sequence[Request], max_tokens: int, sizes: tuple[int, int] | None = None
) -> list[tuple[str, Any, str | None]]:
    """What a new planner gives, call by call, where tokens are made up and nothing is written or attended.

    It ends early where a call raises, or a plan cannot be carried out. `sizes` are the number of blocks and their
    tokens, which are otherwise those of the planner's settings.
    """
    recorder = CallLog(None)
    with contextlib.suppress(Exception):
        recorder.thing = make()
        num_blocks, block_size = sizes or _sizes(recorder.settings())
        numbers = {request.id: number for number, request in enumerate(trace)}
        play(
            recorder,
            trace,
            max_tokens,
            lambda _copies, work: [None] * len(work),
            lambda request, number, end, _scores: made_up_token(numbers[request.id], number, end),
            filling=filling_prompt(len(trace), num_blocks * block_size),
        )
    return recorder.record


def record_serving(
    make: Callable[..., Any],
    spec: dict[str, int],
    nbytes: int,
    max_tokens: int,
    trace: Sequence[Request],
    metered: bool = False,
) -> dict[str, Any]:
    """What a new server gives, call by call, with the model's queries, keys and values: its `record`, as above.

    With `metered` also `held`, the bytes that the new server holds, and `kept`, those that writing and attending leave
    besides the outputs.
    """
    found: dict[str, Any] = {"record": [], "held": 0, "kept": 0}
    with contextlib.suppress(Exception):
        with _meter(metered) as memory:
            server = make(spec, nbytes, max_tokens)
            found["held"] = memory.live_bytes if memory else 0
        recorder, model = CallLog(server), Model(spec)
        found["record"] = recorder.record
        num_blocks, block_size = _sizes(recorder.settings())

        def layer(number: int, *arguments: Any) -> list[Any]:
            with _meter(metered) as memory:
                outputs = run_layer(server, number, *arguments)
                if memory:
                    n_bytes = sum(o.nbytes for o in outputs if isinstance(o, torch.Tensor))
                    found["kept"] += memory.live_bytes - n_bytes
            recorder.note("write", None)
            for o in outputs:
                recorder.note("attend", o)
            return outputs

        def compute(copies: Any, work: Sequence[Piece]) -> list[torch.Tensor]:
            for old, new in copies:
                recorder.copy(old, new)
            return scores_after(model, work, block_size, layer)

        filling = filling_prompt(len(trace), num_blocks * block_size)
        play(recorder, trace, max_tokens, compute, sampled_token, filling=filling)
    return found


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
    called; empty where nothing is metered. Of each piece of work the last token attends. The other keys are `settings`,
    the server's, and `tokens`, how many were computed.
    """
    generator = torch.Generator().manual_seed(13)
    trace = [Request(id, 0, tuple(prompt), max_new) for id, (prompt, max_new) in enumerate(requests)]
    live: list[int] = []
    with _meter(metered) as memory:
        server, n_tokens = make(spec, nbytes, max_tokens), 0
        size = server.settings()["block_size"]

        def compute(_copies: Any, work: Sequence[Piece]) -> list[None]:
            nonlocal n_tokens
            n_tokens += sum(len(piece.tokens) for piece in work)
            _random_layers(server, spec, work, size, generator)
            return [None] * len(work)

        def draw(request: Request, number: int, end: int, _scores: None) -> int:
            return made_up_token(request.id, number, end)

        def look() -> None:
            if memory:
                live.append(memory.live_bytes)

        play(server, trace, max_tokens, compute, draw, look=look)
        return {"settings": server.settings(), "tokens": n_tokens, "live_bytes": live}


def _random_layers(server: Any, spec: dict[str, int], work: Sequence[Piece], size: int, generator: Any) -> None:
    places = places_of(work, size)
    for layer in range(spec["layers"]):
        k, v = torch.randn(2, len(places[0]), spec["kv_heads"], spec["head_dim"], generator=generator)
        reads = [
            (torch.randn(1, spec["heads"], spec["head_dim"], generator=generator), list(piece.blocks), piece.end - 1)
            for piece in work
        ]
        run_layer(server, layer, places, k, v, reads)


def _sizes(settings: Any) -> tuple[int, int]:
    return settings["num_blocks"], settings["block_size"]


def _meter(metered: bool) -> contextlib.AbstractContextManager[AllocationMeter | None]:
    return AllocationMeter() if metered else contextlib.nullcontext()
