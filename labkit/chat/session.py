"""One chat with one prompt: a rehearsal in a tiny model, the answer, and the lines about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import typer

from labkit.chat import lines
from labkit.chat.adapters.base import Adapter, adapter_of, tensors_in
from labkit.chat.answer import Answer, answer, compare
from labkit.chat.calls import Calls, Counted, MeteredCalls
from labkit.chat.mistakes import explained
from labkit.chat.setting import Setting
from labkit.labs.manifest import Lab
from labkit.meters.torch_private import storage_address
from labkit.model.attention import CachedAttention
from labkit.model.llama import Attend, Llama, Sizes
from labkit.model.perplexity import perplexity, sample_text
from labkit.model.tokenizer import Stream
from labkit.model.weights import Model, random_weights
from labkit.notebook import student_module
from labkit.suite.limits import time_limit

TINY = Sizes(2, 6, 2, 16, width=48, hidden=64, vocab=80, context=256)
MEASURED_TOKENS = 2048
"""Of the prompt whose memory is measured, if the given one is shorter: a short one fits into one tile."""
SCORED_TOKENS = 1024
REHEARSAL_SECONDS = 20
"""Of CPU time, for a loop that never ends; correct code needs less than one."""


def tiny_model() -> Llama:
    """A random model for rehearsals."""
    return Llama(TINY, random_weights(TINY))


def rehearse(lab: Lab, setting: Setting) -> None:
    """Run the student's code in a tiny random model: most mistakes show in a second, before the weights are read.

    Raises:
        typer.Exit: there is a mistake, and it was reported.
    """
    llama = tiny_model()
    with explained(lab), time_limit(REHEARSAL_SECONDS):
        answer(llama, range(1, 38), make_adapter(lab, setting, Calls()), 3, ())


def make_adapter(lab: Lab, setting: Setting, calls: Calls) -> Adapter:
    """The lab's adapter on the student's file, as it is now."""
    return adapter_of(lab.number).chosen(setting)(Counted(student_module(lab.number), calls), setting)


def talk(lab: Lab | None, model: Model, prompt: Sequence[int], max_new: int, setting: Setting) -> None:
    """Print the answer as it comes, then the lines about it; with torch's own attention if there is no lab."""
    calls = Calls()
    typer.echo(f"{len(prompt):,} tokens of the prompt, then at most {max_new} new ones …")
    if lab is None:
        found = _written(model, prompt, CachedAttention(), max_new)
        typer.echo(f"{lines.speed_line(found)}\n{lines.plain_cache_line(setting.sizes, len(prompt))}")
        return
    with explained(lab):
        adapter = make_adapter(lab, setting, calls)
        found = _written(model, prompt, adapter, max_new)
    n_measured = max(len(prompt), MEASURED_TOKENS)
    memory = []
    with explained(lab):
        notes = adapter.notes()
        if adapter.attends:
            memory.append(lines.memory_line(meter_prompt(lab, setting, n_measured), setting.sizes, n_measured))
    for line in [
        lines.call_line(calls, setting.sizes if adapter.attends else None),
        lines.speed_line(found),
        *memory,
        lines.cache_line(adapter, len(prompt) + found.steps - 1, bytes_in(adapter), lab.number),
        *notes,
    ]:
        typer.echo(line)
    with explained(lab):
        compared = compare(model.llama, found, adapter.reference())
    if compared is not None:
        typer.echo(lines.comparison_line(compared, found, model.text, lab, adapter))
    if adapter.sees_less:
        with explained(lab):
            _show_perplexity(model, make_adapter(lab, setting, Calls()))


def _written(model: Model, prompt: Sequence[int], attend: Attend, max_new: int) -> Answer:
    """Print an answer as it comes: before its first words how long it may take, after it whether it was cut."""
    stream, words = Stream(model.text), ""

    def show(found: Answer) -> None:
        nonlocal words
        words += stream.add(found.tokens[-1])
        if len(found.tokens) == 1:  # the second token is the first to tell the speed
            return
        if len(found.tokens) == 2:
            sees_whole_text = getattr(attend, "sees_whole_text", False)
            if wait := lines.wait_line(found, max_new, sees_whole_text=sees_whole_text):
                typer.echo(wait)
        typer.echo(words, nl=False)
        words = ""

    found = answer(model.llama, prompt, attend, max_new, model.text.ends, show)
    typer.echo(f"{words}\n")
    if len(found.tokens) == max_new:
        typer.echo(f"{lines.limit_line(max_new)}\n")
    return found


def meter_prompt(lab: Lab, setting: Setting, n_tokens: int) -> MeteredCalls:
    """Run the lab's last layer of attention on random numbers, for a prompt of `n_tokens`, under the meters."""
    sizes, draw = setting.sizes, torch.Generator().manual_seed(0)
    heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    q, k, v = (torch.randn(n, n_tokens, sizes.head_dim, generator=draw) for n in heads)
    calls = MeteredCalls()
    adapter = make_adapter(lab, replace(setting, max_tokens=n_tokens), calls)
    calls.is_numpy, calls.function = adapter.is_numpy, adapter.attends
    with torch.no_grad():
        adapter(sizes.layers - 1, q[:, -1:] if adapter.asks_one_by_one else q, k, v)
    return calls


def bytes_in(adapter: Adapter) -> int:
    """The bytes of the tensors that an adapter's caches hold, each storage once."""
    storages = {storage_address(x.untyped_storage()): x.untyped_storage().nbytes() for x in tensors_in(adapter.caches)}
    return sum(storages.values())


def _show_perplexity(model: Model, adapter: Adapter) -> None:
    """What seeing less costs, on a text that the model has not written."""
    tokens = model.text.encode(sample_text())[: min(SCORED_TOKENS, model.llama.sizes.context)]
    first = len(tokens) // 4
    whole, here = (perplexity(model.llama, tokens, attend, first) for attend in (None, adapter))
    typer.echo(f"perplexity of a chapter, tokens {first + 1} to {len(tokens):,}: {here:.1f}; whole cache {whole:.1f}")
