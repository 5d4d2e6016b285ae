"""Finds submissions that are nearly the same, for a human to look at: shared runs of syntax, whatever the names.

Winnowing's idea (Schleimer, Wilkerson, Aiken 2003) on the syntax tree: names, comments, spacing and literal values do
not count, and what the handed-out stub holds already is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

RUN = 12
LEAST_RUNS = 60
NEAR = 0.9


class Pair(NamedTuple):
    """Two students, and the share of their code's runs of syntax that both have."""

    first: str
    second: str
    share: float


def similar_pairs(sources: Mapping[str, bytes], stub: bytes, near: float = NEAR) -> list[Pair]:
    """Pairs of students whose files are alike, the most alike first.

    Args:
        sources: student → file.
        stub: the file that was handed out.
        near: the least share (of shared runs among all runs of the two) that is reported.

    Short files are left out: there are only so many ways to write a few lines.
    """
    handed_out = _runs(stub)
    runs = {student: _runs(source) - handed_out for student, source in sources.items()}
    long_enough = {student: each for student, each in runs.items() if len(each) >= LEAST_RUNS}
    pairs = []
    for (first, a), (second, b) in combinations(sorted(long_enough.items()), 2):
        share = len(a & b) / len(a | b)
        if share >= near:
            pairs.append(Pair(first, second, share))
    return sorted(pairs, key=lambda pair: -pair.share)


def _runs(source: bytes) -> set[tuple[str, ...]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    kinds: list[str] = []
    _collect(tree, kinds)
    return {tuple(kinds[i : i + RUN]) for i in range(len(kinds) - RUN + 1)}


def _collect(root: ast.AST, kinds: list[str]) -> None:
    """The kinds of nodes in order of the text, docstrings left out; attributes by name, since they name operations."""
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node, ast.expr_context):
            kinds.append(f".{node.attr}" if isinstance(node, ast.Attribute) else type(node).__name__)
        stack.extend(reversed(list(ast.iter_child_nodes(node))))
