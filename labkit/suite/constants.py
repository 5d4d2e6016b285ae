"""The strings that an expression of a submission may be, where its text alone tells them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Set
from functools import partial

READS = frozenset(("get", "items", "keys", "values"))
"""Methods of a dict that leave it as it is."""
COPIES = frozenset(("dict", "list", "set", "sorted", "tuple"))
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Constants:
    """What the variables of a text may be.

    Args:
        tree: the text.
        called_from_outside: functions that other code calls, with arguments that the text does not tell.
    """

    def __init__(self, tree: ast.Module, called_from_outside: Set[str] = frozenset()) -> None:
        self.variables: dict[int, str] = {}
        self._name_variables(tree, {})
        self.shadowed = {name for node in ast.walk(tree) for name in _names_itself(node)}
        self.sources: dict[str, list[Callable[[], set[str] | None]]] = {}
        self.tables: dict[str, ast.expr] = {}
        self.loads, self.reads, self.bound = Counter[str](), Counter[str](), Counter[str]()
        calls: dict[str, list[ast.Call]] = {}
        other = set(called_from_outside)
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Assign(targets=[ast.Name() as name], value=value)
                    | ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name() as name, value=value)
                ):
                    self._bind(name, partial(self.texts, value))
                    self.tables[self.variables[id(name)]] = value
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                    self._bind_each(target, value)
                    self._read(value)
                case ast.Subscript(value=value, ctx=ast.Load()):
                    self._read(value)
                case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in READS:
                    self._read(value)
                case ast.Call(func=ast.Name(id=called)):
                    calls.setdefault(called, []).append(node)
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[value]):
                    self._read(value)
            match node:
                case ast.Name(ctx=ast.Load()):
                    self.loads[self.variables[id(node)]] += 1
                case ast.Name() | ast.arg():
                    self.bound[self.variables[id(node)]] += 1
                case ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                    other.add(word)
            if not isinstance(node, ast.Name | ast.arg):
                self.bound.update(_names_itself(node))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name not in other and not node.decorator_list:
                self._bind_arguments(node, calls.get(node.name, []))

    def texts(self, node: ast.expr) -> set[str] | None:
        """The strings that `node` may be; None where they cannot be told."""
        match node:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.Name():
                variable = self.variables[id(node)]
                sources = self.sources.get(variable, [])
                return _all_of([source() for source in sources]) if len(sources) == self.bound[variable] > 0 else None
            case ast.IfExp(body=one, orelse=another):
                return _all_of([self.texts(one), self.texts(another)])
            case ast.Subscript(value=table, slice=key) if not isinstance(key, ast.Slice):
                return self.strings_in(table)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, *default]):
                return _all_of([self.strings_in(table), *map(self.texts, default)])
        return None

    def strings_in(self, node: ast.expr) -> set[str] | None:
        """The strings in a table that is written out and never changed; None where that cannot be told."""
        match node:
            case ast.Call(func=ast.Attribute(value=table, attr=name), args=[]) if name in READS:
                return self.strings_in(table)
            case ast.Call(func=ast.Name(id=name), args=[table], keywords=[]) if name in COPIES - self.shadowed:
                return self.strings_in(table)
            case ast.Name():
                variable = self.variables[id(node)]
                value = self.tables.get(variable)
                may_change = not isinstance(value, ast.Tuple) and self.loads[variable] != self.reads[variable]
                if (
                    may_change
                    or self.bound[variable] != 1
                    or not isinstance(value, ast.Tuple | ast.List | ast.Set | ast.Dict)
                ):
                    return None
                return self.strings_in(value)
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
                try:
                    table = ast.literal_eval(node)
                    hash(tuple(table.values() if isinstance(table, dict) else table))  # nothing in it can change
                    return set(_strings(table))
                except (ValueError, TypeError):
                    return None
        return None

    def _bind(self, name: ast.Name | ast.arg, source: Callable[[], set[str] | None]) -> None:
        self.sources.setdefault(self.variables[id(name)], []).append(source)

    def _bind_each(self, target: ast.expr, values: ast.expr) -> None:
        match target, values:
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name("zip"), args=args) if (
                len(targets) == len(args) and "zip" not in self.shadowed
            ):
                for each, value in zip(targets, args, strict=True):
                    self._bind_each(each, value)
            case _:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self._bind(node, partial(self.strings_in, values))

    def _bind_arguments(self, function: ast.FunctionDef, calls: list[ast.Call]) -> None:
        """Bind the arguments of a function that is only called, and only by position, to what its calls give."""
        if len(calls) != self.loads[function.name] or self.bound[function.name] > 1 or function.args.defaults:
            return
        if any(call.keywords or any(isinstance(arg, ast.Starred) for arg in call.args) for call in calls):
            return
        for place, argument in enumerate([*function.args.posonlyargs, *function.args.args]):
            values = [call.args[place] for call in calls if place < len(call.args)]
            self._bind(argument, partial(_texts_of, self, values))

    def _read(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            self.reads[self.variables[id(node)]] += 1

    def _name_variables(self, node: ast.AST, scope: dict[str, str]) -> None:
        """Give each variable a name of its own; one of a class is as one around it."""
        if isinstance(node, FUNCTIONS | COMPREHENSIONS):
            scope = scope | {name: f"{name} in {id(node)}" for name in _bound_in(node)}
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                self.variables[id(node)] = scope.get(name, name)
        for child in ast.iter_child_nodes(node):
            self._name_variables(child, scope)


def _bound_in(scope: ast.AST) -> set[str]:
    """The names that a function or a comprehension binds itself."""
    names: set[str] = set()
    outer: set[str] = set()
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        names.update(_names_itself(node))
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        elif not isinstance(node, FUNCTIONS | COMPREHENSIONS):
            waiting += ast.iter_child_nodes(node)
    return names - outer


def _names_itself(node: ast.AST) -> list[str]:
    """The names that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.alias(name=path, asname=name):
            return [name or path.split(".")[0]]
    return []


def _texts_of(constants: Constants, nodes: list[ast.expr]) -> set[str] | None:
    return _all_of([constants.texts(node) for node in nodes])


def _all_of(parts: list[set[str] | None]) -> set[str] | None:
    known = [part for part in parts if part is not None]
    return set().union(*known) if len(known) == len(parts) else None


def _strings(value: object) -> Iterator[str]:
    """The strings in a literal, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, tuple | list | set):
        for each in value:
            yield from _strings(each)
