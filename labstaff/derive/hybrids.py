"""Keeps chapter 14's table of models in step with the configurations that `lab model` ships."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from labkit.bench.cache_report import GIB, summed
from labkit.bench.layer_cache import LayerCache
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labstaff.derive.regions import with_region

PAGE = Path("docs", "14_selected_attention.md")
BEGIN = "<!-- from labkit/bench/configs, by `lab build`: begin -->"
END = "<!-- from labkit/bench/configs: end -->"
TOKENS = 131_072

MODELS = {
    "llama-3.1-8b": "Llama-3.1-8B, 2024",
    "deepseek-v3": "DeepSeek-V3, 2024",
    "gemma-3-27b": "Gemma 3 27B, 2025",
    "llama-4-scout": "Llama 4 Scout, 2025",
    "gpt-oss-20b": "gpt-oss-20b, 2025",
    "gpt-oss-120b": "gpt-oss-120b, 2025",
    "qwen3-next-80b-a3b": "Qwen3-Next 80B-A3B, 2025",
    "kimi-linear-48b-a3b": "Kimi Linear 48B-A3B, 2025",
    "deepseek-v3.2": "DeepSeek-V3.2, 2025",
    "nemotron-3-nano-30b-a3b": "Nemotron 3 Nano 30B-A3B, 2025",
    "qwen3.5-397b-a17b": "Qwen3.5 397B-A17B, 2026",
    "gemma-4-26b-a4b": "Gemma 4 26B-A4B, 2026",
    "deepseek-v4-pro": "DeepSeek-V4-Pro, 2026",
    "glm-5.2": "GLM-5.2, 2026",
    "kimi-k3": "Kimi K3, 2026",
}
"""What readers call each configuration, and its year, in the order in which they were published."""

HEAD = (
    *("model", "layers", "a further token, bytes", "fixed, bytes", f"cache at {TOKENS:,} tokens, GiB"),
    *("a step reads, GiB", "equal pages, GiB"),
)
WORDS = {
    "full": "full",
    "MLA": "MLA",
    "MLA + indexer": "DSA",
    "MLA, shared index": "sharing its ranking",
    "linear state": "states",
    "no cache": "without a cache",
}
"""The chapter's words for kinds of layers that have no other sizes to name."""


def refresh_page(root: Path) -> list[Path]:
    """Derive the page's table again; returns the page if it changed."""
    page = root / PAGE
    text = page.read_text(encoding="utf-8")
    fresh = with_table(text)
    if text == fresh:
        return []
    page.write_text(fresh, encoding="utf-8")
    return [page]


def with_table(text: str) -> str:
    """Return the page's `text` with the table between its two comments derived from the configurations.

    Raises:
        ValueError: the comments are not there, once each, or a configuration has no name in `MODELS`.
    """
    return with_region(text, BEGIN, END, table(), str(PAGE))


def table() -> str:
    """Return the shipped configurations as a Markdown table.

    Raises:
        ValueError: a configuration has no name in `MODELS`.
    """
    shipped = {path.stem for path in PUBLISHED.glob("*.json")}
    if unnamed := shipped - MODELS.keys():
        raise ValueError(f"labstaff/derive/hybrids.py: MODELS has no name for {', '.join(sorted(unnamed))}")
    lines = [f"| {' | '.join(HEAD)} |", "|---|---" + "|---:" * (len(HEAD) - 2) + "|"]
    return "\n".join([*lines, *map(_row, MODELS)]) + "\n"


def layers_in_words(layers: list[LayerCache]) -> str:
    """The layers by kind, as "18 windows of 128, 18 full"; those that reach furthest come last."""
    kinds = Counter(map(_words, layers))
    return ", ".join(f"{count} {words}" for words, count in sorted(kinds.items(), key=_full_last))


def _row(name: str) -> str:
    layers = layers_of(read_config(PUBLISHED / f"{name}.json"))
    totals = summed(layers, TOKENS)
    gib = [f"{totals[part] / GIB:.3f}" for part in ("cache", "read", "equal pages")]
    numbers = [f"{totals['further token']:,}", f"{totals['fixed']:,}", *gib]
    return f"| {' | '.join([MODELS[name], layers_in_words(layers), *numbers])} |"


def _words(layer: LayerCache) -> str:
    if layer.ratio > 1:
        return f"{'CSA' if layer.index else 'HCA'} of {layer.ratio}"
    if layer.reach:
        return f"{layer.kind}s of {layer.reach:,}"
    return WORDS[layer.kind]


def _full_last(kind: tuple[str, int]) -> bool:
    return kind[0] in ("full", "MLA")
