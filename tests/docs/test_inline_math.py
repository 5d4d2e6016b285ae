r"""Inline mathematics that a code host shows as the site does: Markdown there drops the backslash of `\,` and its like.

Between `$$` on lines of their own, backslashes stay.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT

PAGES = [path for pattern in ("*.md", "docs/*.md", "labs/*/README.md") for path in sorted(ROOT.glob(pattern))]
CODE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
DISPLAY = re.compile(r"\$\$.*?\$\$", re.DOTALL)
INLINE = re.compile(r"(?<![\\$])\$(?!\$)([^$]+)\$")
DROPPED = re.compile(r"\\[^A-Za-z\s]")
WORDS = {r"\,": r"\thinspace", r"\;": r"\enspace", r"\{": r"\lbrace", r"\}": r"\rbrace", r"\|": r"\Vert"}


def dropped(markdown: str) -> list[str]:
    """The escapes of punctuation in a page's inline mathematics, each with the formula."""
    text = DISPLAY.sub("", CODE.sub("", markdown))
    return [f"{escape} in ${math}$" for math in INLINE.findall(text) for escape in DROPPED.findall(math)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_inline_mathematics_has_no_escaped_punctuation(page: Path) -> None:
    found = dropped(page.read_text(encoding="utf-8"))
    assert found == [], f"write a word instead: {WORDS}; a per cent sign stands outside"


def test_escapes_are_found_in_inline_mathematics_only() -> None:
    assert dropped(r"$a\,b$ and $\alpha$ cost \$5, `$c\;d$`") == [r"\, in $a\,b$"]
    assert dropped("$$\nx\\,y\n$$") == []
