"""Runs an answer's text: read as grading allows it, with guards where only the run itself can tell what is reached."""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import re
import string
import sys
import types
from collections.abc import Callable
from typing import Any

from labkit.meters import collector
from labkit.suite.allowed import (
    BUILTINS_REFUSED,
    REFUSED_PARTS,
    STANDARD,
    TOO_DEEP,
    given_names,
    may_import,
    may_name,
    refused_in,
    without_self_check,
)

MODULE_GUARD, OWN_GUARD, TEMPLATE_GUARD = "guard: module", "guard: own", "guard: template"
"""Names of guards in an answer's code: no identifiers, so that no answer can define them."""

IN_PLACE = {"gc.enable": collector.enable, "gc.disable": collector.disable}
"""What an answer finds in place of parts of modules."""

TEMPLATES = ("format", "format_map")
"""Methods of a text that fetch the attributes it names."""


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
        code = compile(ast.fix_missing_locations(_Guards().visit(tree)), file, "exec", dont_inherit=True)
    except SyntaxError as error:
        line_text = (error.text or "").strip()[:200]
        said = f"has a syntax error in line {error.lineno or 0}: {error.msg}"
        raise NotRun(said + (f": {line_text}" if line_text else "")) from None
    except ValueError as error:
        raise NotRun(f"is no text of Python: {error}") from None
    except (RecursionError, MemoryError):
        raise NotRun(TOO_DEEP) from None
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # Triton reads the text of kernels
    module.__dict__["__builtins__"] = _builtins(module.__name__, own)
    exec(code, module.__dict__)


class _Guards(ast.NodeTransformer):
    """Puts a guard around what may be a module that a library uses, a library to be changed, or a template."""

    def __init__(self) -> None:
        self.modules = frozenset(sys.stdlib_module_names) | {name.rpartition(".")[2] for name in sys.modules}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Store | ast.Del):
            node.value = _guarded(OWN_GUARD, node.value)
        elif node.attr in TEMPLATES:
            node.value = _guarded(TEMPLATE_GUARD, node.value)
        elif node.attr in self.modules or (node.attr.startswith("_") and not node.attr.startswith("__")):
            return _guarded(MODULE_GUARD, node)
        return node


def _guarded(guard: str, node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name(guard, ast.Load()), node), [node], []), node)


def _builtins(own_module: str, own_names: frozenset[str]) -> dict[str, Any]:
    """What an answer finds as builtins: no files, no code from text, imports and attributes as `allowed` says."""
    found = {name: value for name, value in vars(builtins).items() if name not in BUILTINS_REFUSED}

    def module_guard(value: Any) -> Any:
        if isinstance(value, types.ModuleType) and not may_import(value.__name__, own_module):
            raise AttributeError(f"{value.__name__}: a graded answer may not use it")
        return value

    def own_guard(target: Any) -> Any:
        if isinstance(target, types.ModuleType) or (isinstance(target, type) and target.__module__ != own_module):
            raise AttributeError(f"{target.__name__}: a graded answer may not change what is not its own")
        return target

    def template_guard(target: Any) -> Any:
        if isinstance(target, type) and issubclass(target, str):
            raise AttributeError("format: of a text, not of its class")
        if isinstance(target, str):
            for name in _fetched(target):
                named(name)
        return target

    def named(name: Any) -> None:
        if type(name) is not str or not may_name(name, own_names):
            raise AttributeError(f"{name}: a graded answer may not use it")

    def by_name(function: Callable[..., Any], sets: bool) -> Callable[..., Any]:
        def guarded(target: Any, name: str, *rest: Any) -> Any:
            named(name)
            if sets:
                own_guard(target)
            elif name in TEMPLATES:
                template_guard(target)
            return module_guard(function(target, name, *rest))

        return guarded

    def import_as_allowed(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """What an import statement gives, whose names the text was read for; C code imports for itself by this too."""
        module = builtins.__import__(name, globals, locals, fromlist, level)
        if may_import(name, own_module):
            for each in fromlist or ():
                if not may_import(f"{name}.{each}", own_module):
                    module_guard(getattr(module, each, None))
        return _public(module) if module.__name__ in STANDARD else module

    for name in ("getattr", "setattr", "delattr", "hasattr"):
        found[name] = by_name(getattr(builtins, name), sets=name in ("setattr", "delattr"))
    found |= {MODULE_GUARD: module_guard, OWN_GUARD: own_guard, TEMPLATE_GUARD: template_guard}
    found["__import__"] = import_as_allowed
    found["__build_class__"] = builtins.__build_class__
    return found


_shown: dict[str, types.ModuleType] = {}


def _public(module: types.ModuleType) -> types.ModuleType:
    """Of a module of Python's own, the public part that answers may use, without what it has imported itself."""
    name = module.__name__
    if name not in _shown:
        shown = _shown[name] = types.ModuleType(name, module.__doc__)
        public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
        for each in [*public, *({"annotations"} if name == "__future__" else ())]:
            value = getattr(module, each, None)
            if f"{name}.{each}" in REFUSED_PARTS:
                continue
            value = IN_PLACE.get(f"{name}.{each}", value)
            if isinstance(value, types.ModuleType):
                if f"{name}.{each}" not in STANDARD:
                    continue
                value = _public(value)
            setattr(shown, each, value)
        for child in [each for each in STANDARD if each.startswith(f"{name}.")]:
            setattr(shown, child.rpartition(".")[2], _public(importlib.import_module(child)))
    return _shown[name]


def _fetched(text: str) -> list[str]:
    """The attributes that `text.format(…)` fetches, those in nested fields included."""
    try:
        fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
    except ValueError:
        return []  # format says so itself
    return [each for name, spec in fields for each in [*re.findall(r"\.(\w+)", name), *_fetched(spec or "")]]
