"""Serves a trace with a submission's server: checks its plans and computes tokens from its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit.serving.dense import dense_completion
from labkit.serving.drive import OVERTAKEN, Active, Drive, Served
from labkit.serving.locations import Locations
from labkit.serving.model import Model
from labkit.serving.player import Piece, Request, run_layer, sampled_token, scores_after
from labkit.testing.compare import assert_keys, require
from labkit.testing.wording import dtype_name, none_hint, show, type_name

__all__ = ["BITS", "OVERTAKEN", "Served", "serve", "settings_of", "token_bytes"]

BITS = (2, 4, 8, 32)
"""Bits a number in the cache: codes with a scale and a zero, or float32."""

WRONG_TOKEN = (
    "every plan was right so far, so it is write, copy or attend: a place, a position, a head; or too few bits"
)


def token_bytes(spec: dict[str, int], bits: int) -> int:
    """The bytes of one token in all layers; up to 8 bits with a float16 scale and zero for each of its vectors."""
    vector = spec["head_dim"] * bits // 8 + (4 if bits <= 8 else 0)
    return 2 * spec["layers"] * spec["kv_heads"] * vector


def serve(
    server: Any,
    trace: Sequence[Request],
    spec: dict[str, int],
    nbytes: int,
    max_tokens: int,
    *,
    overtaken: int = OVERTAKEN,
    horizon: int | None = None,
    probe: bool = True,
) -> Served:
    """Serve `trace` with `server`, checking its plans and its attention, and return the result.

    Args:
        server: has `settings`, `submit`, `plan`, `copy`, `write`, `attend` and `advance`: see Lab 13.
        trace: of the requests, in the order in which they come.
        spec: of the model, whose weights are the engine's own.
        nbytes: of the cache, at most.
        max_tokens: that a step may compute, at most.
        overtaken: how many later requests may finish while one makes no progress.
        horizon: within how many steps requests count as done in time; None for as long as requests come.
        probe: whether all blocks are asked for at the end.

    Raises:
        AssertionError: a plan, a result of attention or a completion is wrong.
    """
    bits, block_size, num_blocks = settings_of(server, spec, nbytes)
    engine = _Engine(server, trace, Locations(num_blocks, block_size), max_tokens, overtaken, horizon)
    engine.token_bytes, engine.model = token_bytes(spec, bits), Model(spec)
    engine.served.cache_bytes = num_blocks * block_size * token_bytes(spec, bits)
    return engine.run(probe)


def settings_of(server: Any, spec: dict[str, int], nbytes: int) -> tuple[int, int, int]:
    """Bits, block size and number of blocks of a server; fails unless they are numbers that fit the budget."""
    names = ("bits", "block_size", "num_blocks")
    found = assert_keys("what settings() returns", server.settings(), names)
    bits, size, count = (found[name] for name in names)
    require(type(bits) is int and bits in BITS, f"settings() says bits {show(bits)}: one of {BITS} is expected")
    for name in names[1:]:
        value = found[name]
        require(type(value) is int and value > 0, f"settings() says {name} {show(value)}, expected at least 1")
    weight = count * size * token_bytes(spec, bits)
    require(
        weight <= nbytes,
        f"{count} blocks of {size} tokens in {bits} bits weigh {weight:,} bytes, and the budget is {nbytes:,}\nA token "
        f"weighs {token_bytes(spec, bits)} bytes in {bits} bits: keys and values, in every layer, and up to 8 bits a "
        "scale and a zero for each vector",
    )
    return bits, size, count


class _Engine(Drive):
    """A drive in which a model computes the next tokens from the server's cache."""

    model: Model

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        for old, new in copies:
            self.planner.copy(old, new)

    def scores(self, step: int, work: Sequence[Piece]) -> list[torch.Tensor]:
        def layer(number: int, places: Any, k: torch.Tensor, v: torch.Tensor, reads: Any) -> list[Any]:
            found = run_layer(self.planner, number, places, k, v, reads)
            for piece, (q, *_), o in zip(work, reads, found, strict=True):
                _check_output(o, q, f"step {step}: attend for request {piece.id!r} in layer {number}")
            return found

        return scores_after(self.model, work, self.locations.block_size, layer)

    def draw(self, request: Request, number: int, end: int, scores: torch.Tensor) -> int:
        return sampled_token(request, number, end, scores)

    def check_token(self, one: Active, token: int, step: int) -> None:
        request, at = one.request, len(one.completion)
        drawn = (request.sampling, request.first + one.number)
        want = dense_completion(request.prompt, request.max_new, *drawn)[at]
        which = f"completion {one.number}" if request.n > 1 else "the completion"
        message = f"step {step}: token {at} of {which} of request {request.id!r} is {token}, expected {want}"
        require(token == want, f"{message}\nUsual cause: {WRONG_TOKEN}")


def _check_output(o: Any, q: torch.Tensor, message: str) -> None:
    require(isinstance(o, torch.Tensor), f"{message} returns {type_name(o)}, expected a tensor{none_hint(o)}")
    require(tuple(o.shape) == tuple(q.shape), f"{message} returns shape {tuple(o.shape)}, expected {tuple(q.shape)}")
    require(o.dtype == q.dtype, f"{message} returns {dtype_name(o.dtype)}, expected {dtype_name(q.dtype)}, as q")
    n_bad = int((~o.isfinite()).sum())
    require(
        n_bad == 0,
        f"{message} returns {n_bad} numbers that are NaN or infinite\nUsual cause: places are read that were never "
        "written: after the last token, or in another block",
    )
