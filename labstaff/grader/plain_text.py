"""Text that others wrote, made fit for a terminal, a table and a page: one line, nothing that steers or hides."""

from __future__ import annotations

import os
import re
import unicodedata

LONGEST = 200
LONGEST_CELL = 32_000
"""Characters of a spreadsheet's cell; Excel takes 32,767, and puts the rest of a longer one elsewhere."""
STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of what is not seen: controls, marks of direction, halves of characters, unassigned, breaks."""


def one_line(text: object, longest: int = LONGEST) -> str:
    """`text` on one line of at most `longest` characters; what a terminal would obey is written out, as `\\x1b`.

    Names of files reach Python with halves of characters instead of bytes that are no UTF-8: these are bytes again.
    """
    raw = os.fsdecode(text) if isinstance(text, bytes) else str(text)
    shown = "".join(map(_written_out, raw[: longest + 1]))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def lines(text: object) -> str:
    """As `one_line`, for a text of several lines: line ends and tabs stay, and its length."""
    return "".join(c if c in "\n\t" else _written_out(c) for c in str(text).replace("\r\n", "\n"))


def cell(text: object) -> str:
    """As `one_line`, for a table: no spreadsheet takes it for a formula.

    Nothing after a semicolon or tab begins one either: a spreadsheet that divides the file there, as Excel does in many
    countries, does not see the quotation marks around a cell.
    """
    return _without_formulas(one_line(text))


def long_cell(text: object) -> str:
    """As `cell`, for a text of several lines, of which none begins a formula; cut at `LONGEST_CELL` characters."""
    shown = _without_formulas(lines(text))
    return shown if len(shown) <= LONGEST_CELL else f"{shown[:LONGEST_CELL]}\n… (cut)"


def _without_formulas(shown: str) -> str:
    parts = re.split(r"([\n\t;])", shown)
    return "".join(f"'{part}" if _is_formula(part) else part for part in parts)


def _is_formula(text: str) -> bool:
    first = text.replace('"', " ").lstrip()[:1]
    return unicodedata.normalize("NFKC", first) in ("=", "+", "-", "@")  # a wide or small sign begins one too


def _written_out(character: str) -> str:
    if unicodedata.category(character) not in STEERING:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as os.fsdecode keeps it
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii") if code > 0x7F else f"\\x{code:02x}"
