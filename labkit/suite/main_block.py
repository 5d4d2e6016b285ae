"""Takes out of a file what only its `if __name__ == "__main__":` block runs: when it is graded, nothing leads there."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from labkit.labs.manifest import Lab

BY_ANY_NAME = frozenset(
    "__dict__ __main__ eval exec getmembers getmodule globals import_module locals modules vars".split()  # noqa: SIM905
)


"""Where one of these is named, a function may be called whose name is nowhere."""


class _Part(NamedTuple):
    """A function, or one name of an import, at the top of the file; the names in its head, and in all of it."""

    name: str
    node: ast.stmt
    head: frozenset[str]
    names: frozenset[str]


def without_main_block(text: str, lab: Lab) -> str:
    """`text` with `pass` for that block, for the bodies of functions that only it calls, and for imports only they use.

    Lines stay where they are. The result is `text` itself where it has no such block, and where it cannot be cut so
    that Python reads it.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: Python cannot read it.
    """
    tree = ast.parse(text)
    blocks = [node for node in tree.body if isinstance(node, ast.If) and _is_main(node.test)]
    if not blocks:
        return text
    unused = _unused(tree, blocks, lab)
    edits: list[tuple[Sequence[ast.stmt], str]] = [(block.body, "pass") for block in blocks]
    for node in tree.body:
        gone = {part.name for part in unused if part.node is node}
        if gone and isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [each for each in node.names if _bound(each) not in gone]
            edits.append(([node], ast.unparse(node) if node.names else "pass"))
        elif gone and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            edits.append((node.body, "pass"))
    lines = text.encode().split(b"\n")
    for statements, new in sorted(edits, key=lambda edit: (edit[0][0].lineno, edit[0][0].col_offset), reverse=True):
        _replace(lines, statements, new.encode())
    cut = b"\n".join(lines).decode()
    try:
        ast.parse(cut)
    except (SyntaxError, ValueError):  # a text of a strange form
        return text
    return cut


def _is_main(test: ast.expr) -> bool:
    match test:
        case (
            ast.Compare(left=ast.Name("__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")])
            | ast.Compare(left=ast.Constant("__main__"), ops=[ast.Eq()], comparators=[ast.Name("__name__")])
        ):
            return True
    return False


def _unused(tree: ast.Module, blocks: Sequence[ast.If], lab: Lab) -> list[_Part]:
    """The functions and imports that only the blocks name, themselves or by way of others."""
    parts, used = [], Counter[str]()
    by_hand = set().union(*(_names(node) for block in blocks for node in block.body))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
            head = frozenset().union(*map(_names, [node.args, *filter(None, [node.returns])]))
            parts.append(_Part(node.name, node, head, frozenset(_names(node))))
        elif isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            parts += [_Part(_bound(each), node, frozenset(), frozenset((_bound(each),))) for each in node.names]
        else:
            rest = node.orelse if isinstance(node, ast.If) and node in blocks else [node]
            used.update(set().union(*map(_names, rest)))
    for part in parts:
        used.update(part.names - {part.name})
    kept = {task.name for task in lab.tasks}
    unused: list[_Part] = []
    found = parts
    while found:
        found = [part for part in parts if part.name in by_hand - kept and not used[part.name] and part not in unused]
        unused += found
        for part in found:
            by_hand |= part.names
            used.subtract(part.names - part.head - {part.name})
    return [] if any(used[name] for name in BY_ANY_NAME) else unused


def _names(node: ast.AST) -> set[str]:
    """The names, attributes and strings in a node."""
    names = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                names.add(name)
            case ast.alias():
                names.add(_bound(each))
    return names


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _replace(lines: list[bytes], statements: Sequence[ast.stmt], new: bytes) -> None:
    """Write `new` at the end of the statements' place, and leave their other lines empty."""
    first, last = statements[0], statements[-1]
    decorators = getattr(first, "decorator_list", [])
    row, column = min(node.lineno for node in [first, *decorators]) - 1, first.col_offset
    end_row, end_column = (last.end_lineno or 0) - 1, last.end_col_offset
    before, after = lines[row][:column], lines[end_row][end_column:]
    if row < end_row:
        lines[row:end_row] = [before if before.strip() else b"", *[b""] * (end_row - row - 1)]
        before = b" " * column if before.strip() else before
    lines[end_row] = before + new + after
