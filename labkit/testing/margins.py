"""How close comparisons come to their limits: kept while somebody calibrates a suite, otherwise forgotten."""

from __future__ import annotations

kept: list[tuple[str, float]] | None = None
"""What was compared, and the share of its limit that was used up: 1 is the limit itself."""


def note(what: str, used: float, limit: float) -> None:
    """Keep how much of `limit` was used, if anybody wants to know; a limit of 0 leaves nothing to say."""
    if kept is not None and limit > 0:
        kept.append((what, float(used) / float(limit)))
