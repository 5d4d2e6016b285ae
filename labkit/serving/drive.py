"""Runs a scheduler on a trace, step by step: checks every plan and that no request starves, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from labkit.serving.locations import Locations, Text
from labkit.serving.plans import check_work, read_plan
from labkit.serving.player import Piece, Request, filling_prompt, made_up_token, most_steps, submit
from labkit.testing.compare import require
from labkit.testing.wording import show

OVERTAKEN = 8
"""How many later requests may finish while one makes no progress."""


class Step(NamedTuple):
    """One step: requests computed in it and waiting, blocks in its tables, and its tokens."""

    step: int
    served: int
    waiting: int
    blocks: int
    tokens: int


@dataclass
class Served:
    """The result of a trace: completions, and counts taken from the plans, the same on every machine."""

    completions: dict[Any, list[int]] = field(default_factory=dict)
    """By the request's id, and by (id, 1), (id, 2), … for all but its first."""
    steps: int = 0
    """Steps until the last request was done."""
    in_time: int = 0
    """Requests done within the horizon."""
    tokens: int = 0
    """Tokens generated."""
    bytes_read: int = 0
    """Bytes of the cache that attention reads: for each piece of work its context, in every layer."""
    prefix_tokens: int = 0
    """Tokens of prompts that were found and never computed."""
    again: int = 0
    """Tokens computed a second time, after a request gave up its blocks."""
    peak_blocks: int = 0
    """The most blocks that one step's tables named together."""
    peak_bytes: int = 0
    """Bytes of these blocks."""
    cache_bytes: int = 0
    """Bytes of all blocks, by the server's settings; all counted bytes depend on these."""
    history: list[Step] = field(default_factory=list)
    """Every step in which something was computed."""

    @property
    def bytes_read_a_token(self) -> Fraction:
        """Bytes read for each token generated."""
        return Fraction(self.bytes_read, max(self.tokens, 1))

    @property
    def counts(self) -> dict[str, int]:
        """The fields that are one number, by name, for the table of `lab check`."""
        return {name: value for name, value in vars(self).items() if type(value) is int}


class Active(Text):
    """A completion of an active request: its number, its text so far, and which positions have been computed."""

    def __init__(self, locations: Locations, request: Request, number: int = 0) -> None:
        super().__init__(locations, request.prompt)
        self.request, self.number = request, number
        self.computed: set[int] = set()
        self.overtaken = 0

    @property
    def completion(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def is_done(self) -> bool:
        """Whether all tokens have been generated."""
        return len(self.completion) == self.request.max_new


def serve_plans(
    scheduler: Any,
    trace: Sequence[Request],
    num_blocks: int,
    block_size: int,
    max_tokens: int,
    *,
    overtaken: int = OVERTAKEN,
    probe: bool = True,
    token_bytes: int = 0,
) -> Served:
    """Run `scheduler` on a trace without a model: generated tokens are made up, no keys or values are written.

    Args:
        scheduler: has `submit`, `plan` and `advance`.
        trace: of the requests, in the order in which they come.
        num_blocks: of the cache. block_size: tokens in a block.
        max_tokens: that a step may compute, at most.
        overtaken: how many later requests may finish while one makes no progress.
        probe: whether all blocks are asked for at the end.
        token_bytes: of a token in the cache, for the counts of bytes; 0 if they are not needed.

    Raises:
        AssertionError: the plan is wrong; the message names the step, the request and the usual cause.
    """
    drive = Drive(scheduler, trace, Locations(num_blocks, block_size), max_tokens, overtaken)
    drive.token_bytes = token_bytes
    drive.served.cache_bytes = num_blocks * block_size * token_bytes
    return drive.run(probe)


class Drive:
    """One trace and one scheduler. Generated tokens are made up here; `engine` gets them from a model."""

    token_bytes = 0

    def __init__(
        self,
        planner: Any,
        trace: Sequence[Request],
        locations: Locations,
        max_tokens: int,
        overtaken: int = OVERTAKEN,
        horizon: int | None = None,
    ) -> None:
        self.planner, self.trace, self.locations, self.max_tokens = planner, list(trace), locations, max_tokens
        self.overtaken_allowed = overtaken
        self.horizon = self.trace[-1].arrival + 1 if horizon is None else horizon
        self.order = {request.id: number for number, request in enumerate(self.trace)}
        self.active: dict[Any, Active] = {}
        self.served = Served()
        self.last_user: dict[int, Any] = {}

    def run(self, probe: bool) -> Served:
        """Serve the whole trace and return its result."""
        waiting, step, most = list(self.trace), 0, most_steps(self.trace, self.max_tokens)
        while waiting or self.active:
            while waiting and waiting[0].arrival <= step:
                request = waiting.pop(0)
                submit(self.planner, request)
                self.active[request.id] = Active(self.locations, request)
            if self.active:
                self._step(step)
            step += 1
            require(
                step <= most,
                f"after {step} steps {len(self.active)} requests are not done; one after the other, all would be in "
                f"{most // 2}: {self._describe_active()}; {self.served.again} tokens were computed more than once",
            )
        self.served.steps = step
        if probe:
            self._probe(step)
        return self.served

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks; nothing to do without a model."""

    def scores(self, step: int, work: Sequence[Piece]) -> Sequence[Any]:
        """The scores after the last token of each piece; None without a model."""
        return [None] * len(work)

    def draw(self, request: Request, number: int, end: int, scores: Any) -> int:
        """The token after the first `end` of a request's completion with this number."""
        return made_up_token(self.order[request.id], number, end)

    def check_token(self, one: Active, token: int, step: int) -> None:
        """Fail unless this is the token that follows."""

    def _step(self, step: int) -> None:
        work = self._planned(step)
        scores = self.scores(step, work)
        self._count(work, step)
        sampled = {}
        for piece, row in zip(work, scores, strict=True):
            if piece.end < len(self.active[piece.id].tokens):
                continue
            for name, one in self._completions(piece):
                token = self.draw(one.request, one.number, piece.end, row)
                self.check_token(one, token, step)
                sampled[name] = token
                one.append(token)
        self.planner.advance(dict(sampled))
        self._finish(sampled, step)

    def _completions(self, piece: Piece) -> list[tuple[Any, Active]]:
        """The completions that get the token after a piece, by name; after a prompt those that begin there, too."""
        one = self.active[piece.id]
        found = one.request.completions_after(piece.id, one.number, piece.end)
        for name, number in found[1:]:
            self.active[name] = fork = Active(self.locations, one.request, number)
            fork.computed, fork.n_shared = set(one.computed), piece.end
            self.locations.fork(piece.id, name)
            one.n_shared = piece.end
        return [(name, self.active[name]) for name, _ in found]

    def _planned(self, step: int) -> list[Piece]:
        """The checked work of a step, after its copies are made and its tokens written."""
        copies, work = read_plan(self.planner.plan(), self.locations.num_blocks, step)
        require(
            work,
            f"step {step}: nothing is computed, and {len(self.active)} requests are not done, of which at least one "
            f"can go on: {self._describe_active()}\nUsual cause: {self._why_nothing()}",
        )
        texts = dict[Any, Text](self.active)
        check_work(work, texts, self.locations.block_size, self.max_tokens, step)
        self.copy(copies)
        self.locations.copy(copies)
        self.locations.write(work, texts, step)
        for piece in work:
            self.locations.assert_readable(piece, texts[piece.id], step)
            self.last_user.update(dict.fromkeys(piece.blocks, piece.id))
        return work

    def _count(self, work: list[Piece], step: int) -> None:
        served, size = self.served, self.locations.block_size
        n_blocks = len({block for piece in work for block in piece.blocks})
        n_tokens = sum(len(piece.tokens) for piece in work)
        served.history.append(Step(step, len(work), len(self.active) - len(work), n_blocks, n_tokens))
        served.peak_blocks = max(served.peak_blocks, n_blocks)
        served.peak_bytes = served.peak_blocks * size * self.token_bytes
        served.bytes_read += sum(piece.end for piece in work) * self.token_bytes
        for piece in work:
            one, now = self.active[piece.id], set(range(piece.start, piece.end))
            served.again += len(one.computed & now)
            if now - one.computed:
                one.overtaken = 0
            one.computed |= now

    def _finish(self, sampled: dict[Any, int], step: int) -> None:
        finished = {name: one for name in sampled if (one := self.active[name]).is_done}
        done = list(finished.values())
        for name, one in finished.items():
            del self.active[name]
            self.served.completions[name] = one.completion
            self.served.in_time += step < self.horizon
            self.served.tokens += one.request.max_new
            self.served.prefix_tokens += sum(at not in one.computed for at in range(len(one.request.prompt)))
        for name, other in self.active.items():
            came = self.order[other.request.id]
            other.overtaken += sum(self.order[one.request.id] > came for one in done)
            require(
                other.overtaken <= self.overtaken_allowed,
                f"step {step}: request {name!r} has been overtaken by {other.overtaken} that came later "
                f"and are done, while it got no further ({self.overtaken_allowed} are allowed): it starves\nUsual "
                "cause: any request that fits is taken first, the oldest gives way, or one that gave way waits last: "
                "serve in the order of arrival, and let the last that came give way",
            )

    def _probe(self, step: int) -> None:
        """After the last request, submit one that needs all blocks."""
        locations, last = self.locations, 1 + max(request.id for request in self.trace)
        prompt = filling_prompt(len(self.trace), locations.num_blocks * locations.block_size)
        message = f"after the last request all {locations.num_blocks} blocks are free, and one that needs all of them"
        try:
            self.planner.submit(last, list(prompt), 1)
        except ValueError as error:
            require(False, f"{message}, {len(prompt)} tokens and 1 to follow, is refused: {error}")
        text = Text(locations, prompt)
        named: set[int] = set()
        for more in range(len(prompt)):  # at least one token a step
            _, work = read_plan(self.planner.plan(), locations.num_blocks, step + more)
            if not work:
                break
            check_work(work, {last: text}, locations.block_size, self.max_tokens, step + more)
            named.update(work[0].blocks)
            done = work[0].end == len(prompt)
            self.planner.advance({last: 0} if done else {})
            if done:
                return
        require(False, f"{message} is never computed whole: {self._describe_lost(named, len(prompt))}")

    def _describe_lost(self, named: set[int], n_tokens: int) -> str:
        lost = [block for block in range(self.locations.num_blocks) if block not in named]
        if not named or not lost:
            kept = "a request that is done keeps its blocks, or fewer blocks are given out than the settings count"
            if n_tokens > self.max_tokens:
                kept += f", or a prompt longer than a step, {n_tokens} tokens with max_tokens {self.max_tokens}, waits"
            return f"plans name {len(named)} blocks for it\nUsual cause: {kept}"
        users = ", ".join(sorted({show(self.last_user[block]) for block in lost if block in self.last_user}))
        return f"{len(lost)} blocks are lost, {show(lost)}, last used by request {users or 'nobody'}"

    def _why_nothing(self) -> str:
        if any(one.number and len(one.completion) == 1 for one in self.active.values()):
            return (
                "a request with n = 2 has two completions from its first token on, which advance names id and (id, 1): "
                "each is a sequence of its own, and computed until it has all its tokens"
            )
        long = [id for id, one in self.active.items() if len(one.tokens) > self.max_tokens]
        if not long:
            return "blocks are not given back, or a request that needs one waits for itself"
        return (
            f"request {long[0]!r} has {len(self.active[long[0]].tokens)} tokens, more than max_tokens, "
            f"{self.max_tokens}, and waits for a step with room for all: it is computed in pieces; or blocks are not "
            "given back"
        )

    def _describe_active(self) -> str:
        return ", ".join(
            f"request {id!r} has {len(one.completion)} of {one.request.max_new} tokens"
            for id, one in list(self.active.items())[:3]
        )
