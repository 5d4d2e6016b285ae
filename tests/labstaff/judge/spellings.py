"""The hostile submissions in other words, made by rule: what is tried in one spelling is tried in three more."""

from __future__ import annotations

import ast

from tests.labstaff.judge.hostile import CORPUS, Hostile
from tests.labstaff.judge.hostile_values import SECOND_SET


def spellings(source: str) -> dict[str, str]:
    """The same attack in other words, by how it is spelt; empty for a text that is no Python, or too deep to walk."""
    try:
        ast.parse(source)
        made = {
            name: ast.unparse(ast.fix_missing_locations(way.visit(ast.parse(source)))) for name, way in WAYS.items()
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    plain = ast.unparse(ast.parse(source))
    return {name: text for name, text in made.items() if text != plain}


class _ByAnotherName(ast.NodeTransformer):
    """Every import and every name of a builtin goes through a name of the text's own."""

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        pairs = [(alias.asname or alias.name, alias.name) for alias in node.names]
        return [
            each
            for number, (name, module) in enumerate(pairs)
            for each in (
                ast.Import([ast.alias(module, f"other{number}")]),
                ast.Assign([ast.Name(name.split(".")[0], ast.Store())], ast.Name(f"other{number}", ast.Load())),
            )
        ]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and (node.id in DOORS):
            return ast.Subscript(ast.Tuple([ast.Constant(0), node], ast.Load()), ast.Constant(1), ast.Load())
        return node


class _InAClass(ast.NodeTransformer):
    """What stands at the top stands in a class's body, from where the names are copied out."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        names = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        names += [
            a.asname or a.name.split(".")[0] for each in node.body if isinstance(each, ast.Import) for a in each.names
        ]
        inside = ast.ClassDef("Inside", [], [], node.body, [])
        out = ast.parse("".join(f"{name} = Inside.{name}\n" for name in dict.fromkeys(names)))
        return ast.Module([inside, *out.body], [])


class _InParts(ast.NodeTransformer):
    """Attributes are asked for by names that are put together while it runs."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or len(node.attr) < 2:
            return node
        first, rest = ast.Constant(node.attr[:2]), ast.Constant(node.attr[2:])
        name = ast.BinOp(first, ast.Add(), rest)
        return ast.Call(ast.Name("getattr", ast.Load()), [node.value, name], [])


DOORS = {"__builtins__", "__import__", "breakpoint", "compile", "eval", "exec", "getattr", "globals", "input"}
DOORS |= {"locals", "open", "vars"}
WAYS = {"by_another_name": _ByAnotherName(), "in_a_class": _InAClass(), "in_parts": _InParts()}
SPELT = [
    Hostile(f"{hostile.name}-{way}", hostile.tries, source, hostile.says)
    for hostile in (*CORPUS, *SECOND_SET)
    if hostile.name not in ("loops_at_import", "loops_in_a_call", "loops_and_swallows", "swallows_the_limit_in_del")
    for way, source in spellings(hostile.source).items()
]
"""Every attack in up to three other spellings; what only loops has none that would cost a test nothing."""
