"""Disables garbage collection while a meter is active.

A collection in between would free at a moment that differs from run to run, and run finalisers where nothing counts.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """Context in which the garbage collector runs only when it is called."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
