"""Caches compiled kernels and assembler reports in a folder, for runs of many submissions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made", str, list[str | int])

FOLDER = "COMPILED_KERNELS"
"""The name in the environment under which that folder is found; without it nothing is cached.

The code under test can write there too, so this is for code that is trusted, such as the course's own.
"""


@contextlib.contextmanager
def cached_kernels(folder: Path) -> Iterator[None]:
    """Context in which new processes cache kernels in `folder`, or where the environment already points."""
    if os.environ.get(FOLDER):
        yield
        return
    folder.mkdir()
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]


def made_once(made_of: str, make: Callable[[], Made]) -> Made:
    """The result of `make`, from the cache if it was made of the same `made_of` before.

    It is text, or a list of texts and whole numbers. `made_of` must hold everything it depends on, apart from the
    libraries. An exception is not cached.
    """
    folder = os.environ.get(FOLDER, "")
    if not folder:
        return make()
    file = Path(folder, hashlib.sha256(made_of.encode()).hexdigest())
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    made = make()
    unfinished = file.with_suffix(f".{os.getpid()}")  # another process may be at the same kernel
    unfinished.write_text(json.dumps(made), encoding="utf-8")
    unfinished.replace(file)
    return made
