"""Names that the field uses, each in the body of a chapter and in the glossary, so that a search finds them."""

from __future__ import annotations

import re

import pytest

from labkit.labs.catalog import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
CHAPTERS = sorted((ROOT / "docs").glob("[0-9][0-9]_*.md"))
CODE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
NAMES = {
    "attention variants": [
        *["multi-head attention", "MHA", "multi-query attention", "MQA", "grouped-query attention", "GQA"],
        *["multi-head latent attention", "MLA", "cross-layer attention", "CLA", "sliding-window attention", "SWA"],
        *["linear attention", "Gated DeltaNet", "KDA", "Mamba-2", "gated attention", "attention sink"],
        *["NSA", "DSA", "MoBA", "RoPE", "YaRN"],
    ],
    "caches": [
        *["KV cache", "PagedAttention", "block table", "prefix caching", "RadixAttention", "copy on write"],
        *["KV cache quantization", "StreamingLLM", "H2O", "SnapKV", "offloading"],
    ],
    "serving": [
        *["prefill", "decode", "TTFT", "TPOT", "ITL", "goodput", "continuous batching", "chunked prefill"],
        *["speculative decoding", "EAGLE", "MTP", "tree attention", "disaggregation", "preemption"],
        *["cascade attention", "batch-invariant"],
    ],
    "kernels": [
        *["FlashAttention", "Flash-Decoding", "FlashMLA", "FlexAttention", "SDPA", "online softmax", "split-KV"],
        *["roofline", "arithmetic intensity", "kernel fusion", "tensor core", "tensor memory", "TMEM", "TMA", "WGMMA"],
        *["HBM", "SRAM", "SM sub-partition", "warp specialization", "Triton", "Pallas", "CuTe DSL", "varlen"],
    ],
    "parallelism": [
        *["tensor parallelism", "context parallelism", "decode context parallelism", "DCP", "data parallelism"],
        *["ring attention", "Ulysses", "all-gather", "all-to-all", "ZeRO", "FSDP"],
        *["activation checkpointing", "selective recomputation"],
    ],
    "formats": ["FP8", "E4M3", "NVFP4", "MXFP4", "E2M1", "bfloat16", "tf32"],
}
ALL = [name for names in NAMES.values() for name in names]


def without_code(markdown: str) -> str:
    """A page without code, in single spaces."""
    return " ".join(CODE.sub("", markdown).split())


def body(markdown: str) -> str:
    """A chapter without its sources and its code."""
    return without_code(markdown.partition("\n## Sources\n")[0])


BODIES = [body(chapter.read_text(encoding="utf-8")) for chapter in CHAPTERS]
ENTRIES = without_code(GLOSSARY.read_text(encoding="utf-8").partition("\n## Words\n")[2])


def is_in(name: str, text: str) -> bool:
    """Whether a text has a name as a whole word, or its plural; abbreviations in capitals only."""
    flags = re.NOFLAG if name.isupper() else re.IGNORECASE
    return re.search(rf"(?<![\w-]){re.escape(name)}s?(?![\w-])", text, flags) is not None


@pytest.mark.parametrize("name", ALL)
def test_name_is_in_a_chapter_and_in_the_glossary(name: str) -> None:
    assert any(is_in(name, text) for text in BODIES), f"no chapter's body has {name!r}"
    assert is_in(name, ENTRIES), f"the glossary does not have {name!r}"
