"""A bounded cache of masks, held to a plain model of what it must keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.testing.compare import assert_equal, require
from labkit.testing.windows.sliding import assert_codes


def assert_least_recent_goes(maxsize: int, deeds: Sequence[tuple[Any, ...]], told: Sequence[dict[str, Any]]) -> None:
    """Fail unless a session of `labkit.meters.mask_caches` gave up the least recently used mask each time."""
    made: dict[Any, int] = {}  # key → the deed that made the mask now held, the least recently used first
    for step, ((kind, *given), one) in enumerate(zip(deeds, told, strict=True)):
        before = f"{kind}{given[0] if given else '()'} when {', '.join(map(str, made)) or 'nothing'} is held "
        before += f"(maxsize {maxsize})"
        if kind == "clear":
            made = {}
        elif kind == "get":
            assert_codes(before, one["mask"], given[0])
            want = made.pop(given[0], step)
            require(one["tensor"] == want,
                    f"{before} {'makes the mask again' if one['tensor'] == step else 'gives an older mask'}\nUsual "
                    "cause: another mask than the least recently used one was given up")  # fmt: skip
            made[given[0]] = want
            made = dict(list(made.items())[-maxsize:])
        assert_equal(f"len(cache) after {before}", one["len"], len(made))
