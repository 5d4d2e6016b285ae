"""Chapters 9 and 13 use what an H100 reports as its memory, two models, and the numbers that follow from them."""

from __future__ import annotations

import json
import re

from labkit.bench.cache_report import summed
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.labs.catalog import ROOT

DOCS = ROOT / "docs"
H100 = 81_559 * 2**20
WEIGHTS, TOKEN, BANDWIDTH = 2 * 8_030_261_248, 131_072, 3.35e12


def text(chapter: str) -> str:
    return " ".join((DOCS / f"{chapter}.md").read_text(encoding="utf-8").split())


def test_chapter_1_states_what_the_driver_reports() -> None:
    assert f"81,559 MiB = {H100 / 2**30:.2f} GiB = {H100 / 1e9:.1f} GB" in text("01_gpu_memory_hierarchy")


def test_chapter_9_fills_the_memory() -> None:
    room = H100 - WEIGHTS
    page = text("09_decoding")
    assert f"at most {room / 2**30:.1f} GiB of cache: {room // (8192 * TOKEN)} sequences of 8,192 tokens" in page
    room, kimi = H100 - 48 * 10**9, cache_of("kimi-linear-48b-a3b")["cache"]
    assert f"at most {room / 2**30:.0f} GiB: {room // kimi} sequences of 131,072 tokens" in page
    step = (WEIGHTS + 64 * 8192 * TOKEN) / BANDWIDTH
    assert f"| 64 sequences of 8,192 tokens | 16.06 + 68.7 | {1e3 * step:.1f} ms |" in page


def test_chapter_9_shows_what_lab_model_prints_of_its_two_models() -> None:
    llama, kimi = cache_of("llama-3.1-8b"), cache_of("kimi-linear-48b-a3b")
    page = text("09_decoding")
    assert f"| bytes that a token adds, in 16 bits | {llama['further token']:,} | {kimi['further token']:,} |" in page
    assert f"| bytes of a sequence without tokens | {llama['fixed']:,} | {kimi['fixed']:,} |" in page
    assert f"| cache at 131,072 tokens | {llama['cache'] / 2**30:.3f} GiB | {kimi['cache'] / 2**30:.3f} GiB |" in page
    ms = [1e3 * model["read"] / BANDWIDTH for model in (llama, kimi)]
    assert f"| read at 3.35 TB/s in | {ms[0]:.2f} ms | {ms[1]:.2f} ms |" in page


def cache_of(name: str) -> dict[str, int]:
    """Bytes of one sequence of 131,072 tokens, by a configuration that the course ships."""
    return summed(layers_of(read_config(PUBLISHED / f"{name}.json")), 131_072)


def test_chapter_13_shows_its_figure_s_numbers() -> None:
    line = json.loads((DOCS / "figures" / "13_rates.json").read_text(encoding="utf-8"))["lines"]["2000"]
    shown = re.findall(r"\| (\d+) \| [\d.]+ \| (\d+\.\d) \| (\d+) \| ([\d,]+) \|", text("13_serving"))
    assert [row[0] for row in shown] == ["1", "16", "64", str((H100 - WEIGHTS) // (2000 * TOKEN))]
    for n, step, user, server in shown:
        at = line["at_once"].index(int(n))
        assert float(step) == round(line["ms_a_step"][at], 1)
        assert int(user) == round(line["user"][at])
        assert int(server.replace(",", "")) == float(f"{line['server'][at]:.3g}")
    assert f"takes {1e3 * H100 / BANDWIDTH:.1f} ms" in text("13_serving")
