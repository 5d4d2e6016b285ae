"""PTX that need not be made twice: whoever runs many answers names a folder, and what was compiled lies there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = "COMPILED_KERNELS"
"""The name in the environment under which that folder is found; without it nothing is kept.

Answers that run under it can write there too: it is for those that somebody trusts, as the course does its own.
"""


def made_once(made_of: str, make: Callable[[], tuple[str, int]]) -> tuple[str, int]:
    """What `make` returns: PTX and bytes of shared memory, found where the same was made of `made_of` before.

    `made_of` must say all that it depends on but the libraries. What `make` raises is not kept.
    """
    folder = os.environ.get(FOLDER, "")
    if not folder:
        return make()
    file = Path(folder, hashlib.sha256(made_of.encode()).hexdigest())
    if file.exists():
        ptx, shared = json.loads(file.read_text(encoding="utf-8"))
        return ptx, shared
    ptx, shared = make()
    unfinished = file.with_suffix(f".{os.getpid()}")  # another process may be at the same kernel
    unfinished.write_text(json.dumps([ptx, shared]), encoding="utf-8")
    unfinished.replace(file)
    return ptx, shared
