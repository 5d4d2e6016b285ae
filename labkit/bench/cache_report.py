"""What `lab model CONFIG.json` prints: the cache of a model by kind of layer."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from labkit.bench.layer_cache import LayerCache, equal_pages_bytes, fixed_bytes, kept_bytes, read_bytes, token_bytes
from labkit.bench.model_config import PUBLISHED, layers_of, read_config

GIB = 2**30
BITS = (4, 8, 16, 32)
COLUMNS = ("layers", "kind", "bytes a token", "fixed bytes", "cache, bytes", "GiB", "a step reads, GiB")


def find_config(name: str) -> Path | None:
    """The file that `name` means: a path that exists or ends in .json, or a published configuration; None: neither."""
    if name.endswith(".json") or Path(name).is_file():
        return Path(name)
    return published if (published := PUBLISHED / f"{name}.json").is_file() else None


def show_cache(path: Path, tokens: int, batch: int, bits: int) -> None:
    """Print the cache of `batch` sequences of `tokens` tokens, by kind of layer, and what equal pages would waste.

    Raises OSError if the file cannot be read, and ValueError for what it does not say or what is not known, and for
    tokens, batch or bits that make no cache.
    """
    for key, value in (("tokens", tokens), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    if bits not in BITS:
        raise ValueError(f"bits must be one of {', '.join(map(str, BITS))}, got {bits}")
    config = read_config(path)
    try:
        layers = layers_of(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _print_table(f"{path.stem}: {len(layers)} layers", layers, tokens, batch, bits)
    for note in _notes(config):
        print(note)


def summed(layers: list[LayerCache], tokens: int, bits: int = 16) -> dict[str, int]:
    """Bytes of one sequence: of a further token, fixed, kept, read by a step, and kept in equal pages.

    Where layers keep one entry for several tokens, a further token adds its share of the entries, rounded.
    """
    group = math.lcm(*(layer.ratio for layer in layers))
    added = kept_bytes_of(layers, tokens + group, bits) - kept_bytes_of(layers, tokens, bits)
    return {
        "further token": round(added / group),
        "fixed": sum(fixed_bytes(layer, bits) for layer in layers),
        "cache": kept_bytes_of(layers, tokens, bits),
        "read": sum(read_bytes(layer, tokens, bits) for layer in layers),
        "equal pages": equal_pages_bytes(layers, tokens, bits),
    }


def kept_bytes_of(layers: list[LayerCache], tokens: int, bits: int) -> int:
    """Bytes of one sequence's whole cache."""
    return sum(kept_bytes(layer, tokens, bits) for layer in layers)


def _print_table(title: str, layers: list[LayerCache], tokens: int, batch: int, bits: int) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(title, style="bold")
    console.print(f"{batch} × {tokens:,} tokens, {bits} bits a number, recurrent states in 32\n", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column == "kind" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for layer, count in Counter(layers).items():
        kept, read = (batch * count * each(layer, tokens, bits) for each in (kept_bytes, read_bytes))
        per_layer = (f"{token_bytes(layer, bits) / layer.ratio:,.10g}", f"{fixed_bytes(layer, bits):,}")
        table.add_row(str(count), _described(layer), *per_layer, f"{kept:,}", f"{kept / GIB:.3f}", f"{read / GIB:.3f}")
    totals = {name: batch * nbytes for name, nbytes in summed(layers, tokens, bits).items()}
    cache, read = totals["cache"], totals["read"]
    table.add_row("", "all", "", "", f"{cache:,}", f"{cache / GIB:.3f}", f"{read / GIB:.3f}", style="bold")
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum)
    console.print(table)  # no number is cut off
    added, equal = totals["further token"] // batch, totals["equal pages"]
    console.print(f"\nA further token adds {added:,} bytes; {totals['fixed'] // batch:,} bytes a sequence are fixed.")
    waste = 1 - cache / equal if equal else 0
    console.print(f"Equal pages for all layers: {equal / GIB:.3f} GiB, of which {waste:.1%} would hold nothing in use.")


def _described(layer: LayerCache) -> str:
    limits = f", the last {layer.reach:,} tokens" if layer.reach else ""
    if layer.ratio > 1:
        limits += f", {layer.ratio:,} tokens an entry, the last {layer.recent:,} tokens whole"
    entries = "entries" if layer.ratio > 1 else "tokens"
    return layer.kind + limits + (f", {layer.chosen:,} {entries} read" if layer.chosen else "")


def _notes(config: dict[str, Any]) -> list[str]:
    notes = []
    if config.get("model_type") == "gpt_oss" or config.get("add_swa_attention_sink_bias"):
        notes.append("Its sinks are learned numbers, one per head: they are weights and take no room in the cache.")
    if further := config.get("num_nextn_predict_layers"):
        notes.append(f"Not counted: {further} further layer(s) that propose tokens (num_nextn_predict_layers).")
    return notes
