"""An edit of a program, written as removed and added lines.

    - S = scale * Q_i @ K_j.mT
    + S = Q_i @ K_j.mT
    @@
      P = torch.exp(S - L[..., rows, None])
    + kept.append(P)

Lines that stay (two blanks before them) say which place is meant where the lines that go do not, or where only
something is added. A line `@@` parts the places of an edit. What is common to all the indentation of a place is left
out. The lines that stay or go must be found exactly once in the program.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

BETWEEN_PLACES = "@@"
GOES, COMES, STAYS = "-", "+", " "


class EditError(ValueError):
    """An edit that is malformed, or does not fit its program; the message names the place and quotes a line."""


@dataclass(frozen=True)
class _Place:
    """One place of an edit: the lines that it finds and those that replace them; places are numbered from 1."""

    number: int
    old: list[str]
    new: list[str]


def edited(program: str, edit: str) -> str:
    """The text of `program` with `edit` made in it.

    Raises:
        EditError: a line of the edit begins with none of the three signs; a place changes nothing, is not found in the
            program, is found more than once, or overlaps with another.
    """
    lines = program.split("\n")
    replaced = sorted((_replacement(lines, place) for place in _places(edit)), key=lambda found: found[0])
    for (_, end, _), (start, _, _) in itertools.pairwise(replaced):
        if start < end:
            raise EditError(f"two places overlap at line {start + 1} of the program")
    for start, end, new in reversed(replaced):
        lines[start:end] = new
    return "\n".join(lines)


def _places(edit: str) -> list[_Place]:
    blocks: list[list[str]] = [[]]
    for line in edit.strip("\n").split("\n"):
        if line == BETWEEN_PLACES:
            blocks.append([])
        else:
            blocks[-1].append(line)
    return [_place(number, block) for number, block in enumerate(blocks, 1)]


def _place(number: int, block: list[str]) -> _Place:
    signs = [line[:1] or STAYS for line in block]
    for sign, line in zip(signs, block, strict=True):
        if sign not in (GOES, COMES, STAYS) or line[1:2] not in ("", " "):
            raise EditError(f"place {number}: a line must begin with `- `, `+ ` or two spaces, found {line!r}")
    texts = [line[2:] for line in block]
    old = [text for sign, text in zip(signs, texts, strict=True) if sign != COMES]
    new = [text for sign, text in zip(signs, texts, strict=True) if sign != GOES]
    if old == new or not "".join(old).strip():
        raise EditError(f"place {number}: it changes nothing, or has no context")
    return _Place(number, old, new)


def _replacement(lines: list[str], place: _Place) -> tuple[int, int, list[str]]:
    """The first and last of the place's lines in `lines`, and the replacement with its indentation."""
    n_old = len(place.old)
    first = next(number for number, line in enumerate(place.old) if line)
    found = []
    for start in range(len(lines) - n_old + 1):
        if lines[start + first].endswith(place.old[first]):
            indentation = lines[start + first].removesuffix(place.old[first])
            same = [indentation + line if line else "" for line in place.old] == lines[start : start + n_old]
            if same and not indentation.strip():
                found.append((start, indentation))
    if len(found) != 1:
        quoted = next(line.strip() for line in place.old if line.strip())
        where = f"{len(found)} times, first in lines {found[0][0] + 1} and {found[1][0] + 1}" if found else "nowhere"
        raise EditError(f"place {place.number}, which begins `{quoted}`, is found {where}")
    start, indentation = found[0]
    return start, start + n_old, [indentation + line if line else "" for line in place.new]
