"""Several prompts at once through the server of Lab 13, whose plans are checked at every step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import typer

from labkit.chat.answer import expected_scores, first_other
from labkit.chat.calls import Calls, Counted
from labkit.chat.lines import limit_line
from labkit.chat.mistakes import explained
from labkit.chat.session import REHEARSAL_SECONDS, TINY, tiny_model
from labkit.labs.manifest import Lab
from labkit.model.llama import Llama, Sizes
from labkit.model.weights import Model
from labkit.notebook import student_module
from labkit.serving.drive import Drive, Served
from labkit.serving.engine import settings_of, token_bytes
from labkit.serving.locations import Locations, Piece
from labkit.serving.player import run_layer, sampled_token
from labkit.serving.requests import Request
from labkit.suite.limits import time_limit

PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "What do bees do in winter?",
    "Write one sentence about the sea.",
    "Name three animals that can fly.",
)
CACHE_BYTES = 3 * 2**20
MAX_TOKENS = 64
"""Tokens that a step may compute."""
MAX_WAITING = 1_000
"""Nobody is overtaken so often: all come at once, and the shortest may end first."""


def rehearse(lab: Lab) -> None:
    """Serve three short prompts in a tiny random model; typer.Exit after a mistake, which was reported."""
    prompts = [list(range(1, 30)), [*range(1, 25), 50, 51], [7, 8, 9]]
    with explained(lab), time_limit(REHEARSAL_SECONDS):
        serve(student_module(lab.number), tiny_model(), prompts, 4, 60 * token_bytes(spec_of(TINY), 8))


def serve(module: Any, llama: Llama, prompts: Sequence[Sequence[int]], max_new: int, nbytes: int) -> Together:
    """Serve prompts that all come at the first step; AssertionError where a plan or a result is wrong."""
    spec = spec_of(llama.sizes)
    server = module.Server(spec, nbytes, MAX_TOKENS)
    _, block_size, num_blocks = settings_of(server, spec, nbytes)
    requests = [Request(number, 0, tuple(prompt), max_new) for number, prompt in enumerate(prompts)]
    run = Together(server, requests, Locations(num_blocks, block_size), MAX_TOKENS, MAX_WAITING)
    run.llama = llama
    with torch.no_grad():
        run.run(probe=False)
    return run


def talk(lab: Lab, model: Model, prompts: Sequence[str], max_new: int) -> None:
    """Serve the prompts, then print the answers, who waited, what was shared, and bytes and speed."""
    said = prompts or PROMPTS
    tokens = [model.text.chat(each) for each in said]
    calls = Calls()
    n_tokens = sum(map(len, tokens))
    typer.echo(f"{len(said)} prompt{'s' * (len(said) != 1)} at once, {n_tokens:,} tokens; answers come together …\n")
    began = time.perf_counter()
    with explained(lab):
        run = serve(Counted(student_module(lab.number), calls), model.llama, tokens, max_new, CACHE_BYTES)
    seconds = time.perf_counter() - began
    answers = [_until_end(run.served.completions[number], model) for number in range(len(said))]
    for prompt, found in zip(said, answers, strict=True):
        typer.echo(f"> {prompt}\n{model.text.decode(found)}\n")
        if len(found) == max_new:
            typer.echo(f"{limit_line(max_new)}\n")
    bits, block_size, num_blocks = settings_of(run.planner, spec_of(model.llama.sizes), CACHE_BYTES)
    for line in _lines(run.served, calls, seconds, bits, block_size, num_blocks, tokens):
        typer.echo(line)
    for number, (encoded, found) in enumerate(zip(tokens, answers, strict=True), 1):
        typer.echo(f"answer {number}: {compared(model, encoded, found)}")


def compared(model: Model, prompt: Sequence[int], found: Sequence[int]) -> str:
    """Where torch's own attention, with this prompt alone and every number in float32, first says something else."""
    at, other, lead = first_other(found, expected_scores(model.llama, prompt, found)) if found else (None, 0, 0.0)
    if at is None:
        return f"the same {len(found)} tokens as with torch's own attention"
    mine, others = (model.text.decode([token]) for token in (found[at], other))
    here = f"token {at + 1} of {len(found)} is {mine!r}"
    return f"{here}: torch's own attention says {others!r}, {lead:.2f} of a score ahead"


def spec_of(sizes: Sizes) -> dict[str, int]:
    """A model's sizes by the names of Lab 13."""
    return {name: getattr(sizes, name) for name in ("layers", "heads", "kv_heads", "head_dim", "vocab")}


class Together(Drive):
    """A drive in which the language model computes the next tokens from the server's cache."""

    llama: Llama

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """See `Drive`."""
        for old, new in copies:
            self.planner.copy(old, new)

    def scores(self, step: int, work: Sequence[Piece]) -> list[torch.Tensor]:
        """See `Drive`: all pieces of a step go through the model together, and attend one by one."""
        where = [self.locations.place_of(piece, at) for piece in work for at in range(piece.start, piece.end)]
        written = [block for block, _ in where], [place for _, place in where]
        lengths = [len(piece.tokens) for piece in work]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            queries, keys, values = (x.transpose(0, 1) for x in (q, k, v))
            reads = [
                (rows, list(piece.blocks), piece.start)
                for rows, piece in zip(queries.split(lengths), work, strict=True)
            ]
            found = run_layer(self.planner, layer, written, keys, values, reads)
            return torch.cat([_checked(o, rows) for o, (rows, _, _) in zip(found, reads, strict=True)]).transpose(0, 1)

        tokens = torch.tensor([token for piece in work for token in piece.tokens])
        positions = torch.cat([torch.arange(piece.start, piece.end) for piece in work])
        hidden = self.llama.hidden(tokens, attend, positions)
        last = torch.tensor(lengths).cumsum(0) - 1
        return list(self.llama.scores(hidden[last]))

    def draw(self, request: Request, number: int, end: int, scores: torch.Tensor) -> int:
        """See `Drive`."""
        return sampled_token(request, number, end, scores)


def _checked(found: Any, rows: torch.Tensor) -> torch.Tensor:
    from labkit.chat.setting import checked

    return checked(found, rows, "attend")


def _until_end(tokens: Sequence[int], model: Model) -> list[int]:
    """An answer without what follows its end: a server cannot know that a token ends it."""
    ends = [at for at, token in enumerate(tokens) if token in model.text.ends]
    return list(tokens[: ends[0]] if ends else tokens)


def _lines(
    served: Served,
    calls: Calls,
    seconds: float,
    bits: int,
    block_size: int,
    num_blocks: int,
    prompts: Sequence[Sequence[int]],
) -> list[str]:
    n_prompts = sum(map(len, prompts))
    waited = [step.step for step in served.history if step.waiting]
    return [
        f"your code: {calls.line()}",
        f"settings: {bits} bits, {num_blocks} blocks of {block_size} tokens, {served.cache_bytes or CACHE_BYTES:,} "
        f"bytes; at most {served.peak_blocks} blocks were in use",
        f"shared: {served.prefix_tokens} of {n_prompts} tokens of the prompts were found in the cache; "
        f"{served.again} tokens were computed twice, after their blocks had to be given back",
        f"waiting: in {len(waited)} of {served.steps} steps a request waited"
        + (f", the last time in step {waited[-1]}" if waited else ""),
        f"speed: {served.tokens} tokens in {seconds:.1f} s, {served.tokens / seconds:.1f} per second",
    ]
