"""Words that the course's texts avoid: the field has a plainer one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from labkit.labs.catalog import ROOT

WORDS = {
    "in place of": "instead of",
    "whoever": "any request (submission, reader) that",
    "to be had": "available",
    "deeds?": "operation",
    "parcels?": "message",
    "far side": "worker",
    "judge[sd]?|judging": "grade, check",
    "told(?! apart)": "printed, reported",
    "stands in|stand in": "is in",
    "beside": "next to, besides",
    "anew": "again",
    "thereby|therein|thereof": "by this, in it, of it",
    "to beg": "to need",
    "comes? to lie": "is",
}
TEXTS = ("docs/*.md", "labs/*/README.md", "README.md", "CONTRIBUTING.md")
CODE = (
    "labkit",
    "labs",
    "labstaff",
    "solutions",
    "tests",
    "benchmarks",
    "docs/figures/make",
)
"""Files whose whole text is checked, and folders of which docstrings' first lines and messages are."""
EXCEPTIONS = {
    "docs/instructors.md": {"judge[sd]?|judging"},  # names of folders and messages that `lab grade` makes
}
ANY = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
MESSAGES = ("require", "CannotTrace", "ValueError", "TypeError", "RuntimeError", "exit", "echo", "print", "Option")
"""Calls whose strings a reader sees."""


def files() -> list[Path]:
    texts = [path for pattern in TEXTS for path in ROOT.glob(pattern)]
    return sorted(
        [*texts, *(path for folder in CODE for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))]
    )


def read_by_people(path: Path) -> str:
    """A text without its code blocks, or the first lines of a module's docstrings and its messages."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```|`[^`\n]*`", "", source, flags=re.DOTALL | re.MULTILINE)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            found.append((ast.get_docstring(node) or "").partition("\n")[0])
        if isinstance(node, ast.Call) and _name(node.func) in MESSAGES:
            constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            found += [value for value in constants if isinstance(value, str)]
    return "\n".join(found)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")


def test_plainer_words() -> None:
    found = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if not ANY.search(path.read_text(encoding="utf-8")):
            continue  # reading Python's syntax costs far more than this search
        text = read_by_people(path)
        found += [
            f"{name}: {match[0]!r}: write {plainer!r}"
            for word, plainer in WORDS.items()
            if word not in EXCEPTIONS.get(name, ())
            for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
        ]
    assert not found, "\n".join(found)
