"""The glossary has an entry for every term that a chapter sets in bold, once, in alphabetical order.

Bold text is a *term* if it has at most four words, no number or formula, and does not end in a full stop, question mark
or colon. This excludes run-in headings, warnings in whole sentences, and results. Tables and lists of sources are left
out. Commas separate several terms in one bold text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
CHAPTERS = sorted((ROOT / "docs").glob("[0-9][0-9]_*.md"))
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
MAX_WORDS = 4


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_every_bold_term_of_a_chapter_is_in_the_glossary(chapter: Path) -> None:
    known = entries(GLOSSARY.read_text(encoding="utf-8"))
    assert [term for term in terms(chapter.read_text(encoding="utf-8")) if folded(term) not in known] == []


def test_no_entry_appears_twice() -> None:
    words = section(GLOSSARY.read_text(encoding="utf-8"), "Words")
    names = [name for row in rows(words) for name in names_of(row)]
    assert [name for name in names if names.count(name) > 1] == []


def test_words_are_in_alphabetical_order() -> None:
    firsts = [names_of(row)[0] for row in rows(section(GLOSSARY.read_text(encoding="utf-8"), "Words"))]
    assert firsts == sorted(firsts)


def terms(markdown: str) -> list[str]:
    """The terms that a page sets in bold, in order."""
    text = markdown.partition("\n## Sources\n")[0]
    text = TABLE_ROW.sub("", FENCE.sub("", text))
    bold = [" ".join(match.split()) for match in BOLD.findall(text)]
    short = [text for text in bold if is_term(text)]
    return [term for text in short for term in text.split(", ")]


def is_term(bold: str) -> bool:
    """Whether a bold text is a term, by the rule in this module's docstring."""
    return len(bold.split()) <= MAX_WORDS and not re.search(r"[0-9²$`]|[.?!:]$", bold)


def entries(glossary: str) -> set[str]:
    """Every name in the first column of a table or after "also called", normalised."""
    others = re.findall(r"also called ([^|;]*)", glossary)
    return {name for row in [*rows(glossary), *others] for name in names_of(row)}


def rows(markdown: str) -> list[str]:
    """The first cell of each row of all tables, without heads and rules."""
    lines = markdown.splitlines()
    tables = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if not after.startswith("|--")]
    return [line.split("|")[1] for line in tables if line.startswith("|") and not line.startswith("|--")]


def names_of(cell: str) -> list[str]:
    """The names in a field, separated by commas or semicolons, without remarks in parentheses."""
    plain = re.sub(r"\([^)]*\)|[*`]", "", cell)
    return [folded(name) for name in re.split(r"[,;]", plain) if name.strip()]


def folded(name: str) -> str:
    """In lower case and singular: `Threads` and `thread` are the same."""
    small = " ".join(name.lower().split())
    return small[:-1] if len(small) > 3 and small.endswith("s") and not small.endswith("ss") else small


def section(markdown: str, title: str) -> str:
    """The text under a heading of the second level."""
    return markdown.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
