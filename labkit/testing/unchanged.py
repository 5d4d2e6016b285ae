"""A call between two looks at its arguments: what it was given must be what it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.testing.compare import assert_unchanged


@contextlib.contextmanager
def left_alone(names: Iterable[str], arguments: Iterable[Any]) -> Iterator[None]:
    """Fail unless the arrays or tensors that the block hands to an answer hold, when it has ended, what they held.

    `arguments` are the very objects that are handed on, `names` what the handout calls them, in the same order.
    """
    held = list(arguments)
    before = [each.clone() if hasattr(each, "clone") else each.copy() for each in held]
    _blocks.append(True)
    try:
        yield
    finally:
        _blocks.pop()
    for name, now, old in zip(names, held, before, strict=True):
        assert_unchanged(name, now, old)


def must_return_arguments() -> bool:
    """Whether a call that is made now must show its arguments as they are after it, wherever it is made."""
    return bool(_blocks)


_blocks: list[bool] = []
