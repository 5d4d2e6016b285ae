"""Reads a task's signature in code, in the manifest and in the handout."""

from __future__ import annotations

import ast
import re

HANDOUT_HEADING = re.compile(r"^#{2,4} +`(\w+(?:\.\w+)?\(.*\))(?: *->[^`]*)?` *$", re.MULTILINE)


class SignatureError(ValueError):
    """A signature that cannot be read or is missing."""


def written_signature(text: str) -> str:
    """A signature in prose, `name(a, b=1) -> result`, in normal form without the result."""
    call = text.split("->")[0].strip()
    try:
        return ast.unparse(ast.parse(call, mode="eval"))
    except SyntaxError:
        raise SignatureError(f"{text!r} is not a call") from None


def handout_signatures(readme: str) -> list[str]:
    """The signatures in the headings of a lab's README, in order."""
    return [written_signature(heading) for heading in HANDOUT_HEADING.findall(readme)]


def code_signature(source: str, written: str) -> str:
    """The signature in `source` of the function or class that `written` names, in the same form.

    `Name(…)` of a class means its `__init__`; `Name.apply(…)` of an autograd Function means its `forward`.

    Raises:
        SignatureError: `source` defines no such thing.
    """
    name, _, method = written.split("(")[0].partition(".")
    node = _definition(ast.parse(source).body, name)
    if isinstance(node, ast.ClassDef):
        function = _definition(
            node.body, {"apply": "forward", "": "__init__"}.get(method, method), required=bool(method)
        )
        arguments = (
            function.args if isinstance(function, ast.FunctionDef) else ast.arguments([], [], None, [], [], None, [])
        )
        return ast.unparse(_call(written.split("(")[0], arguments, drop_first=isinstance(function, ast.FunctionDef)))
    assert isinstance(node, ast.FunctionDef)
    return ast.unparse(_call(name, node.args, drop_first=False))


def _definition(body: list[ast.stmt], name: str, required: bool = True) -> ast.stmt | None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    if required:
        raise SignatureError(f"there is no definition of {name}")
    return None


def _call(name: str, arguments: ast.arguments, *, drop_first: bool) -> ast.expr:
    """The call that passes every argument by its own name, defaults as keywords."""
    positional = [*arguments.posonlyargs, *arguments.args][1 if drop_first else 0 :]
    n_plain = len(positional) - len(arguments.defaults)
    args: list[ast.expr] = [ast.Name(argument.arg) for argument in positional[:n_plain]]
    keywords = [
        ast.keyword(argument.arg, default)
        for argument, default in zip(positional[n_plain:], arguments.defaults, strict=True)
    ]
    if arguments.vararg:
        args.append(ast.Starred(ast.Name(arguments.vararg.arg)))
    for argument, only_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        keywords.append(ast.keyword(argument.arg, only_default or ast.Name("REQUIRED")))
    if arguments.kwarg:
        keywords.append(ast.keyword(None, ast.Name(arguments.kwarg.arg)))
    return ast.parse(ast.unparse(ast.Call(ast.parse(name, mode="eval").body, args, keywords)), mode="eval").body
