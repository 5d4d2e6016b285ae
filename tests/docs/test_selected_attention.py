"""Chapter 14's numbers: the table of hybrids is what `lab model` computes, and the text repeats the figures' data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from labkit.bench.cache_report import summed
from labkit.bench.layer_cache import LayerCache, kept_bytes, read_bytes
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.labs.catalog import ROOT

TEXT = (ROOT / "docs" / "14_selected_attention.md").read_text(encoding="utf-8")
FILES = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "gpt-oss-120b": "gpt-oss-120b",
    "Gemma 3 27B": "gemma-3-27b",
    "Qwen3-Next 80B-A3B": "qwen3-next-80b-a3b",
    "Kimi Linear 48B-A3B": "kimi-linear-48b-a3b",
    "DeepSeek-V3.2": "deepseek-v3.2",
}


def published(name: str) -> list[LayerCache]:
    return layers_of(read_config(PUBLISHED / f"{name}.json"))


def rows_of(first_column: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so, by their first cell."""
    table = TEXT.partition(f"\n| {first_column} |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("model", FILES)
def test_row_of_a_hybrid(model: str) -> None:
    layers, row = published(FILES[model]), rows_of("model")[model]
    totals = summed(layers, 131_072)
    gib = [f"{totals[name] / 2**30:.3f}" for name in ("cache", "read", "equal pages")]
    assert row[1:] == [f"{totals['further token']:,}", f"{totals['fixed']:,}", *gib]
    assert sum(map(int, re.findall(r"(\d+) (?:full|windows|states|latent)", row[0]))) == len(layers)


def test_every_hybrid_is_in_the_table() -> None:
    assert list(rows_of("model")) == list(FILES)


def test_length_from_which_the_indexer_reads_less() -> None:
    with_indexer, without = (
        LayerCache("MLA + indexer", 576, 128, chosen=2048),
        LayerCache("MLA", 576),
    )
    less = [n for n in range(1, 4000) if read_bytes(with_indexer, n) < read_bytes(without, n)]
    assert (less[0], len(less)) == (2634, 4000 - 2634)
    assert TEXT.count("2,634") >= 2


def test_length_at_which_two_models_keep_the_same() -> None:
    gpt_oss, qwen = (
        sum(kept_bytes(layer, 5952) for layer in published(name)) for name in ("gpt-oss-120b", "qwen3-next-80b-a3b")
    )
    assert gpt_oss == qwen
    assert "$N = 5{,}952$" in TEXT


def test_perplexities_are_those_of_the_figure() -> None:
    data = figure("14_choice")
    table = {rule.replace("*", ""): row for rule, row in rows_of("rule").items()}
    for row in data["rows"]:
        if row["rule"] != "all":
            column = (128, 256, 512).index(row["tokens"]) + 1
            assert table[row["rule"]][column] == f"{row['perplexity']:.1f}", row
    held = {rule: row[0] for rule, row in table.items()}
    assert held == {rule: f"{100 * share:.0f} %" for rule, share in data["weight_held_by_128_tokens"].items()}


def test_what_each_head_alone_reads() -> None:
    data, text = figure("14_choice"), TEXT.partition("\n## A group chooses together\n")[2].partition("\n## ")[0]
    alone = data["each_head_alone"]
    assert f"read {alone['pages_of_a_group']:.0f} different pages on average, not {alone['pages']}" in " ".join(
        text.split()
    )
    assert f"perplexity is {alone['perplexity']} instead of" in " ".join(text.split())
    needed = data["tokens_for_90_percent"].values()
    assert all(str(count) in TEXT.partition("How few are enough?")[2].partition("\n\n")[0] for count in needed)


def test_heads_of_the_figure() -> None:
    shares = [head["share"] for head in figure("14_maps")["heads"].values()]
    assert all(f"({share:.2f})" in TEXT for share in shares)


def figure(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "docs" / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    return loaded
