"""Text that others wrote, made fit for a terminal, a table and a page: one line, nothing that steers or hides."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator

LONGEST = 200
STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of what is not seen: controls, marks of direction, halves of characters, unassigned, breaks."""


BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs of which nothing is seen, though no category says so."""

MARKS, MOST_MARKS = {"Mn", "Me"}, 4
"""What is drawn over the character before it, and how many are drawn: a hundred hide the lines above."""


def one_line(text: object, longest: int = LONGEST) -> str:
    """`text` on one line of at most `longest` characters; what a terminal would obey is written out, as `\\x1b`.

    Names of files reach Python with halves of characters in place of bytes that are no UTF-8: these are bytes again.
    """
    raw = os.fsdecode(text) if isinstance(text, bytes) else str(text)
    shown = "".join(map(_written_out, _without_piles(raw[: longest + 1])))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def lines(text: object) -> str:
    """As `one_line`, for a text of several lines: line ends and tabs stay, and its length."""
    characters = _without_piles(str(text).replace("\r\n", "\n"))
    return "".join(c if c in "\n\t" else _written_out(c) for c in characters)


def cell(text: object) -> str:
    """As `one_line`, for a table: no spreadsheet takes it for a formula."""
    shown = one_line(text)
    first = unicodedata.normalize("NFKC", shown.lstrip()[:1])  # a wide or small sign begins a formula too
    return f"'{shown}" if first in ("=", "+", "-", "@") else shown


def _without_piles(text: str) -> Iterator[str]:
    """The characters of a text; of the marks over one of them the first, and a sign for the rest."""
    n_marks = 0
    for character in text:
        n_marks = n_marks + 1 if unicodedata.category(character) in MARKS else 0
        if n_marks <= MOST_MARKS:
            yield character
        elif n_marks == MOST_MARKS + 1:
            yield "…"


def _written_out(character: str) -> str:
    if unicodedata.category(character) not in STEERING and character not in BLANKS:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as os.fsdecode keeps it
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii") if code > 0x7F else f"\\x{code:02x}"
