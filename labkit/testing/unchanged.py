"""Arguments of a call: copies to hand out, and a check that a call has left its arguments as they were."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from labkit.testing.compare import BorrowedWork, assert_unchanged

T = TypeVar("T")


def copied(*arguments: T) -> tuple[T, ...]:
    """Copies of arrays or tensors (of these with their strides), for a submission, which may change them in place.

    What a test expects is computed from its own arrays, which no submission has seen.
    """
    return tuple(map(copy.deepcopy, arguments))


@contextlib.contextmanager
def unchanged(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Fail if what runs in the block has changed one of the arrays or tensors `arguments`.

    `arguments` are the very objects that are handed on, by the handout's names.
    """
    before = [each.clone() if hasattr(each, "clone") else each.copy() for each in arguments.values()]
    _blocks.append(True)
    try:
        yield
    finally:
        _blocks.pop()
    for (name, now), old in zip(arguments.items(), before, strict=True):
        assert_unchanged(name, now, old)


@contextlib.contextmanager
def report_mutation_first(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Where the block fails, and what ran in it has changed one of `arguments`, fail with that change instead.

    `arguments` are copies of the test's own, by the handout's names: see `copied`.
    """
    before = copied(*arguments.values())
    _blocks.append(True)
    try:
        yield
    except BorrowedWork:
        raise
    except Exception:
        for (name, now), old in zip(arguments.items(), before, strict=True):
            assert_unchanged(name, now, old)
        raise
    finally:
        _blocks.pop()


def must_return_arguments() -> bool:
    """Whether a call that is made now must show its arguments as they are after it, wherever it is made."""
    return bool(_blocks)


_blocks: list[bool] = []
