"""A small lab with a board of counts, for tests: its answer says itself what is counted."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab

MANIFEST = """
title = "Counted"
summary = "Something to count."
module = "counted"
hours = 1
[[tasks]]
name = "serve"
signature = "serve(trace)"
tests = "TestServe"
points = 10
hints = ["count"]
"""
BROKE = "block 5 belongs to request 2, which is still served"
SUITE = f'''
import pytest
from counted import serve
from labkit.testing.compare import require

class TestServe:
    @pytest.mark.board
    @pytest.mark.parametrize("trace", ["chat", "documents"])
    def test_board(self, board, trace):
        counts = serve(trace)
        board(counts)
        require(counts["peak_blocks"] <= 8, "{BROKE}")

    def test_else(self):
        assert serve("chat")["in_time"] < 7
'''
COUNTED = {"in_time": 5, "bytes_read": 9000, "tokens": 4, "prefix_tokens": 12, "again": 0}
COUNTED |= {"peak_blocks": 8, "peak_bytes": 10240}
BOARD = {
    "traces": {"chat": "5 requests, 80 tokens", "documents": "3 requests, 90 tokens"},
    "references": [{"name": "first come, first served", "counts": {"chat": COUNTED, "documents": COUNTED}}],
}


def counting_lab(house: Path) -> Lab:
    """The lab, written into the tree at `house`."""
    folder = house / "labs" / "lab90_counted"
    files = {"lab.toml": MANIFEST, "tests/test_counted.py": SUITE, "board.json": json.dumps(BOARD)}
    for name, text in {**files, "src/counted.py": answer()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return find_lab("90", house)


def answer(**changed: int) -> str:
    """An answer that counts so on every trace."""
    return f"def serve(trace):\n    return {COUNTED | changed}\n"
