"""`lab model`: the parts of the memory that training a whole model takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

import typer

from labkit.bench.model_memory import MODELS, ModelSizes, gpt, training_memory

BAR_WIDTH = 40
MEANING = {
    "weights": "2 bytes a parameter",
    "gradients": "2 bytes a parameter",
    "optimizer": "12 bytes a parameter: a float32 copy, Adam's two averages",
    "activations": "what layers keep for the backward pass",
    "attention": "the same, for the inside of attention",
    "logits": "float32, kept by the loss",
}
Size = Annotated[int | None, typer.Option(help="instead of the model's own")]


def model(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=", ".join(MODELS))] = None,
    batch_size: Annotated[int, typer.Option(help="sequences in a step")] = 1,
    seq_len: Annotated[int, typer.Option(help="tokens in each")] = 4096,
    attention: Annotated[str, typer.Option(help="fused, or written_out with N × N arrays")] = "fused",
    checkpoint: Annotated[str, typer.Option(help="what runs twice: none, selective (attention) or layers")] = "none",
    layers: Size = None,
    hidden: Size = None,
    heads: Size = None,
    kv_heads: Size = None,
    head_dim: Size = None,
    ffn: Size = None,
    vocab: Size = None,
) -> None:
    """Print the memory that training a model takes: weights, gradients, optimizer, activations, attention, logits."""
    given = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": ffn,
        "vocab": vocab,
    }
    try:
        sizes = sizes_of(name, {size: value for size, value in given.items() if value is not None})
        parts = training_memory(sizes, batch_size, seq_len, attention, checkpoint)
    except ValueError as error:
        sys.exit(f"lab model: {error}")
    _show(name or "a model", sizes, parts, f"{batch_size} × {seq_len:,} tokens, {attention}, checkpoint: {checkpoint}")


def sizes_of(name: str | None, given: Mapping[str, Any]) -> ModelSizes:
    """The named model with the given sizes instead of its own; without a name, a model of GPT's kind.

    Sizes that depend on a given one (heads of keys, a head's width, the feed-forward part) change with it unless they
    are given too. Raises ValueError for an unknown name, or if sizes are missing.
    """
    if name is not None:
        if name not in MODELS:
            raise ValueError(f"there is no model {name!r}; there are: {', '.join(MODELS)}; or give its sizes")
        return replace(MODELS[name], **_with_dependent_sizes(MODELS[name], given))
    missing = [f"--{size}" for size in ("layers", "hidden", "heads") if size not in given]
    if missing:
        raise ValueError(f"name a model ({', '.join(MODELS)}), or give its sizes: {', '.join(missing)} is missing")
    base = gpt(given["layers"], given["hidden"], max(1, given["heads"]))
    return replace(base, **given)


def _with_dependent_sizes(base: ModelSizes, given: Mapping[str, Any]) -> dict[str, Any]:
    derived = {}
    if "hidden" in given or "heads" in given:
        hidden, heads = given.get("hidden", base.hidden), given.get("heads", base.heads)
        if base.head_dim * base.heads == base.hidden:
            derived["head_dim"] = hidden // max(1, heads)
        if base.kv_heads == base.heads:
            derived["kv_heads"] = heads
    if "hidden" in given:
        derived["ffn"] = base.ffn * given["hidden"] // base.hidden
    return {**derived, **given}


def _show(name: str, sizes: ModelSizes, parts: dict[str, int], how: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    described = ", ".join(f"{field.name} {getattr(sizes, field.name):,}" for field in fields(sizes)[:7])
    console.print(f"{name}: {sizes.parameters:,} parameters", style="bold")
    console.print(f"{described}\n{how}\n", style="dim")
    total = sum(parts.values())
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("part", "bytes", "GiB", "share", "", ""):
        justify: Literal["left", "right"] = "right" if column in ("bytes", "GiB", "share") else "left"
        table.add_column(column, justify=justify, no_wrap=bool(column))
    for part, nbytes in parts.items():
        share = nbytes / total
        bar = "█" * round(BAR_WIDTH * share)
        table.add_row(part, f"{nbytes:,}", f"{nbytes / 2**30:.2f}", f"{share:.1%}", bar, MEANING[part])
    table.add_row("total", f"{total:,}", f"{total / 2**30:.2f}", "", "", "", style="bold")
    console.print(table)
    console.print(
        "\nAll parts at once are an upper bound: in the backward pass gradients are made while activations are freed."
        "\nNot counted: what operators hold for a moment, the allocator's fragments, the CUDA context.",
        style="dim",
    )
