"""`lab chat`: a language model answers a prompt through the student's code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.chat.places import ADAPTERS, DEFAULT_PROMPT, NO_PLACE, SERVING, STATES, finished_parts

if TYPE_CHECKING:
    from labkit.labs.manifest import Lab

LAB_NAME = re.compile(r"(?:lab)?\d{1,2}(?:_[a-z_]+)?")


def chat(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAB] [PROMPT]...",
            help="a lab's number, like 05 (without it all labs that you have finished), and what to say",
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="with torch's own attention instead of your code")] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE.gguf", help="another model of the llama architecture")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="new tokens, at most")] = 64,
    read: Annotated[Path | None, typer.Option(metavar="FILE", help="a text to put before the prompt")] = None,
    bits: Annotated[int | None, typer.Option(help="lab 12: bits per number in the cache: 2, 4 or 8")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="labs 08 and 12: the last tokens that are seen")] = None,
    sinks: Annotated[int | None, typer.Option(min=0, help="lab 12: first tokens that are seen as well")] = None,
    paged: Annotated[bool, typer.Option("--paged", help="lab 09: a cache in blocks")] = False,
    show: Annotated[bool, typer.Option("--show", help="lab 01: write a page with the attention of every head")] = False,
) -> None:
    """Let a real language model answer through your code: its words, speed and bytes, and whether they are right."""
    from labkit.labs.catalog import find_lab

    said = list(words or [])
    lab = find_lab(said.pop(0)) if said and LAB_NAME.fullmatch(said[0]) else None
    parts = finished_parts() if lab is None and not plain else {}
    if lab is None and not plain and not parts:
        typer.echo("No lab is finished yet: this is torch's own attention. uv run lab chat 01 runs yours.\n")
    lab = None if plain else lab
    given = {"bits": bits, "window": window, "sinks": sinks, "paged": paged or None, "show": show or None}
    _check(lab, {name for name, value in given.items() if value is not None}, bits)
    text = _text_of(read) + (" ".join(said) or DEFAULT_PROMPT)
    from labkit.chat.session import TINY, rehearse, talk
    from labkit.chat.setting import Setting
    from labkit.model.weights import ModelError, read_model

    options: dict[str, Any] = {"bits": bits, "window": window, "sinks": sinks, "paged": paged}
    if lab is not None and lab.number == SERVING:
        from labkit.chat import together

        together.rehearse(lab)
    elif lab is not None:
        rehearse(lab, Setting(TINY, 64, **options))
    elif parts:
        from labkit.chat import whole

        whole.rehearse(parts)
    try:
        loaded = read_model(model, hybrid=lab is not None and lab.number == STATES)
    except ModelError as error:
        sys.exit(f"lab chat: {error}")
    if lab is not None and lab.number == SERVING:
        together.talk(lab, loaded, [_text_of(read) + each for each in said], tokens)
        return
    sizes, prompt = loaded.llama.sizes, loaded.text.chat(text)
    if tokens >= sizes.context:
        sys.exit(f"lab chat: --tokens {tokens}: the model's texts have at most {sizes.context:,} tokens")
    if len(prompt) + tokens > sizes.context:
        typer.echo(f"The prompt has {len(prompt):,} tokens: its last {sizes.context - tokens:,} are used.\n")
        prompt = prompt[tokens - sizes.context :]
    if parts:
        whole.talk(parts, loaded, prompt, tokens)
        return
    talk(lab, loaded, prompt, tokens, Setting(sizes, len(prompt) + tokens, **options))
    if show and lab is not None:
        from labkit.chat.page import write_page
        from labkit.notebook import student_module

        typer.echo(f"written: {write_page(student_module(lab.number), loaded, prompt)}")


def _check(lab: Lab | None, given: set[str], bits: int | None) -> None:
    """End with one line for a lab that has no place in the model, or an option that means nothing with this lab."""
    takes: tuple[str, ...] = ()
    if lab is not None and lab.number != SERVING:
        if lab.number not in ADAPTERS:
            why = NO_PLACE.get(lab.number, "nobody has written its adapter")
            sys.exit(f"lab chat: {lab.label} has no place in this model: {why}")
        if given:
            from labkit.chat.adapters.base import adapter_of

            takes = adapter_of(lab.number).takes
    if wrong := sorted(given - set(takes)):
        name = lab.label if lab else "torch's own attention"
        sys.exit(f"lab chat: --{wrong[0]} means nothing with {name}")
    if bits is not None and (bits not in (2, 4, 8) or given & {"window", "sinks"}):
        sys.exit(f"lab chat: --bits {bits}: it is 2, 4 or 8, and excludes --window and --sinks")


def _text_of(file: Path | None) -> str:
    """The text of a file and an empty line; "" without one."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8") + "\n\n"
    except UnicodeDecodeError:
        sys.exit(f"lab chat: {file}: not UTF-8 text")
