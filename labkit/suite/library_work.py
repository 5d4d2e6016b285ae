# ruff: noqa: SIM905 — a long list of names is read best as words
"""Finds the tasks whose work is done by a function of a library: torch's own attention, its own checkpointing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from labkit.labs.manifest import Lab
from labkit.suite.main_block import without_main_block
from labkit.suite.source_text import read_source

LIBRARY_WORK = frozenset(
    "CheckpointFunction MultiheadAttention TransformerDecoder TransformerDecoderLayer TransformerEncoder flash_attn "
    "TransformerEncoderLayer flex_attention multi_head_attention_forward scaled_dot_product_attention xformers".split()
)
"""What does a whole task; so does a library's function that has a task's name."""


def library_lines(lab: Lab) -> dict[str, str]:
    """The first line of the student's file in which a library does a task's work, by the task.

    Empty for a file that cannot be read as Python: the tests report that.
    """
    found: dict[str, str] = {}
    try:
        tree = ast.parse(without_main_block(read_source(lab.student_file), lab))
        for number, what, tasks in sorted(library_work(tree, lab)):
            for task in tasks:
                found.setdefault(task, f"line {number}: {what}")
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return found


def library_work(tree: ast.Module, lab: Lab) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """The line, what it does and the task, for each task that uses such a function itself or by way of others."""
    paths = imported_paths(tree)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names = {top: {node.id for node in ast.walk(top) if isinstance(node, ast.Name)} for top in tree.body}
    tasks = {task.name for task in lab.tasks if task.own_work}
    for top in tree.body:
        for node in ast.walk(top):
            name = _library_name(node, paths, own, lab)
            if name in LIBRARY_WORK or name.startswith("_scaled_dot") or (name in tasks and name not in names[top]):
                users, before = _bound(top) - paths.keys(), -1
                while len(users) != before:
                    before = len(users)
                    users = users.union(*(_bound(other) - paths.keys() for other in names if names[other] & users))
                for task in sorted(users & tasks):
                    yield getattr(node, "lineno", 1), f"{task} uses a library's own {name}", (task,)


def imported_paths(tree: ast.Module) -> dict[str, set[str]]:
    """The dotted names that each imported name stands for."""
    paths: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                path = each.name if each.asname else each.name.split(".")[0]
                paths.setdefault(each.asname or path, set()).add(path)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                paths.setdefault(each.asname or each.name, set()).add(f"{node.module}.{each.name}")
    return paths


def _library_name(node: ast.AST, paths: dict[str, set[str]], own: set[str], lab: Lab) -> str:
    """The last part of what a node names in a library; "" for any other node."""
    match node:
        case ast.Name(id=name):
            found = {path.rpartition(".")[2] for path in paths.get(name, ()) if not path.startswith(f"{lab.module}.")}
            return min(found & LIBRARY_WORK or found, default="")
        case ast.Attribute(value=value, attr=name):
            root = value
            while isinstance(root, ast.Attribute):
                root = root.value
            return name if (isinstance(root, ast.Name) and root.id in paths) or name in LIBRARY_WORK - own else ""
        case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), *_]):
            return name if name in LIBRARY_WORK else ""
    return ""


def _bound(top: ast.stmt) -> set[str]:
    """The names that a statement at the top of the file defines or changes."""
    if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {top.name}
    found = set()
    for node in ast.walk(top):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case (
                ast.Attribute(value=ast.Name(id=name), ctx=ast.Store())
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store())
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
            ):
                found.add(name)
    return found
