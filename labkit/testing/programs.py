"""Marks what of a suite runs where the answer is: a meter around several calls, a backward pass, a drawing.

Values are judged here; some things must be asked where they are. A *program* uses the answer in ways that plain data
cannot express. It takes and returns plain data and judges nothing, so that it can run in the answer's process when
that is another one: `program_text` takes out of a suite's text what is marked, the imports that it names, and nothing
else.

    @program
    def measured_call(task, *args): ...

    SIZES = program({"small": 4, "large": 64})
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
MARK = "program"
ANYWHERE = {*dir(builtins), "__file__", "__name__"}

elsewhere: Callable[[FunctionType], Callable[..., Any]] | None = None
"""Makes of a marked function a stand-in that runs it where the answer lives; None while that is this process."""


def program(thing: T) -> T:
    """Mark a function, a class or a constant of a suite as part of its programs."""
    if elsewhere is None or not isinstance(thing, FunctionType):
        return thing
    return elsewhere(thing)  # type: ignore[return-value]


def programs_here(suite: str | Path) -> ModuleType:
    """The programs of `suite` as a module of this process, wherever an answer's run: for what references are made of.

    The answer's own functions in them are whatever they are in the suite.
    """
    module = ModuleType("programs_here")
    exec(compile(program_text(Path(suite)), str(suite), "exec", dont_inherit=True), module.__dict__)
    return module


class ProgramError(ValueError):
    """A program names something of its suite that is neither marked nor imported; the message names both."""


def program_names(suite: Path) -> list[str]:
    """The functions that `suite` marks with `@program`, in its order."""
    return [node.name for node in _marked(ast.parse(suite.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]


def program_text(suite: Path) -> str:
    """The programs of `suite` as a module of their own, each on the lines where it stands in the suite.

    Raises:
        ProgramError: a program names what the suite defines and does not mark.
    """
    tree = ast.parse(suite.read_text(encoding="utf-8"))
    marked = _marked(tree)
    named = {node.id for each in marked for node in ast.walk(each) if isinstance(node, ast.Name)} - {MARK}
    imports = [kept for node in tree.body if (kept := _import_of(node, named))]
    known = {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}
    known |= ANYWHERE.union(*(_bound(each) for each in marked))
    for each in marked:
        if strangers := _free(each) - known:
            raise ProgramError(
                f"{suite.name}: {_name(each)}, a program, names {', '.join(sorted(strangers))}: "
                "mark that too, or import it"
            )
    lines: list[str] = []
    for node in [*imports, *map(_unmarked, marked)]:
        text = ast.unparse(node)
        lines += [""] * (node.lineno - 1 - len(lines))
        lines += text.split("\n")
    return "\n".join(lines) + "\n"


def _marked(tree: ast.Module) -> list[ast.FunctionDef | ast.ClassDef | ast.Assign]:
    found: list[ast.FunctionDef | ast.ClassDef | ast.Assign] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if any(_is_mark(each) for each in node.decorator_list):
                found.append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_mark(node.value.func):
            found.append(node)
    return found


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == MARK


def _unmarked(node: ast.FunctionDef | ast.ClassDef | ast.Assign) -> ast.stmt:
    if isinstance(node, ast.Assign):
        assert isinstance(node.value, ast.Call)
        node.value = node.value.args[0]
    else:
        node.decorator_list = [each for each in node.decorator_list if not _is_mark(each)]
    return node


def _import_of(node: ast.stmt, named: set[str]) -> ast.Import | ast.ImportFrom | None:
    """The part of an import that provides one of `named`."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return None
    node.names = [alias for alias in node.names if (alias.asname or alias.name.split(".")[0]) in named]
    return node if node.names else None


def _name(node: ast.FunctionDef | ast.ClassDef | ast.Assign) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else node.name


def _bound(node: ast.stmt) -> set[str]:
    """The names that a marked statement gives to the module."""
    if isinstance(node, ast.Assign):
        return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()


def _free(node: ast.stmt) -> set[str]:
    """The names that a statement loads and binds nowhere in itself."""
    loads: set[str] = set()
    binds: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            (loads if isinstance(each.ctx, ast.Load) else binds).add(each.id)
        elif isinstance(each, ast.arg):
            binds.add(each.arg)
        elif isinstance(each, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            binds.add(each.name or "")
        elif isinstance(each, ast.Import | ast.ImportFrom):
            binds |= {alias.asname or alias.name.split(".")[0] for alias in each.names}
    return loads - binds - {MARK}
