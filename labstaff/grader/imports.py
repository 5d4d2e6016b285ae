"""Finds out which libraries a submission imports."""

from __future__ import annotations

import ast
import sys

LIBRARIES = frozenset(("matplotlib", "numpy", "torch", "tqdm", "triton", "typing_extensions"))


def imported_modules(source: str) -> list[str]:
    """The libraries that `source` imports anywhere.

    Without their private parts, some of which hold tens of megabytes that a submission could free for itself.
    """
    try:
        nodes = list(ast.walk(ast.parse(source.removeprefix("\ufeff"))))
    except (RecursionError, MemoryError, SyntaxError, ValueError):
        return []
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    known = LIBRARIES | sys.stdlib_module_names
    return sorted(name for name in named if name.split(".")[0] in known and "._" not in f".{name}")
