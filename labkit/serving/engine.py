"""The engine: serves a trace with a server under test, checks every plan, and makes all counts from the plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from labkit.meters.serving import run_layer
from labkit.serving.model import Model, dense_completion
from labkit.serving.places import Piece, Places, Text
from labkit.serving.plans import check_work, read_plan
from labkit.serving.trace import Request
from labkit.testing.compare import assert_keys, require
from labkit.testing.wording import dtype_name, kind, none_hint, show

BITS = (2, 4, 8, 32)
"""What a server may keep of a number: codes with a scale and a zero, or float32 as it is."""

OVERTAKEN = 8
"""How many requests that came later may be done while one gets no further."""

WRONG_TOKEN = (
    "every plan was right so far, so it is write, copy or attend: a place, a position, a head; or too few bits"
)


@dataclass
class Served:
    """What came of a trace: completions, and counts that the engine made from the plans, the same on every machine."""

    completions: dict[Any, list[int]] = field(default_factory=dict)
    steps: int = 0
    """Steps until the last request was done."""
    in_time: int = 0
    """Requests done within the horizon."""
    tokens: int = 0
    """Tokens generated."""
    bytes_read: int = 0
    """Bytes of the cache that attention read for them: of each piece of work its context, once a layer."""
    prefix_tokens: int = 0
    """Tokens of prompts that were found and not computed."""
    again: int = 0
    """Tokens computed a second time, after a request gave up its blocks."""
    peak_blocks: int = 0
    """The most blocks that one step's tables named together."""
    peak_bytes: int = 0
    """What these weigh."""

    @property
    def bytes_read_a_token(self) -> Fraction:
        """Bytes read for each token generated."""
        return Fraction(self.bytes_read, max(self.tokens, 1))


def token_bytes(spec: dict[str, int], bits: int) -> int:
    """The bytes of one token in all layers; up to 8 bits with a float16 scale and zero a token and head."""
    vector = spec["head_dim"] * bits // 8 + (4 if bits <= 8 else 0)
    return 2 * spec["layers"] * spec["kv_heads"] * vector


def serve(
    server: Any,
    trace: Sequence[Request],
    spec: dict[str, int],
    nbytes: int,
    max_tokens: int,
    *,
    layer: Callable[..., list[Any]] = run_layer,
    overtaken: int = OVERTAKEN,
    horizon: int | None = None,
    probe: bool = True,
) -> Served:
    """Serve `trace` with `server`, whose plans are checked and whose cache is used; what came of it.

    Args:
        server: has `settings`, `submit`, `plan`, `copy`, `write`, `attend` and `advance`, see Lab 13.
        spec: of the model, whose weights are the engine's own.
        nbytes: of the cache, at most.
        max_tokens: that a step may compute, at most.
        layer: runs one layer of a step; a suite gives a program of its own, which runs where the server is.
        overtaken: how many later requests may be done while one gets no further.
        horizon: within how many steps requests count as done in time; None for as long as requests come.
        probe: whether all blocks are asked for at the end.

    Raises:
        AssertionError: saying what is off in a plan, in what attention found, or in a completion.
    """
    return _Engine(server, trace, spec, nbytes, max_tokens, layer, overtaken, horizon).run(probe)


class _Served(Text):
    """A request that is served: its text so far, and which positions have been computed."""

    def __init__(self, places: Places, request: Request) -> None:
        super().__init__(places, request.prompt)
        self.request = request
        self.computed: set[int] = set()
        self.overtaken = 0

    @property
    def completion(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def is_done(self) -> bool:
        return len(self.completion) == self.request.max_new


class _Engine:
    def __init__(
        self,
        server: Any,
        trace: Sequence[Request],
        spec: dict[str, int],
        nbytes: int,
        max_tokens: int,
        layer: Callable[..., list[Any]],
        overtaken: int,
        horizon: int | None,
    ) -> None:
        self.server, self.trace, self.spec, self.max_tokens = server, trace, spec, max_tokens
        self.run_layer, self.overtaken_allowed = layer, overtaken
        self.horizon = trace[-1].arrival + 1 if horizon is None else horizon
        self.model = Model(spec)
        bits, block_size, num_blocks = _settings(server.settings(), spec, nbytes)
        self.token_bytes = token_bytes(spec, bits)
        self.places = Places(num_blocks, block_size)
        self.active: dict[Any, Text] = {}
        self.served = Served()
        self.last_user: dict[int, Any] = {}
        self.order = {request.id: number for number, request in enumerate(trace)}

    def run(self, probe: bool) -> Served:
        waiting, step = list(self.trace), 0
        most_steps = self._most_steps()
        while waiting or self.active:
            while waiting and waiting[0].arrival <= step:
                request = waiting.pop(0)
                self._submit(request)
            if self.active:
                self._step(step)
            step += 1
            require(
                step <= most_steps,
                f"after {step} steps {len(self.active)} requests are not done; one after the other all would be in "
                f"{most_steps // 2}: {self._told_active()}",
            )
        self.served.steps = step
        if probe:
            self._probe(step)
        return self.served

    def _submit(self, request: Request) -> None:
        self.server.submit(request.id, list(request.prompt), request.max_new)
        self.active[request.id] = _Served(self.places, request)

    def _step(self, step: int) -> None:
        work = self._planned(step)
        outputs = self.model.logits(
            [token for piece in work for token in piece.tokens],
            [position for piece in work for position in range(piece.start, piece.end)],
            lambda layer, q, k, v: self._attend(step, work, layer, q, k, v),
        )
        self._count(work)
        sampled = self._sampled(work, outputs, step)
        self.server.advance(dict(sampled))
        self._finish(sampled, step)

    def _planned(self, step: int) -> list[Piece]:
        """The work of a step, believed: its copies are made, and in `places` it is written."""
        size = self.places.block_size
        copies, work = read_plan(self.server.plan(), self.places.num_blocks, step)
        require(
            work,
            f"step {step}: nothing is computed, and {len(self.active)} requests are not done, of which at least one "
            f"can go on: {self._told_active()}\nUsual cause: blocks are not given back, or a request that needs one "
            "waits for itself",
        )
        check_work(work, self.active, size, self.max_tokens, step)
        for old, new in copies:
            self.server.copy(old, new)
        self.places.copy(copies)
        self.places.write(work, self.active, step)
        for piece in work:
            self.places.assert_readable(piece, self.active[piece.id], step)
            self.last_user.update(dict.fromkeys(piece.blocks, piece.id))
        return work

    def _attend(
        self, step: int, work: list[Piece], layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        where = [self.places.place_of(piece, at) for piece in work for at in range(piece.start, piece.end)]
        blocks, places = [block for block, _ in where], [place for _, place in where]
        queries = q.split([len(piece.tokens) for piece in work])
        reads = [(rows, list(piece.blocks), piece.start) for rows, piece in zip(queries, work, strict=True)]
        found = self.run_layer(self.server, layer, (blocks, places), k, v, reads)
        for piece, rows, o in zip(work, queries, found, strict=True):
            _check_output(o, rows, f"step {step}: attend for request {piece.id!r} in layer {layer}")
        return torch.cat(found)

    def _count(self, work: list[Piece]) -> None:
        served, size = self.served, self.places.block_size
        n_blocks = len({block for piece in work for block in piece.blocks})
        served.peak_blocks = max(served.peak_blocks, n_blocks)
        served.peak_bytes = served.peak_blocks * size * self.token_bytes
        served.bytes_read += sum(piece.end for piece in work) * self.token_bytes
        for piece in work:
            one, now = self._of(piece.id), set(range(piece.start, piece.end))
            served.again += len(one.computed & now)
            if now - one.computed:
                one.overtaken = 0
            one.computed |= now

    def _sampled(self, work: list[Piece], outputs: torch.Tensor, step: int) -> dict[Any, int]:
        """The next token of each request whose last known one was computed; fails where it is not the right one."""
        sampled, last = {}, -1
        for piece in work:
            last += len(piece.tokens)
            one = self._of(piece.id)
            if piece.end < len(one.tokens):
                continue
            token, number = int(outputs[last].argmax()), len(one.completion)
            want = dense_completion(one.request.prompt, one.request.max_new)[number]
            told = f"step {step}: token {number} of the completion of request {piece.id!r} is {token}, expected {want}"
            require(token == want, f"{told}\nUsual cause: {WRONG_TOKEN}")
            sampled[piece.id] = token
            one.append(token)
        return sampled

    def _finish(self, sampled: dict[Any, int], step: int) -> None:
        done = [one for id in sampled if (one := self._of(id)).is_done]
        for one in done:
            del self.active[one.request.id]
            self.served.completions[one.request.id] = one.completion
            self.served.in_time += step < self.horizon
            self.served.tokens += one.request.max_new
            self.served.prefix_tokens += sum(at not in one.computed for at in range(len(one.request.prompt)))
        for other in map(self._of, self.active):
            came = self.order[other.request.id]
            other.overtaken += sum(self.order[one.request.id] > came for one in done)
            require(
                other.overtaken <= self.overtaken_allowed,
                f"step {step}: request {other.request.id!r} has been overtaken by {other.overtaken} that came later "
                f"and are done, while it got no further ({self.overtaken_allowed} are allowed): it starves\nUsual "
                "cause: whoever fits is taken first, or the oldest gives way: who comes first is served first, and the "
                "last that came gives way",
            )

    def _probe(self, step: int) -> None:
        """Ask for all blocks at once, when everybody has gone."""
        places, last = self.places, 1 + max(request.id for request in self.trace)
        rng = np.random.default_rng([len(self.trace), step])
        prompt = rng.integers(0, self.spec["vocab"], places.num_blocks * places.block_size - 1).tolist()
        told = f"after the last request all {places.num_blocks} blocks are free, and one that needs all of them"
        try:
            self.server.submit(last, prompt, 1)
        except ValueError as error:
            require(False, f"{told}, {len(prompt)} tokens and 1 to follow, is refused: {error}")
        self.active = {last: Text(places, prompt)}
        named: set[int] = set()
        for more in range(-(-len(prompt) // self.max_tokens) + 2):
            _, work = read_plan(self.server.plan(), places.num_blocks, step + more)
            if not work:
                break
            check_work(work, self.active, places.block_size, self.max_tokens, step + more)
            named.update(work[0].blocks)
            if work[0].end == len(prompt):
                self.server.advance({last: 0})
                return
        require(False, f"{told} is never computed: {self._told_lost(named)}")

    def _told_lost(self, named: set[int]) -> str:
        lost = [block for block in range(self.places.num_blocks) if block not in named]
        if not named or not lost:
            return "some blocks were not given back\nUsual cause: a request that is done keeps its blocks"
        users = ", ".join(sorted({show(self.last_user[block]) for block in lost if block in self.last_user}))
        return f"{len(lost)} blocks are lost, {show(lost)}, last used by request {users or 'nobody'}"

    def _most_steps(self) -> int:
        """Twice the steps that serving one request after the other takes, and as many as requests come in."""
        alone = sum(-(-len(each.prompt) // self.max_tokens) + each.max_new for each in self.trace)
        return 2 * (alone + self.trace[-1].arrival + 1)

    def _told_active(self) -> str:
        return ", ".join(
            f"request {id!r} has {len(self._of(id).completion)} of {self._of(id).request.max_new} tokens"
            for id in list(self.active)[:3]
        )

    def _of(self, id: Any) -> _Served:
        found = self.active[id]
        assert isinstance(found, _Served)
        return found


def _settings(found: Any, spec: dict[str, int], nbytes: int) -> tuple[int, int, int]:
    """Bits, block size and number of blocks, if they are numbers that fit the budget."""
    names = ("bits", "block_size", "num_blocks")
    assert_keys("what settings() returns", found, names)
    bits, size, count = (found[name] for name in names)
    require(bits in BITS and type(bits) is int, f"settings() says bits {show(bits)}: one of {BITS} is expected")
    for name in names[1:]:
        value = found[name]
        require(type(value) is int and value > 0, f"settings() says {name} {show(value)}, expected at least 1")
    weight = count * size * token_bytes(spec, bits)
    require(
        weight <= nbytes,
        f"{count} blocks of {size} tokens in {bits} bits weigh {weight:,} bytes, and the budget is {nbytes:,}: a token "
        f"weighs {token_bytes(spec, bits)}, with a scale and a zero for each of its vectors",
    )
    return bits, size, count


def _check_output(o: Any, q: torch.Tensor, told: str) -> None:
    require(isinstance(o, torch.Tensor), f"{told} returns {kind(o)}, expected a tensor{none_hint(o)}")
    require(tuple(o.shape) == tuple(q.shape), f"{told} returns shape {tuple(o.shape)}, expected {tuple(q.shape)}")
    require(o.dtype == q.dtype, f"{told} returns {dtype_name(o.dtype)}, expected {dtype_name(q.dtype)}, as q")
    n_bad = int((~o.isfinite()).sum())
    require(
        n_bad == 0,
        f"{told} returns {n_bad} numbers that are NaN or infinite\nUsual cause: places that nobody has written are "
        "read: those behind the last token, or of another block",
    )
