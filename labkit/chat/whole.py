"""All finished labs in one engine: who computes the prompt, keeps the cache, attends for a new token, plans the steps.

Of several labs for the same part the last one is taken. A part that no lab has is the course's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import typer

from labkit.chat.adapters.base import Adapter, adapter_of
from labkit.chat.calls import Calls, Counted
from labkit.chat.lines import limit_line
from labkit.chat.mistakes import explained
from labkit.chat.places import DEFAULT_PROMPT, SERVING, finished_parts
from labkit.chat.session import REHEARSAL_SECONDS, tiny_model
from labkit.chat.setting import Setting, checked
from labkit.chat.together import Together, compared, spec_of
from labkit.labs.manifest import Lab
from labkit.model.attention import grouped_attention
from labkit.model.generate import generate
from labkit.model.llama import Llama, Sizes
from labkit.model.tokenizer import Stream
from labkit.model.weights import Model
from labkit.notebook import student_module
from labkit.serving.drive import Active
from labkit.serving.engine import settings_of, token_bytes
from labkit.serving.locations import Locations
from labkit.serving.player import Piece, places_of, submit
from labkit.serving.requests import Request
from labkit.suite.limits import time_limit

DOES = {
    "prompt": "computes the attention of the prompt",
    "cache": "keeps keys and values",
    "token": "attends for each new token",
    "steps": "plans the steps, and keeps in blocks what the layers read that no other lab attends for",
}
SENTENCE_TOKENS = 48
LEAST_TOKENS = 16
"""An answer does not end at the end of a sentence before."""


class Engine:
    """An attention of `labkit.model` that hands each call to the lab whose part it is.

    Args:
        parts: the lab for each part; see `parts_of`.
        sizes: of the model. max_tokens: of the whole text.
    """

    def __init__(self, parts: Mapping[str, Lab], sizes: Sizes, max_tokens: int) -> None:
        self.setting = Setting(sizes, max_tokens)
        self.calls = {lab.number: Calls() for lab in parts.values()}
        self._students = {number: Counted(student_module(number), calls) for number, calls in self.calls.items()}
        self.spec, self.nbytes = spec_of(sizes), 2 * max_tokens * token_bytes(spec_of(sizes), 32)
        self.server = self._students[SERVING].Server(self.spec, self.nbytes, max_tokens) if "steps" in parts else None
        self._cache, self._prompt, self._token = (self._adapter(parts, part) for part in ("cache", "prompt", "token"))
        for each in (self._prompt, self._token):
            each.so_far = self._so_far  # type: ignore[method-assign]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`: the whole prompt, then one token at a time."""
        if q.shape[-2] == 1:
            return self._token(layer, q, k, v)
        if getattr(self._prompt, "sees_whole_text", False):  # such an adapter keeps nothing
            k, v = self._so_far(layer, k, v)
        return self._prompt(layer, q, k, v)

    def is_in_blocks(self, layer: int) -> bool:
        """Whether new tokens of a layer attend to the server's blocks: where no selection reads a part only."""
        layers = self.setting.sizes.layers
        whole = getattr(self._token, "whole_layers", layers)
        return self.server is not None and (whole == layers or layer < whole < layers)

    def _so_far(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.is_in_blocks(layer):  # of the prompt; later tokens are attended for there
            return k, v
        return self._cache.so_far(layer, k, v)

    def _adapter(self, parts: Mapping[str, Lab], part: str) -> Adapter:
        if part not in parts:
            return _Torch(None, self.setting)
        number = parts[part].number
        return adapter_of(number).chosen(self.setting)(self._students[number], self.setting)


class _Torch(Adapter):
    """Attention of torch's own for a part that no lab has."""

    attends = ""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return grouped_attention(q, *self.so_far(layer, k, v))


class _Steps(Together):
    """One request through the server of Lab 13, whose plans are checked; attention is the engine's."""

    def __init__(self, engine: Engine, llama: Llama, request: Request) -> None:
        _, block_size, num_blocks = settings_of(engine.server, engine.spec, engine.nbytes)
        super().__init__(engine.server, [request], Locations(num_blocks, block_size), engine.setting.max_tokens)
        self.engine, self.llama = engine, llama

    def tokens(self) -> Iterator[int]:
        """The tokens of the answer, each as soon as its step is done."""
        (request,) = self.trace
        submit(self.planner, request)
        one = self.active[request.id] = Active(self.locations, request)
        for step in range(request.max_new + len(request.prompt)):
            known = len(one.tokens)
            with torch.no_grad():
                self._step(step)
            yield from one.tokens[known:]
            if one.is_done:
                return

    def scores(self, step: int, work: Sequence[Piece]) -> list[torch.Tensor]:
        """See `Drive`."""
        (piece,) = work
        positions = torch.arange(piece.start, piece.end)
        return [self.llama.scores(self.llama.hidden(torch.tensor(piece.tokens), self._attend(piece), positions)[-1])]

    def _attend(self, piece: Piece) -> Callable[..., torch.Tensor]:
        written = places_of([piece], self.locations.block_size)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if not self.engine.is_in_blocks(layer):
                return self.engine(layer, q, k, v)
            self.planner.write(layer, *written, *(x.transpose(0, 1) for x in (k, v)))
            if not piece.start and len(piece.tokens) > 1:
                return self.engine(layer, q, k, v)
            rows = q.transpose(0, 1)
            found = self.planner.attend(layer, rows, list(piece.blocks), piece.start)
            return checked(found, rows, "attend").transpose(0, 1)

        return attend


def tokens_of(engine: Engine, llama: Llama, prompt: Sequence[int], max_new: int) -> Iterator[int]:
    """The tokens that the engine generates after a prompt, one by one."""
    if engine.server is not None:
        yield from _Steps(engine, llama, Request(0, 0, tuple(prompt), max_new)).tokens()
    else:
        yield from (token for token, _ in generate(llama, prompt, engine, max_new))


def sentence_of(
    engine: Engine, model: Model, prompt: Sequence[int], max_new: int, show: Callable[[str], None] = lambda words: None
) -> list[int]:
    """The tokens of an answer that ends with a sentence, at an end token, or after `max_new`.

    `show` is given the words as they come.
    """
    stream, text, found = Stream(model.text), "", list[int]()
    for token in tokens_of(engine, model.llama, prompt, max_new):
        if token in model.text.ends:
            break
        found.append(token)
        words = stream.add(token)
        show(words)
        text += words
        if len(found) >= LEAST_TOKENS and text.endswith((".", "!", "?")) and not text[-2:-1].isdigit():
            break
    return found


def rehearse(parts: Mapping[str, Lab]) -> None:
    """Run the engine in a tiny random model; typer.Exit after a mistake, which was reported."""
    llama = tiny_model()
    with explained(*parts.values()), time_limit(REHEARSAL_SECONDS):
        list(tokens_of(Engine(parts, llama.sizes, 40), llama, range(1, 38), 3))


def expected_seconds(engine: Engine, llama: Llama, prompt: Sequence[int]) -> tuple[float, float]:
    """About how long the prompt takes, and each new token: a layer of each is timed."""
    n, layers, found = len(prompt), llama.sizes.layers, []
    for tokens, first in ((prompt, 0), (prompt[-1:], n)):
        x = llama.embed(torch.tensor(list(tokens)))
        last = llama.blocks(engine, torch.arange(first, first + len(tokens)))[-1]
        before = time.perf_counter()
        with torch.no_grad():
            last(x)
        found.append(layers * (time.perf_counter() - before))
    return found[0], found[1]


def talk(parts: Mapping[str, Lab], model: Model, prompt: Sequence[int], max_new: int) -> None:
    """Print which lab does what, how long it takes, the answer as it comes, and whether torch's own says the same."""
    sizes, max_tokens = model.llama.sizes, len(prompt) + max_new
    for part, lab in parts.items():
        typer.echo(f"Lab {lab.number}, {lab.title}, {DOES[part]}")
    with explained(*parts.values()):
        for_prompt, for_token = expected_seconds(Engine(parts, sizes, max_tokens), model.llama, prompt)
        typer.echo(
            f"{len(prompt):,} tokens of the prompt take about {for_prompt:.1f} s, then each new one {for_token:.2f} s: "
            f"at most {for_prompt + max_new * for_token:.0f} s in all\n"
        )
        engine, began = Engine(parts, sizes, max_tokens), time.perf_counter()
        found = sentence_of(engine, model, prompt, max_new, lambda words: typer.echo(words, nl=False))
    if len(found) == max_new:
        typer.echo(f"\n\n{limit_line(max_new)}", nl=False)
    typer.echo(f"\n\nit took {time.perf_counter() - began:.1f} s; your code in {sizes.layers} layers:")
    for number, calls in engine.calls.items():
        typer.echo(f"  Lab {number}: {calls.line() or 'nothing was to be done'}")
    if found:
        typer.echo(compared(model, prompt, found))


def spoken() -> str:
    """A sentence that the model says through all finished labs, to the default prompt; "" where there is none."""
    from labkit.model.weights import ModelError, read_model

    parts = finished_parts()
    if not parts:
        return ""
    rehearse(parts)
    try:
        model = read_model()
    except ModelError as error:
        typer.echo(f"without a sentence of the model: {error}")
        return ""
    prompt = model.text.chat(DEFAULT_PROMPT)
    engine = Engine(parts, model.llama.sizes, len(prompt) + SENTENCE_TOKENS)
    with explained(*parts.values()):
        return model.text.decode(sentence_of(engine, model, prompt, SENTENCE_TOKENS)).strip()
