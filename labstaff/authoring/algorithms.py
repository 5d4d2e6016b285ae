"""Replaces functions or classes of a program by others, with other names, from a second file."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping

Definition = ast.FunctionDef | ast.ClassDef


class ReplaceError(ValueError):
    """A name that one of the two files does not define at its top level; the message names both."""


def replaced(program: str, algorithms: str, replace: Mapping[str, str]) -> str:
    """The text of `program` with each function or class that `replace` names replaced.

    Args:
        program: a module's source.
        algorithms: another one's.
        replace: names of functions or classes in `program`, and of those in `algorithms` that take their places and
            their names. What these use of `algorithms` (functions, classes, variables, imports) comes along.

    Raises:
        ReplaceError: a name is not there.
    """
    lines, tree = program.split("\n"), ast.parse(program)
    texts = replacements(program, algorithms, replace)
    places = {_extent(_definition(tree, name, "the solution")): text for name, text in texts.items()}
    for (start, end), text in sorted(places.items(), reverse=True):
        lines[start:end] = text.split("\n")
    return "\n".join(lines)


def replacements(program: str, algorithms: str, replace: Mapping[str, str]) -> dict[str, str]:
    """By name, the text that replaces each function or class; arguments and errors as for `replaced`."""
    ours, theirs = ast.parse(program), ast.parse(algorithms)
    their_lines = algorithms.split("\n")
    there = {ast.unparse(node) for node in ours.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    texts: dict[str, str] = {}
    for name, other in replace.items():
        definition = _definition(theirs, other, "algorithms.py")
        needed = [node for node in _needed(theirs, definition) if ast.unparse(node) not in there]
        there |= {ast.unparse(node) for node in needed}
        parts = [_text(their_lines, node) for node in needed]
        parts.append(_renamed(_text(their_lines, definition), other, name))
        texts[name] = "\n\n\n".join(parts)
    return texts


def _definition(tree: ast.Module, name: str, where: str) -> Definition:
    for node in tree.body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise ReplaceError(f"{where} defines no function or class {name}")


def _needed(tree: ast.Module, definition: Definition) -> list[ast.stmt]:
    """The statements at the top of `tree` that bind what `definition` uses, and what they use, in their order."""
    binding = {name: node for node in tree.body for name in _bound(node)}
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = [definition]
    while waiting:
        names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)}
        for statement in {binding[name] for name in names & binding.keys()} - {definition, *found}:
            found.append(statement)
            waiting.append(statement)
    return sorted(found, key=lambda node: node.lineno)


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, Definition):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _extent(node: ast.stmt) -> tuple[int, int]:
    """The lines of a definition, its decorators included, as a slice."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return first - 1, node.end_lineno or first


def _text(lines: list[str], node: ast.stmt) -> str:
    start, end = _extent(node)
    return "\n".join(lines[start:end])


def _renamed(source: str, old: str, new: str) -> str:
    """`source` with every name `old` turned into `new`; strings and comments are left alone."""
    lines = source.split("\n")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    places = [token.start for token in tokens if token.type == tokenize.NAME and token.string == old]
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "\n".join(lines)
