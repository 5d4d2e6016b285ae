"""Has the garbage collector wait while a meter looks on, since what it frees may run code of anybody's.

It runs whenever a container is made, in the middle of a meter's own lines too, where nobody counts what a finaliser, a
weak reference or the end of a generator does. Garbage that no cycle holds goes at once, as ever.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_n_waits, _is_on = 0, True
"""How many bodies have it wait, and whether it is to go on after them."""


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """Let the collector run only when it is called while the body runs."""
    global _n_waits, _is_on
    if not _n_waits:
        _is_on = gc.isenabled()
    _n_waits += 1
    gc.disable()
    try:
        yield
    finally:
        _n_waits -= 1
        if not _n_waits and _is_on:
            gc.enable()


def enable() -> None:
    """As `gc.enable`, from when no meter looks on any more: what graded answers find under that name."""
    global _is_on
    _is_on = True
    if not _n_waits:
        gc.enable()


def disable() -> None:
    """As `gc.disable`, also after the meters that look on."""
    global _is_on
    _is_on = False
    gc.disable()
