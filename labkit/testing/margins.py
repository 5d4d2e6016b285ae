"""How close comparisons come to their limits: kept while somebody calibrates a suite, otherwise forgotten."""

from __future__ import annotations

from typing import NamedTuple


class Margin(NamedTuple):
    """What was compared, what kind of limit it has, and the share of the limit that was used up: 1 is the limit."""

    what: str
    kind: str
    share: float


kept: list[Margin] | None = None


def note(what: str, used: float, limit: float, kind: str) -> None:
    """Keep how much of `limit` was used, if anybody wants to know; a limit of 0 leaves nothing to say.

    `kind` is "tolerance", or the unit of what is counted.
    """
    if kept is not None and limit > 0:
        kept.append(Margin(what, kind, float(used) / float(limit)))
