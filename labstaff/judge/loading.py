"""Runs an answer's text: read as grading allows it, with guards where only the run itself can tell what is reached."""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import types
from typing import Any

from labkit.suite.allowed import (
    BUILTINS_REFUSED,
    REFUSED_PARTS,
    STANDARD,
    TOO_DEEP,
    given_names,
    may_import,
    refused_in,
    without_self_check,
)
from labstaff.judge.guarded_parts import copies_are_of_its_kind, evaluates_names_alone, guarded_parts
from labstaff.judge.guards import Guards

FETCH, BOX, CHANGE = "guard: fetch", "guard: box", "guard: change"
"""Names of guards in an answer's code: no identifiers, so that no answer can define them."""


class NotRun(Exception):
    """A text that is not run: no Python, or beyond what an answer may use."""


def load_answer(module: types.ModuleType, file: str, text: str) -> None:
    """Run `text`, the content of `file`, in the namespace of `module`.

    Raises:
        NotRun: with the line and what is wrong there, to follow the file's name.
    """
    try:
        tree = without_self_check(ast.parse(text.removeprefix("\ufeff")))
        if found := refused_in(tree, module.__name__):
            line, what = found[0]
            more = f" (and {len(found) - 1} more places)" if len(found) > 1 else ""
            raise NotRun(f"{what} in line {line}: a graded answer may not{more}")
        own = given_names(tree)
        code = compile(
            ast.fix_missing_locations(_Guards(_are_annotations_text(tree)).visit(tree)), file, "exec", dont_inherit=True
        )
    except SyntaxError as error:
        line_text = (error.text or "").strip()[:200]
        said = f"has a syntax error in line {error.lineno or 0}: {error.msg}"
        raise NotRun(said + (f": {line_text}" if line_text else "")) from None
    except ValueError as error:
        raise NotRun(f"is no text of Python: {error}") from None
    except (RecursionError, MemoryError):
        raise NotRun(TOO_DEEP) from None
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # Triton reads the text of kernels
    evaluates_names_alone()
    copies_are_of_its_kind()
    module.__dict__["__builtins__"] = _builtins(module, own)
    exec(code, module.__dict__)


class _Guards(ast.NodeTransformer):
    """Has every attribute fetched, set and deleted by way of a guard."""

    def __init__(self, are_annotations_text: bool) -> None:
        self._are_annotations_text = are_annotations_text
        self._class = ""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        kept = {name: getattr(node, name, None) for name in ("annotation", "returns")}
        if not self._are_annotations_text or not any(kept.values()):
            return super().generic_visit(node)
        for name, annotation in kept.items():
            if annotation is not None:
                setattr(node, name, None)
        super().generic_visit(node)
        for name, annotation in kept.items():
            if annotation is not None:
                setattr(node, name, annotation)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        outside, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outside
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            return self._guarded(FETCH, node)
        node.value = self._guarded(CHANGE, node)
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.MatchValue:
        if isinstance(node.value, ast.Attribute):
            self.generic_visit(node.value)
            value = ast.Attribute(self._guarded(BOX, node.value), "value", ast.Load())
            node.value = ast.copy_location(value, node.value)
        return node

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.MatchClass:
        node.patterns = [self.visit(each) for each in node.patterns]
        node.kwd_patterns = [self.visit(each) for each in node.kwd_patterns]
        return node  # its class is only asked whether the subject is one of it

    def _guarded(self, guard: str, node: ast.Attribute) -> ast.expr:
        arguments = [node.value, ast.copy_location(ast.Constant(self._as_compiled(node.attr)), node)]
        call = ast.Call(ast.copy_location(ast.Name(guard, ast.Load()), node), arguments, [])
        return ast.copy_location(call, node)

    def _as_compiled(self, name: str) -> str:
        """The name under which Python keeps an attribute that is private to a class."""
        kept_by = self._class.lstrip("_")
        return f"_{kept_by}{name}" if kept_by and name.startswith("__") and not name.endswith("__") else name


def _are_annotations_text(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and "annotations" in {a.name for a in node.names}
        for node in tree.body
    )


def _builtins(module: types.ModuleType, own_names: frozenset[str]) -> dict[str, Any]:
    """What an answer finds as builtins: no files, no code from text, imports and attributes as `allowed` says."""
    found = {name: value for name, value in vars(builtins).items() if name not in BUILTINS_REFUSED}
    guards = Guards(module, own_names)

    def import_as_allowed(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """What an import statement gives, whose names the text was read for; C code imports for itself by this too."""
        imported = builtins.__import__(name, globals, locals, fromlist, level)
        if may_import(name, module.__name__):
            for each in fromlist or ():
                if not may_import(f"{name}.{each}", module.__name__):
                    guards.passed(getattr(imported, each, None))
        return _public(imported, guards) if imported.__name__ in STANDARD else imported

    for function in (getattr, setattr, delattr, hasattr):
        found[function.__name__] = guards.by_name(function)
    found |= {FETCH: guards.fetch, BOX: guards.boxed, CHANGE: guards.changed}
    found["__import__"] = import_as_allowed
    found["__build_class__"] = builtins.__build_class__
    return found


def _public(module: types.ModuleType, guards: Guards) -> types.ModuleType:
    """Of a module of Python's own, the public part that answers may use, without what it has imported itself."""
    name = module.__name__
    if name not in guards.shown:
        shown = guards.shown[name] = types.ModuleType(name, module.__doc__)
        public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
        in_place = guarded_parts(guards)
        for each in [*public, *({"annotations"} if name == "__future__" else ())]:
            value = getattr(module, each, None)
            if f"{name}.{each}" in REFUSED_PARTS:
                continue
            value = in_place.get(f"{name}.{each}", value)
            if isinstance(value, types.ModuleType):
                if f"{name}.{each}" not in STANDARD:
                    continue
                value = _public(value, guards)
            setattr(shown, each, value)
        for child in [each for each in STANDARD if each.startswith(f"{name}.")]:
            setattr(shown, child.rpartition(".")[2], _public(importlib.import_module(child), guards))
    return guards.shown[name]
