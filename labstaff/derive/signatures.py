"""Reads a task's signature in code, in the manifest and in the handout."""

from __future__ import annotations

import ast
import re
from typing import Any

HANDOUT_HEADING = re.compile(r"^#{2,4} +`(\w+(?:\.\w+)?\(.*\))(?: *->[^`]*)?` *$", re.MULTILINE)


def written_signature(text: str) -> str:
    """A signature in prose, `name(a, b=1) -> result`, in normal form without the result."""
    return ast.unparse(ast.parse(text.split("->")[0].strip(), mode="eval"))


def handout_signatures(readme: str) -> list[str]:
    """The signatures in the headings of a lab's README, in order."""
    return [written_signature(heading) for heading in HANDOUT_HEADING.findall(readme)]


def code_signature(source: str, written: str) -> str:
    """The signature in `source` of the function or class that `written` names, in the same form.

    `Name(…)` of a class means its `__init__`; `Name.apply(…)` of an autograd Function means its `forward`.

    Raises:
        LookupError: `source` defines no such thing.
    """
    called = written.split("(")[0]
    name, _, method = called.partition(".")
    node = _definition(ast.parse(source).body, name)
    if isinstance(node, ast.ClassDef):
        node = _definition(node.body, {"apply": "forward", "": "__init__"}.get(method, method))
        del node.args.args[0]  # self or ctx
    for each in ast.walk(node.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    arguments = re.sub(r"[*/], ", "", ast.unparse(node.args))
    return written_signature(f"{called}({arguments})")


def _definition(body: list[ast.stmt], name: str) -> Any:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"there is no definition of {name}")
