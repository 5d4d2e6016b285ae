"""Chapter 14's numbers: those by hand are what `lab model` computes, and the text repeats the figures' data."""

from __future__ import annotations

import json
from typing import Any

from labkit.bench.cache_report import summed
from labkit.bench.layer_cache import LayerCache, kept_bytes, read_bytes
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.labs.catalog import ROOT

TEXT = (ROOT / "docs" / "14_selected_attention.md").read_text(encoding="utf-8")
MILLION = 1_048_576


def published(name: str) -> list[LayerCache]:
    return layers_of(read_config(PUBLISHED / f"{name}.json"))


def rows_of(first_column: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so, by their first cell."""
    table = TEXT.partition(f"\n| {first_column} |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in cells}


def numbers_in(rows: dict[str, list[str]]) -> list[int]:
    """The results in the last column."""
    return [int(row[-1].replace(",", "")) for row in rows.values()]


def test_bytes_of_deepseek_v4_by_hand() -> None:
    """Both tables, the published sum of two rows in GiB, and the factors to DeepSeek-V3.2."""
    totals, before = (summed(published(name), MILLION) for name in ("deepseek-v4-pro", "deepseek-v3.2"))
    *parts, whole = numbers_in(rows_of("DeepSeek-V4-Pro stores"))
    assert sum(parts) == whole == totals["cache"]
    assert f"That is {whole / 2**30:.3f} GiB" in TEXT
    assert [f"{sum(parts[:2]) / 2**30:.2f}", f"{before['cache'] / 2**30:.2f}"] == ["9.62", "83.88"]
    read = numbers_in(rows_of("DeepSeek-V4-Pro reads"))
    assert sum(read) == totals["read"]
    stored, reads = (before[part] / totals[part] for part in ("cache", "read"))
    factors = [f"{before['cache'] / 2**30:.2f} GiB: {stored:.1f} times", f"GiB: {reads:.1f} times less"]
    shares = [f"{100 * read[0] / sum(read):.0f} % is still", f"{100 * whole / before['cache']:.1f} %; ask"]
    gib = [f"{sizes['read'] / 2**30:.2f}" for sizes in (totals, before)]
    text = " ".join(TEXT.split())
    assert [part for part in [*factors, *shares, *gib] if part not in text] == []


def test_deepseek_v4_at_128k_tokens() -> None:
    totals = summed(published("deepseek-v4-pro"), 131_072)
    ranking = 30 * 32_768 * 128 * 2 / totals["read"]
    text = " ".join(TEXT.split())
    assert f"{totals['cache'] / 2**30:.2f} GiB. The ranking is" in text
    assert f"of the {totals['read'] / 2**30:.3f} GiB that a step reads: {100 * ranking:.0f} %" in text


def test_bytes_of_glm_by_hand() -> None:
    layers = published("glm-5.2")
    rank_in_all = [LayerCache("MLA + indexer", 576, 128, chosen=2048)] * len(layers)
    expected = [summed(each, 131_072)[part] for part in ("further token", "read") for each in (rank_in_all, layers)]
    rows = numbers_in(rows_of("GLM-5.2, one sequence"))
    assert rows == expected
    ranking = 21 * 131_072 * 128 * 2 / rows[3]
    assert f"reads {rows[2] / rows[3]:.1f} times less, and {100 * ranking:.0f} %" in " ".join(TEXT.split())


def test_length_from_which_a_csa_layer_gains_by_ranking() -> None:
    ranked = LayerCache("CSA", 512, 128, chosen=1024, ratio=4)
    whole = LayerCache("CSA without an indexer", 512, ratio=4)
    less = [n for n in range(1, 8000) if read_bytes(ranked, n) < read_bytes(whole, n)]
    assert (less[0], len(less)) == (5464, 8000 - 5464)
    assert TEXT.count("5,464") == 2


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
    shares = [figure(name)["share"] for name in ("14_sink", "14_before", "14_repeat")]
    assert all(f"{share:.2f} on " in TEXT for share in shares)


def figure(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "docs" / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    return loaded
