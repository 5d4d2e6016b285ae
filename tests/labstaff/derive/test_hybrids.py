"""Chapter 14's table of models is derived from the configurations that `lab model` ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.bench.layer_cache import LayerCache
from labkit.labs.catalog import ROOT
from labstaff.derive import hybrids
from labstaff.derive.hybrids import BEGIN, END, PAGE, layers_in_words, refresh_page, table, with_table


def test_the_table_is_fresh() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == with_table(text), f"{PAGE} is stale; run: uv run lab build"


def test_a_row_by_hand() -> None:
    """gpt-oss-20b: 12 full layers and 12 windows of 128, of 8 key heads of 64, in 16 bits."""
    a_token = 2 * 8 * 64 * 2
    cache = 12 * (131_072 + 128) * a_token
    row = f"{12 * a_token:,} | 0 | {cache / 2**30:.3f} | {cache / 2**30:.3f} | {24 * 131_072 * a_token / 2**30:.3f} |"
    assert f"| gpt-oss-20b, 2025 | 12 windows of 128, 12 full | {row}" in table().splitlines()


def test_a_stale_table_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.parent.mkdir()
    page.write_text(f"# Chapter\n\n{BEGIN}\n| old |\n{END}\n\nAfter.\n", encoding="utf-8")
    assert refresh_page(tmp_path) == [page]
    assert page.read_text(encoding="utf-8") == f"# Chapter\n\n{BEGIN}\n{table()}{END}\n\nAfter.\n"
    assert refresh_page(tmp_path) == []


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected one region"):
        with_table("# Chapter\n")


def test_a_configuration_without_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(hybrids.MODELS, "glm-5.2")
    with pytest.raises(ValueError, match=r"has no name for glm-5\.2"):
        table()


def test_each_kind_is_counted() -> None:
    layers = [LayerCache("compressed + indexer", 512, 128, chosen=8, ratio=4, recent=128), LayerCache("MLA", 576)]
    assert layers_in_words([*layers, layers[0]]) == "2 CSA of 4, 1 MLA"
