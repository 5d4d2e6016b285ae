"""Guards in an answer's code and builtins: they see while it runs what the policy cannot tell from its text."""

from __future__ import annotations

import ast
import builtins
import re
import string
import types
from collections.abc import Callable
from typing import Any

from labstaff.judge import policy

TEMPLATES = ("format", "format_map")
"""Methods of a text that fetch the attributes it names."""


def guarded(text: str) -> ast.Module:
    """An answer's code, in which what the policy cannot tell from the text is looked at when it happens."""
    return ast.fix_missing_locations(_Guards().visit(ast.parse(text)))


class _Guards(ast.NodeTransformer):
    """Puts a guard around objects whose attributes are set, or may be a library's closed ones, or a template's.

    The guards' names are no identifiers, so that no answer can define them.
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Store | ast.Del):
            guard = "guard: own"
        elif node.attr in policy.CLOSED_IN_LIBRARIES:
            guard = "guard: no library"
        elif node.attr in TEMPLATES:
            guard = "guard: template"
        else:
            return node
        call = ast.Call(ast.Name(guard, ast.Load()), [node.value], [])
        node.value = ast.copy_location(call, node.value)
        return node


def guarded_builtins(own: str) -> dict[str, Any]:
    """What an answer finds as builtins: no files, no code from text, imports and attributes by the policy.

    Args:
        own: the name of the answer's module.
    """
    found = {name: value for name, value in vars(builtins).items() if name not in policy.CLOSED_BUILTINS}

    def closed(name: object) -> bool:
        return isinstance(name, str) and policy.is_closed(str.__str__(name))

    def guard(function: Callable[..., Any], sets: bool) -> Callable[..., Any]:
        def guarded(target: Any, name: str, *rest: Any) -> Any:
            if type(name) is not str or closed(name) or (sets and name == "__class__"):
                raise AttributeError(f"{name}: a graded answer may not use it")
            if sets:
                its_own(target)
            elif name in policy.CLOSED_IN_LIBRARIES:
                no_library(target)
            elif name in TEMPLATES:
                template(target)
            return function(target, name, *rest)

        return guarded

    def its_own(target: Any) -> Any:
        if isinstance(target, types.ModuleType) or (isinstance(target, type) and target.__module__ != own):
            raise AttributeError(f"{target.__name__}: a graded answer may not change what is not its own")
        return target

    def no_library(target: Any) -> Any:
        if isinstance(target, types.ModuleType):
            raise AttributeError(f"{target.__name__}: a graded answer may not use this part of it")
        return target

    def template(target: Any) -> Any:
        if isinstance(target, type) and issubclass(target, str):
            raise AttributeError("format: of a text, not of its class")
        if isinstance(target, str) and any(map(closed, _fetched(target))):
            raise AttributeError("format: a graded answer may not use what the text names")
        return target

    real_import = builtins.__import__

    def import_by_policy(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        taken = {*(fromlist or ())} - {policy.DECORATOR}
        if level or not policy.may_import(name, frozenset({own})) or any(map(closed, taken)):
            raise ImportError(f"a graded answer may not import {name}")
        return real_import(name, globals, locals, fromlist, level)

    for name in ("getattr", "setattr", "delattr", "hasattr"):
        found[name] = guard(getattr(builtins, name), sets=name in ("setattr", "delattr"))
    found |= {"guard: own": its_own, "guard: no library": no_library, "guard: template": template}
    found["__import__"] = import_by_policy
    found["__build_class__"] = builtins.__build_class__
    return found


def _fetched(text: str) -> list[str]:
    """The attributes that `text.format(…)` fetches, those in nested fields included."""
    fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
    return [each for name, spec in fields for each in [*re.findall(r"\.(\w+)", name), *_fetched(spec or "")]]
