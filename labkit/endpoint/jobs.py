"""Requests of clients while they are served: their tokens go to the client as they come."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from labkit.chat.together import MAX_TOKENS, MAX_WAITING, Together, spec_of
from labkit.model.attention import CachedAttention
from labkit.model.generate import generate
from labkit.model.llama import Llama
from labkit.serving.drive import Active
from labkit.serving.engine import settings_of
from labkit.serving.locations import Locations
from labkit.serving.player import submit
from labkit.serving.requests import Request
from labkit.serving.sampling import GREEDY, Sampling

PIECE = 16
"""New tokens asked of the server at a time. Lab 13's server cannot be told that a request has ended: it is submitted
again after each piece, and finds its blocks in the cache. Blocks of a client that has left are free after a piece."""
MAX_TRIES = 3
"""How often a request begins again, after a wrong plan of which another request was the cause."""
ENDINGS = {"stop": "done", "length": "done: as long as asked for", "left": "its client has left", "error": "failed"}
RATE_SECONDS = 5.0
"""The time over which tokens per second are counted."""


@dataclass(eq=False)
class Job:
    """A completion for a client: `events` get its tokens, and at last the reason why it ended.

    Attributes:
        number: its name in messages and on the page.
        prompt: tokens. max_new: new tokens, at most. ends: tokens that end an answer.
        sampling: what draws the tokens. choice: its number among the completions of the request.
        others: the request's other completions, which begin when its prompt has been computed.
        tokens: generated so far.
        cached: tokens of the prompt that were in the cache already.
        ended: why it has ended: "stop", "length", "left", or "error"; empty before.
        error: what a client is told after an error.
    """

    number: int
    prompt: list[int]
    max_new: int
    ends: frozenset[int]
    loop: asyncio.AbstractEventLoop
    sampling: Sampling = GREEDY
    choice: int = 0
    others: list[Job] = field(default_factory=list)
    events: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    tokens: list[int] = field(default_factory=list)
    cached: int | None = None
    ended: str = ""
    error: str = ""
    tries: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, token: int) -> None:
        """Hand on a token; the last one ends the job."""
        if self.ended:
            return
        if token in self.ends:
            self.end("stop")
            return
        self.tokens.append(token)
        self.times.append(time.monotonic())
        self._put(token)
        if len(self.tokens) == self.max_new:
            self.end("length")

    def end(self, why: str, error: str = "") -> None:
        """End it, once."""
        if not self.ended:
            self.ended, self.error = why, error
            self._put(None)

    def _put(self, event: int | None) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Jobs:
    """Serves jobs in a thread of its own: one after the other, with torch's own attention."""

    def __init__(self, llama: Llama) -> None:
        self.llama = llama
        self.all: deque[Job] = deque(maxlen=64)
        """The latest jobs, for the page."""
        self._new: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End all jobs with an error, and the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        for job in self.all:
            job.end("error", "the server was stopped")
        self._thread.join(30)

    def most_tokens(self) -> int:
        """How many tokens a prompt and its answer may have together."""
        return self.llama.sizes.context

    def submit(self, job: Job) -> None:
        """Serve a job as soon as its turn comes."""
        with self._changed:
            self.all += [job, *job.others]
            self._new.append(job)
            self._changed.notify()

    def state(self) -> dict[str, Any]:
        """Numbers for the page: jobs, blocks, and tokens per second."""
        now = time.monotonic()
        jobs = [_shown(job, now, self._blocks_of(job)) for job in reversed(self.all)]
        return {"jobs": jobs, "tokens_per_second": sum(job["tokens_per_second"] for job in jobs), **self._blocks()}

    def _blocks_of(self, job: Job) -> list[int]:
        return []

    def _blocks(self) -> dict[str, Any]:
        return {"num_blocks": 0, "block_size": 0, "bits": 0, "shared": 0}

    def _waiting(self) -> list[Job]:
        """The new jobs, after waiting for one if there is nothing else to do."""
        with self._changed:
            while not (self._new or self._stopping or self._is_busy()):
                self._changed.wait()
            found = [job for job in self._new if not job.ended]
            self._new.clear()
            return found

    def _is_busy(self) -> bool:
        return False

    def _run(self) -> None:
        while True:
            jobs = self._waiting()
            if self._stopping:
                return
            self._serve(jobs)

    def _serve(self, jobs: list[Job]) -> None:
        for job in [each for first in jobs for each in (first, *first.others)]:
            choose = partial(_chosen, job)
            for token, _ in generate(self.llama, job.prompt, CachedAttention(), job.max_new, choose):
                job.add(token)
                if job.ended:
                    break


def _chosen(job: Job, scores: torch.Tensor, position: int) -> int:
    return job.sampling.choose(scores, job.choice, position)


class TogetherJobs(Jobs):
    """Serves jobs together, by the server of Lab 13, whose plans are checked at every step.

    Args:
        make: Lab 13's `Server`.
        nbytes: of its cache.
        report: is given the exception of a wrong plan or of a result.
    """

    def __init__(self, llama: Llama, make: Callable[..., Any], nbytes: int, report: Callable[[Exception], str]) -> None:
        super().__init__(llama)
        self._make, self._nbytes, self._report = make, nbytes, report
        self._pieces: dict[Any, Job] = {}
        self._n_pieces = self._step = 0
        self._drive = self._new_drive()

    def most_tokens(self) -> int:
        """See `Jobs`: also no more than fit into all blocks."""
        locations = self._drive.locations
        return min(super().most_tokens(), locations.num_blocks * locations.block_size)

    def _new_drive(self) -> LiveDrive:
        spec = spec_of(self.llama.sizes)
        server = self._make(spec, self._nbytes, MAX_TOKENS)
        self.bits, block_size, num_blocks = settings_of(server, spec, self._nbytes)
        return LiveDrive(server, self.llama, Locations(num_blocks, block_size), self._pieces)

    def _is_busy(self) -> bool:
        return bool(self._pieces)

    def _serve(self, jobs: list[Job]) -> None:
        try:
            self._begin(jobs)
            if self._pieces:
                with torch.no_grad():
                    self._drive.one_step(self._step)
                self._step += 1
            self._begin(self._finished())
        except Exception as error:
            self._recover(error, jobs)

    def _begin(self, jobs: Iterable[Job]) -> None:
        """Submit the next piece of each job; the first one has all completions, and each goes on alone."""
        for job in jobs:
            id, max_new = self._n_pieces, min(PIECE, job.max_new - len(job.tokens))
            others, job.others = job.others, []
            self._pieces[id] = job
            self._pieces.update(((id, number), other) for number, other in enumerate(others, 1))
            text = (*job.prompt, *job.tokens)
            self._drive.begin(Request(id, 0, text, max_new, 1 + len(others), job.sampling, job.choice))
            self._n_pieces += 1

    def _finished(self) -> list[Job]:
        """The jobs whose piece has ended, and which go on."""
        done = [name for name in self._pieces if name in self._drive.served.completions]
        jobs = [self._pieces.pop(name) for name in done]
        self._drive.served.completions.clear()
        self._drive.served.history.clear()
        return [job for job in jobs if not job.ended]

    def _recover(self, error: Exception, new: Sequence[Job]) -> None:
        """After a wrong plan: the jobs that the message names end with an error, the others begin again elsewhere."""
        message = self._report(error)
        jobs = {id(job): job for job in (*self._pieces.values(), *new) if not job.ended}
        named = [
            job
            for name, job in self._pieces.items()
            if re.search(rf"request {re.escape(repr(name))}(?!\d)", str(error))
        ]
        for job in named or list(jobs.values()):
            job.end("error", message)
        self._pieces.clear()
        try:
            self._drive = self._new_drive()
        except Exception as again:
            message = self._report(again)
            for job in jobs.values():
                job.end("error", message)
            return
        for job in jobs.values():
            job.tries += 1
            if job.tries > MAX_TRIES:
                job.end("error", message)
        with self._changed:
            self._new.extendleft(job for job in jobs.values() if not job.ended)

    def _blocks_of(self, job: Job) -> list[int]:
        return next((self._drive.tables.get(n, []) for n, each in list(self._pieces.items()) if each is job), [])

    def _blocks(self) -> dict[str, Any]:
        tables = [set(table) for table in list(self._drive.tables.values())]
        used = set().union(*tables)
        n_shared = sum(sum(block in table for table in tables) > 1 for block in used)
        locations = self._drive.locations
        sizes = {"num_blocks": locations.num_blocks, "block_size": locations.block_size, "bits": self.bits}
        return sizes | {"shared": n_shared}


class LiveDrive(Together):
    """A drive whose requests come while it runs; `tables` are the blocks of the last plan, by request."""

    def __init__(self, server: Any, llama: Llama, locations: Locations, pieces: dict[Any, Job]) -> None:
        super().__init__(server, [], locations, MAX_TOKENS, MAX_WAITING, horizon=0)
        self.llama, self._jobs = llama, pieces
        self.tables: dict[Any, list[int]] = {}

    def begin(self, request: Request) -> None:
        """Submit a request."""
        self.order[request.id] = len(self.order)
        submit(self.planner, request)
        self.active[request.id] = Active(self.locations, request)

    def one_step(self, number: int) -> None:
        """Plan, compute, and hand on the new tokens."""
        self._step(number)
        self.tables = {id: table for id, table in self.tables.items() if id in self.active}

    def scores(self, step: int, work: Sequence[Any]) -> list[torch.Tensor]:
        """See `Together`."""
        self.tables |= {piece.id: list(piece.blocks) for piece in work}
        for piece in work:
            job = self._jobs[piece.id]
            if job.cached is None:  # the first tokens that are computed come after those that were found
                job.cached = piece.start
        return super().scores(step, work)

    def check_token(self, one: Active, token: int, step: int) -> None:
        """The client gets it."""
        self._jobs[(one.request.id, one.number) if one.number else one.request.id].add(token)


def _shown(job: Job, now: float, blocks: list[int]) -> dict[str, Any]:
    times = [at for at in list(job.times) if now - at < RATE_SECONDS]
    span = now - times[0] if len(times) > 1 else RATE_SECONDS
    rate = 0.0 if job.ended or not times else len(times) / max(span, 0.1)
    state = ENDINGS.get(job.ended) or ("answers" if job.tokens else "waits, or its prompt is read")
    counts = {"prompt": len(job.prompt), "answer": len(job.tokens), "blocks": blocks}
    return {"number": job.number, "state": state, "tokens_per_second": round(rate, 1), **counts}
