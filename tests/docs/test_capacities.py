"""Chapters 9 and 13 use what an H100 reports as its memory, and the numbers that follow from it."""

from __future__ import annotations

import json
import re

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
    step = (WEIGHTS + 64 * 8192 * TOKEN) / BANDWIDTH
    assert f"| 64 sequences of 8,192 tokens | 16.06 + 68.7 | {1e3 * step:.1f} ms |" in page


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
