"""How many splits keep a GPU busy, by the rule as it is written, and the mistakes usual in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.testing.compare import assert_equal


def assert_heuristic(answer: Callable[..., Any], total: int, sms: int, blocks: int, most: int = 128) -> None:
    """Compare how many splits `answer` takes with the rule; where rounding could decide, anything will do."""
    want = _smallest(_efficiencies(total, sms, blocks, most))
    if want is None:
        return
    got = answer(total, sms, blocks, *([most] if most != 128 else []))
    name = f"num_splits_heuristic({total}, {sms}, {blocks}, {most})"
    usual = {text: value for text, value in _suspects(total, sms, blocks, most).items() if value != want}
    assert_equal(name, got, want, suspects=usual, hint="compare the efficiencies one by one with the handout's")


def _suspects(total: int, sms: int, blocks: int, most: int) -> dict[str, int | None]:
    right = _efficiencies(total, sms, blocks, most)
    return {
        "the best efficiency is taken, not the smallest number of splits near it": max(
            right, key=lambda splits: right[splits]
        ),
        "the largest number of splits near the best is taken": max(
            splits for splits, each in right.items() if each >= 0.85 * max(right.values())
        ),
        "numbers of splits count that leave some split without a block": _smallest(
            _efficiencies(total, sms, blocks, most, eligible=False)
        ),
        "max_splits is ignored": _smallest(_efficiencies(total, sms, blocks, most, bounds=(False, True, True))),
        "as many splits are allowed as fit on the multiprocessors, not as there are blocks": _smallest(
            _efficiencies(total, sms, blocks, most, bounds=(True, True, False), eligible=False)
        ),
        "an efficiency of 0.85 is enough, whatever the best one is": next(
            (splits for splits, each in right.items() if each >= 0.85), 1
        ),
    }


def _smallest(found: dict[int, float], share: float = 0.85) -> int | None:
    """The answer, and None where rounding could decide."""
    best = max(found.values())
    if any(abs(each - share * best) < 1e-9 for each in found.values()):
        return None
    return min(splits for splits, each in found.items() if each >= share * best)


def _efficiencies(
    total: int,
    sms: int,
    blocks: int,
    most: int,
    eligible: bool = True,
    bounds: tuple[bool, bool, bool] = (True, True, True),
) -> dict[int, float]:
    """The efficiency of every number of splits that counts."""
    last = min(bound for bound, counts in zip((most, sms, blocks), bounds, strict=True) if counts)
    found = {}
    for splits in range(1, last + 1):
        if splits == 1 or not eligible or math.ceil(blocks / splits) != math.ceil(blocks / (splits - 1)):
            found[splits] = total * splits / (math.ceil(total * splits / sms) * sms)
    return found
