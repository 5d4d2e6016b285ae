# ruff: noqa: SIM905 — long lists of names are read best as words
"""Reviews a submission's source: lists, with line and sentence, what honest code does not need.

Counters that run next to a submission (tiles, products, bytes moved) can be tampered with from its own process. Nothing
is refused for its text: what the counters earn is withheld until the instructor has looked at the findings. What a
lab's solution and alternative solutions use themselves is no finding in that lab (`ALLOWANCES`).
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

from labkit.labs.manifest import Lab

ALLOWANCES = Path(__file__).with_name("allowances.json")
"""What each lab's solution and alternative solutions do that is a finding elsewhere. Derived by `lab build`."""

LIBRARIES = frozenset("numpy matplotlib typing_extensions".split())
"""Packages that any submission may import."""
COURSE = frozenset("labkit torch triton".split())
"""Those that are in the allowances of the labs that need them."""

MODULES = frozenset(
    "_thread asyncio atexit builtins code codeop concurrent ctypes dis faulthandler fcntl importlib linecache marshal "
    "mmap multiprocessing pdb pickle pkgutil resource runpy signal socket subprocess threading tracemalloc".split()
)
"""Modules of the standard library that lead to other code, other threads or memory."""

PARTS = frozenset(
    "inspect.currentframe inspect.getframeinfo inspect.getinnerframes inspect.getouterframes inspect.stack "
    "inspect.trace numpy.core numpy.ctypeslib numpy.f2py numpy.fromfile numpy.load numpy.memmap sys.meta_path "
    "sys.modules sys.path_hooks torch.classes torch.distributed torch.from_file torch.frombuffer torch.hub torch.jit "
    "torch.library torch.load torch.multiprocessing torch.ops torch.overrides torch.package "
    "torch.utils.cpp_extension types.CellType types.CodeType types.FunctionType types.GenericAlias types.MethodType "
    "weakref.finalize weakref.proxy".split()
)

ATTRIBUTES = frozenset(
    "DispatchKey DispatchKeySet UntypedStorage ag_frame as_strided callbacks cr_frame cr_code ctypes data_ptr f_back "
    "f_builtins f_code f_globals f_locals from_file garbage get_objects get_referents get_referrers gi_code gi_frame "
    "gi_yieldfrom redispatch resize_ set_ set_debug set_threshold setprofile settrace tb_frame tb_next "
    "untyped_storage".split()
)
"""Frames, addresses and storages: attributes that are a finding of whatever object."""

ATTENTION = frozenset(
    "MultiheadAttention TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer "
    "flex_attention multi_head_attention_forward scaled_dot_product_attention sdpa_kernel xformers flash_attn".split()
)
OUT_OF_TORCH = frozenset(("from_numpy", "numpy"))
NUMPYS_PRODUCTS = frozenset("numpy.asarray numpy.dot numpy.einsum numpy.inner numpy.matmul numpy.tensordot".split())

USED = frozenset(
    f"__{name}__"
    for name in "all annotations call class contains doc enter eq exit file getitem hash init iter len main module "
    "name new next post_init qualname repr setitem slots str version wrapped".split()
)
"""Names between double underscores that ordinary code uses of an object."""

TAMPERING = frozenset(
    f"__{name}__"
    for name in "array_function array_interface array_ufunc build_class builtins class del getattribute getstate "
    "import instancecheck loader reduce reduce_ex setstate spec subclasscheck torch_dispatch torch_function".split()
)
"""Those that it neither defines nor names by themselves."""

PRIVATE = frozenset("_asdict _base _fields _make _replace _version".split())
BUILTINS = frozenset("compile eval exec open".split())
OWN_OBJECTS = frozenset(("cls", "ctx", "self"))
REGISTERING = frozenset(("__setattr__", "register_buffer", "register_parameter"))
BY_NAME = frozenset(("delattr", "getattr", "setattr"))
SELF_CHECKS = ("__name__ == '__main__'", "'__main__' == __name__")
FIELD_OF_A_TEMPLATE = re.compile(r"\{[^{}]*[.\[]_")
OUTSIDE_TORCH = ", which computes outside torch"
"""The end of a finding that matters only in code that a task uses: a figure may be drawn with NumPy."""
TOO_DEEP = "is nested too deep to be reviewed"


class Finding(NamedTuple):
    """A finding: a line, what it does, and the tasks whose points are all withheld because of it."""

    line: int
    what: str
    tasks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def review(source: str, lab: Lab) -> list[Finding]:
    """What honest code for `lab` does not need, in the order of the lines.

    Empty for a text that is not Python: the tests report that. A block under `if __name__ == "__main__":` does not run
    when the file is graded, and is not reviewed.
    """
    allowed = allowance(lab)
    return [found for found in findings(source, lab) if found.what not in allowed]


def findings(source: str, lab: Lab) -> list[Finding]:
    """As `review`, without the lab's allowance."""
    try:
        tree = without_self_check(ast.parse(source.removeprefix("\ufeff")))
        return sorted(set(_Review(tree, lab).findings()))
    except (RecursionError, MemoryError):
        return [Finding(1, TOO_DEEP)]
    except (SyntaxError, ValueError):
        return []


def allowance(lab: Lab) -> frozenset[str]:
    """The sentences that do not count as findings in `lab`."""
    return _allowances().get(lab.label, frozenset())


@functools.cache
def _allowances() -> dict[str, frozenset[str]]:
    return {label: frozenset(each) for label, each in json.loads(ALLOWANCES.read_text(encoding="utf-8")).items()}


class _Review:
    def __init__(self, tree: ast.Module, lab: Lab) -> None:
        self.tree, self.lab = tree, lab
        self.nodes = {id(top): list(ast.walk(top)) for top in tree.body}
        nodes = [node for each in self.nodes.values() for node in each]
        self.own = {name for node in nodes for name in _given(node)}
        self.class_names: set[str] = set()  # names that stand for the class of an object
        self.paths: dict[str, str] = {}  # names that stand for a library, or a part of one
        for node in nodes:
            self.paths.update(_imported(node))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if _is_class_of(node.value):
                    self.class_names.add(node.targets[0].id)
                self.paths |= {node.targets[0].id: path} if (path := self.path(node.value)) else {}
        self.is_torch = any(path.split(".")[0] == "torch" for path in self.paths.values())
        self.harmless = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _sets_its_own(node)}

    def findings(self) -> Iterator[Finding]:
        for statement in self.tree.body:
            for node in self.nodes[id(statement)]:
                line = getattr(node, "lineno", 0)
                for what in RULES[type(node)](self, node) if type(node) in RULES else ():
                    if not what.endswith(OUTSIDE_TORCH) or self.tasks_that_use(statement):
                        yield Finding(line, what)
                if attention := self.attention(node):
                    for task in self.tasks_that_use(statement):
                        yield Finding(line, f"{task} uses a library's own attention ({attention})", (task,))

    def imports(self, node: ast.Import) -> Iterator[str]:
        for alias in node.names:
            yield from self.module(alias.name)

    def imports_from(self, node: ast.ImportFrom) -> Iterator[str]:
        path = "." * node.level + (node.module or "")
        yield from self.module(path)
        for alias in node.names:
            yield from self.attribute(f"{path}.{alias.name}", alias.name)

    def module(self, path: str) -> Iterator[str]:
        top = path.split(".")[0]
        if top in sys.stdlib_module_names | COURSE:
            if top in MODULES | COURSE:
                yield f"imports {path if top == 'labkit' else top}"
        elif top not in LIBRARIES and path != self.lab.module:
            yield f"imports {top or path}, which may be missing where it is graded"
        if any(part.startswith("_") for part in path.split(".")[1:]):
            yield f"imports {path}"

    def names(self, node: ast.Name) -> Iterator[str]:
        if isinstance(node.ctx, ast.Load) and node.id in BUILTINS | TAMPERING:
            yield f"uses {node.id}"

    def attributes(self, node: ast.Attribute) -> Iterator[str]:
        if id(node) not in self.harmless and not (node.attr == "__dict__" and _is_self(node.value)):
            yield from self.attribute(self.path(node), node.attr)
        if (
            node.attr == "__init__"
            and isinstance(node.value, ast.Name)
            and node.value.id not in {*self.own, *self.paths}
        ):
            yield "calls __init__ of an object"
        if not isinstance(node.ctx, ast.Load):
            yield from self.set(node.value, node.attr)

    def attribute(self, path: str, name: str) -> Iterator[str]:
        """Review the attribute `name`; `path` is its full dotted name if that begins with a library."""
        if name in ATTRIBUTES or _is_dunder(name, USED):
            yield f"uses {name}"
        elif name.startswith("_") and not _is_dunder(name) and name not in self.own | PRIVATE:
            yield f"uses {name}, which is private to a library"
        elif self.is_torch and (name in OUT_OF_TORCH or path in NUMPYS_PRODUCTS):
            yield f"uses {path or name}{OUTSIDE_TORCH}"
        elif path in PARTS or ("." in path and path.rpartition(".")[2] in MODULES | {"os", "sys"}):
            yield f"uses {path}"

    def set(self, value: ast.expr, name: str) -> Iterator[str]:
        """Review setting or deleting `name` of the object `value`."""
        if path := self.path(value):
            yield f"changes {path}.{name}"
        elif _is_dunder(name):
            yield f"changes {name} of an object"
        elif _is_class_of(value) or _is_named(value, self.class_names):
            yield f"sets {name} of an object's class"

    def calls(self, node: ast.Call) -> Iterator[str]:
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        path = self.path(node.func)
        if function in BY_NAME or path in ("operator.attrgetter", "operator.methodcaller"):
            for name in node.args[1:2] if function else node.args:
                if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                    if not _is_self(node.args[0]):
                        yield f"calls {function or path} with a computed name"
                    continue
                for part in name.value.split("."):
                    yield from self.attribute("", part)
                if function in ("setattr", "delattr"):
                    yield from self.set(node.args[0], name.value)
        elif function == "vars" and node.args and not _is_self(node.args[0]):
            yield "uses vars of another object"
        elif path in ("functools.update_wrapper", "functools.wraps") and node.keywords:
            yield f"calls {path} with attributes of its choice"
        elif path == "weakref.ref" and len(node.args) > 1:
            yield f"calls {path} with a callback"

    def functions(self, node: ast.FunctionDef) -> Iterator[str]:
        if node.name in TAMPERING:
            yield f"defines {node.name}"

    def classes(self, node: ast.ClassDef) -> Iterator[str]:
        for base in node.bases:
            if (path := self.path(base)) in ("numpy.ndarray", "torch.Tensor"):
                yield f"derives a class from {path}"

    def patterns(self, node: ast.MatchClass) -> Iterator[str]:
        for name in node.kwd_attrs:
            yield from self.attribute("", name)

    def texts(self, node: ast.Constant) -> Iterator[str]:
        text = node.value
        if not isinstance(text, str):
            return
        is_part = len(text) > 2 and text.strip("_").isalpha() and (text.startswith("__") or text.endswith("__"))
        if FIELD_OF_A_TEMPLATE.search(text) or (is_part and text not in USED):
            yield f"names {text[:40]!r} in a string"

    def attention(self, node: ast.AST) -> str:
        """The library attention that a node names outside an import; "" for any other node."""
        name = ""
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = self.paths.get(node.id, "").rpartition(".")[2]
        return "scaled_dot_product_attention" if name.startswith("_scaled_dot") else name if name in ATTENTION else ""

    def tasks_that_use(self, statement: ast.stmt) -> list[str]:
        """The tasks that use, directly or not, a name that the top-level `statement` defines; all tasks if none."""
        users = _defined(statement)
        if not users:
            return [task.name for task in self.lab.tasks]
        uses = {
            id(top): {node.id for node in self.nodes[id(top)] if isinstance(node, ast.Name)} for top in self.tree.body
        }
        before = -1
        while len(users) != before:
            before = len(users)
            users = users.union(*(_defined(top) for top in self.tree.body if uses[id(top)] & users))
        return [task.name for task in self.lab.tasks if task.name in users]

    def path(self, node: ast.AST) -> str:
        """`np.linalg.norm` as "numpy.linalg.norm"; "" if the chain does not begin with a library."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self.paths.get(node.id, "") if isinstance(node, ast.Name) else ""
        return ".".join([root, *parts[::-1]]) if root else ""


RULES: dict[type[ast.AST], Callable[[_Review, Any], Iterator[str]]] = {
    ast.Import: _Review.imports,
    ast.ImportFrom: _Review.imports_from,
    ast.Name: _Review.names,
    ast.Attribute: _Review.attributes,
    ast.Call: _Review.calls,
    ast.FunctionDef: _Review.functions,
    ast.AsyncFunctionDef: _Review.functions,
    ast.ClassDef: _Review.classes,
    ast.MatchClass: _Review.patterns,
    ast.Constant: _Review.texts,
}


def without_self_check(tree: ast.Module) -> ast.Module:
    """`tree` without the blocks that run only when the file is the main program; their `else` stays."""
    body: list[ast.stmt] = []
    for node in tree.body:
        is_check = isinstance(node, ast.If) and ast.unparse(node.test) in SELF_CHECKS
        body += node.orelse if isinstance(node, ast.If) and is_check else [node]
    tree.body = body
    return tree


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with the dotted path that it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (top, top)
    elif isinstance(node, ast.ImportFrom):
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _given(node: ast.AST) -> Iterator[str]:
    """The attributes that a file defines on its own classes: methods, fields, attributes set on `self`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.ClassDef):
        yield node.name
        targets = [target for each in node.body for target in _targets(each)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
        yield node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REGISTERING:
        yield from (each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of the file defines."""
    targets = {target.id for target in _targets(statement) if isinstance(target, ast.Name)}
    return targets | ({str(statement.name)} if hasattr(statement, "name") else set())


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [each for target in node.targets for each in getattr(target, "elts", [target])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _sets_its_own(node: ast.Call) -> bool:
    """Whether a call is `super().__setattr__(…)` or `object.__setattr__(self, …)`, as frozen dataclasses need."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "__setattr__"):
        return False
    owner = node.func.value
    by_super = isinstance(owner, ast.Call) and _is_named(owner.func, {"super"})
    return by_super or bool(node.args and _is_self(node.args[0]))


def _is_class_of(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _is_named(node.func, {"type"})


def _is_self(node: ast.AST) -> bool:
    return _is_named(node, OWN_OBJECTS)


def _is_named(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_dunder(name: str, known: Set[str] = frozenset()) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in known
