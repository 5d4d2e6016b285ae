"""`lab train`: trains a small language model with the student's FlashAttention, recomputation, or states of Lab 15."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from labkit.labs.manifest import Lab
    from labkit.model.llama import Llama
    from labkit.training.steps import Way

BEGIN, LINE_BYTES = "The memory of ", 90
CHUNK = 64
"""Tokens in a chunk of the gated delta rule."""
TOLD_EVERY = 50


def train(
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="recompute layers with your Lab 06")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="torch's own attention instead of your Lab 05")] = False,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="states in three of four layers, by the rule of your Lab 15")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 400,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.gguf", help="the weights; the figure is next to them")
    ] = Path("plots/trained.gguf"),
) -> None:
    """Train a small language model on the course's chapters with your attention, in about four minutes."""
    from labkit.chat.mistakes import explained
    from labkit.labs.catalog import find_lab
    from labkit.model.tokenizer import byte_text
    from labkit.model.weights import ModelError, require_packages, write_model
    from labkit.training.peaks import draw, step_peaks
    from labkit.training.steps import chapters, held_out_loss, new_model

    try:
        require_packages()
    except ModelError as error:
        sys.exit(f"lab train: {error}")
    if out.suffix != ".gguf":
        sys.exit(f"lab train: {out}: weights are written as .gguf")
    if hybrid and (plain or checkpoint):
        sys.exit("lab train: --hybrid excludes --plain and --checkpoint")
    used = {"05": not plain and not hybrid, "06": checkpoint, "15": hybrid}
    labs = [find_lab(number) for number in used if used[number]]
    llama, text = new_model(hybrid=hybrid), chapters()
    n_parameters = sum(weight.numel() for weight in llama.weights.values())
    typer.echo(f"{n_parameters / 1e6:.2f} million parameters learn {len(text) / 1e3:,.0f} kB of chapters, byte by byte")
    with explained(*labs):
        ways = _hybrid_ways() if hybrid else _ways(labs, plain=plain, checkpoint=checkpoint)
        losses = _train(llama, text, ways[-1], steps)
        peaks = step_peaks(ways)
        held_out = held_out_loss(llama, text, ways[-1])
    typer.echo(f"loss {losses[-1]:.2f} nats per byte; {held_out:.2f} on text that was never learnt")
    for name, peak in peaks.items():
        typer.echo(f"peak of one step, {name}: {peak / 2**20:,.1f} MiB over the weights")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_model(out, "the course's chapters", llama, byte_text())
    draw(out.with_suffix(".png"), losses, held_out, peaks)
    chat = "15" if hybrid else "--plain"
    typer.echo(f"written: {out} and {out.with_suffix('.png')}\nuv run lab chat {chat} --model {out} {BEGIN!r}")


def _ways(labs: list[Lab], *, plain: bool, checkpoint: bool) -> list[Way]:
    """The ways to run a step that are compared; the last one trains."""
    from labkit.notebook import student_module
    from labkit.training.steps import Way, checkpointed, fused, in_order, textbook

    modules = {lab.number: student_module(lab.number) for lab in labs}
    attend: Any = fused
    if not plain:
        flash = modules["05"].FlashAttention
        attend = lambda layer, q, k, v: flash.apply(q, k, v, True)  # noqa: E731
    ways = [
        Way("textbook attention", textbook, in_order),
        Way("torch's own attention" if plain else "your FlashAttention", attend, in_order),
    ]
    if checkpoint:
        ways.append(Way("with your checkpoints", attend, checkpointed(modules["06"])))
    return ways


def _hybrid_ways() -> list[Way]:
    """The two forms of the student's rule; the second one trains."""
    from labkit.model.hybrid import CachedHybrid, WholeText
    from labkit.notebook import student_module
    from labkit.training.steps import Way, in_order

    lab15 = student_module("15")
    rules = {
        "your rule token by token": lab15.gated_delta_recurrent,
        f"your rule in chunks of {CHUNK}": partial(lab15.gated_delta_chunked, chunk=CHUNK),
    }
    return [
        Way(name, WholeText(rule), in_order, partial(CachedHybrid, rule), hybrid=True) for name, rule in rules.items()
    ]


def _train(llama: Llama, text: Any, way: Way, steps: int) -> list[float]:
    """Train with a bar, and show what the model writes now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from labkit.training.steps import train, writing

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.2f}"), TimeRemainingColumn())
    console = Console(soft_wrap=True, highlight=False)
    losses: list[float] = []
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=steps, loss=0.0)
        for loss in train(llama, text, way, steps):
            losses.append(loss)
            progress.update(bar, advance=1, loss=loss)
            if len(losses) % TOLD_EVERY == 0 or len(losses) == steps:
                line = writing(llama, BEGIN, LINE_BYTES, way.cached())
                progress.console.print(f"step {len(losses):4d}  loss {loss:.2f}  {line}", markup=False)
    return losses
