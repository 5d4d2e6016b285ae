"""`lab model`: the memory of a whole model, of training it by parts, or of its cache by kind of layer."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Annotated, Literal

import typer

from labkit.bench.model_config import PUBLISHED
from labkit.bench.model_memory import MODELS, ModelSizes, gpt, training_memory

BAR_WIDTH = 40
TRAINING_TOKENS, CACHE_TOKENS = 4096, 131_072
MEANING = {
    "weights": "2 bytes a parameter",
    "gradients": "2 bytes a parameter",
    "optimizer": "12 bytes a parameter: a float32 copy, Adam's two averages",
    "activations": "activations that layers keep for the backward pass",
    "attention": "the same, for the inside of attention",
    "logits": "float32, kept by the loss",
}
Size = Annotated[int | None, typer.Option(help="of a GPT-like model, instead of a name")]


def model(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|CONFIG.json]",
            help=f"training: {', '.join(MODELS)}; cache: a Hugging Face config.json, or "
            + ", ".join(sorted(path.stem for path in PUBLISHED.glob("*.json"))),
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "--batch", help="sequences")] = 1,
    tokens: Annotated[
        int | None,
        typer.Option("--seq-len", "--tokens", help="tokens in each; 4,096 for training, 131,072 for a cache"),
    ] = None,
    bits: Annotated[int, typer.Option(help="of a cached number: 4, 8, 16 or 32")] = 16,
    attention: Annotated[str, typer.Option(help="fused, or written_out with N × N arrays")] = "fused",
    checkpoint: Annotated[str, typer.Option(help="recomputed: none, selective (attention) or layers")] = "none",
    layers: Size = None,
    hidden: Size = None,
    heads: Size = None,
) -> None:
    """Print the memory of training a model by parts, or of a config's cache by kind of layer."""
    from labkit.bench.cache_report import find_config, show_cache

    try:
        if name is not None and name not in MODELS and (path := find_config(name)):
            if layers or hidden or heads:
                raise ValueError("a config names its own sizes: leave out --layers, --hidden and --heads")
            return show_cache(path, CACHE_TOKENS if tokens is None else tokens, batch_size, bits)
        sizes = sizes_of(name, layers, hidden, heads)
        seq_len = TRAINING_TOKENS if tokens is None else tokens
        parts = training_memory(sizes, batch_size, seq_len, attention, checkpoint)
    except OSError as error:
        sys.exit(f"lab model: {error.filename}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"lab model: {error}")
    _show(name or "a model", sizes, parts, f"{batch_size} × {seq_len:,} tokens, {attention}, checkpoint: {checkpoint}")


def sizes_of(name: str | None, layers: int | None, hidden: int | None, heads: int | None) -> ModelSizes:
    """The sizes of the named model, or of one of GPT's kind with the given layers, width and heads.

    Raises ValueError for an unknown name, and unless either a name or all three sizes are given.
    """
    if name is None and layers and hidden and heads:
        return gpt(layers, hidden, heads)
    if name is None or layers or hidden or heads:
        raise ValueError(f"give the name of a model ({', '.join(MODELS)}), or --layers, --hidden and --heads")
    if name not in MODELS:
        configs = sorted(path.stem for path in PUBLISHED.glob("*.json"))
        raise ValueError(
            f"there is no model {name!r}; there are: {', '.join([*MODELS, *configs])}, or give a config.json"
        )
    return MODELS[name]


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
        "\nNot counted: operators' temporaries, the allocator's fragments, the CUDA context.",
        style="dim",
    )
