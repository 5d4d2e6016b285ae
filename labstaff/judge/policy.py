"""What the grader is shown of an answer's text: where it goes beyond what grading runs, and what looks odd."""

from __future__ import annotations

import ast
from typing import NamedTuple

from labkit.suite.allowed import TOO_DEEP, refused_in, without_self_check

PAST_THE_METERS = frozenset(("numpy", "from_numpy", "tolist", "data_ptr", "__array__", "frombuffer"))
"""Attributes by which torch code leaves torch, and its meters, behind."""


NUMPYS_PRODUCTS = frozenset(("dot", "einsum", "inner", "matmul", "tensordot", "vdot"))
"""The same of NumPy's functions, which take tensors as they are."""


class Finding(NamedTuple):
    """A place in an answer, and what is to be said of it."""

    line: int
    what: str


def breaches(tree: ast.Module, own: frozenset[str] = frozenset()) -> list[Finding]:
    """Why an answer is not run; empty when it is. `own` names the lab's module."""
    try:
        return [Finding(*each) for each in refused_in(without_self_check(tree), next(iter(own), ""))]
    except (RecursionError, MemoryError):
        return [Finding(1, TOO_DEEP)]


def oddities(tree: ast.Module) -> list[Finding]:
    """What a grader should look at, though it may run."""
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    if "torch" not in imported:
        return []
    called_numpy = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }
    return sorted(
        Finding(node.lineno, f".{node.attr} leaves torch, whose meters then see nothing")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (node.attr in PAST_THE_METERS or (node.attr in NUMPYS_PRODUCTS and _is_named(node.value, called_numpy)))
    )


def _is_named(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
