"""Each chapter ends with its date, what has changed since the edition before, and a link to how to cite it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT

CHAPTERS = sorted((ROOT / "docs").glob("[0-9][0-9]_*.md"))
LAST = re.compile(r"\*\d{1,2} [A-Z][a-z]+ 20\d\d\. (Changed since .+\. )?\[How to cite\]\(README\.md#how-to-cite\)\.\*")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_last_paragraph_has_date_and_citation(chapter: Path) -> None:
    last = chapter.read_text(encoding="utf-8").rstrip("\n").rpartition("\n\n")[2]
    assert LAST.fullmatch(" ".join(last.split())), last
