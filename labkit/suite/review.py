# ruff: noqa: SIM905 — long lists of names are read best as words
"""Reviews a submission's source: lists, with line and sentence, what honest code does not need.

Counters that run next to a submission (tiles, products, bytes moved) can be tampered with from its own process. Nothing
is refused for its text: findings are shown wherever points are, and the instructor decides. Only a library's own
attention earns nothing. What a lab's solution and alternative solutions use is no finding in that lab (`ALLOWANCES`).
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from labkit.labs.manifest import Lab

ALLOWANCES = Path(__file__).with_name("allowances.json")
"""What each lab's solution and alternative solutions do that is a finding elsewhere. Derived by `lab build`."""

LIBRARIES = frozenset("numpy matplotlib tqdm typing_extensions".split())
"""Packages that any submission may import."""
COURSE = frozenset("labkit torch triton".split())
"""Those that are in the allowances of the labs that need them."""

MODULES = frozenset(
    "_thread asyncio atexit builtins code codeop concurrent ctypes dis faulthandler fcntl importlib linecache marshal "
    "mmap multiprocessing pdb pickle pkgutil resource runpy signal socket subprocess threading tracemalloc".split()
)
"""Modules of the standard library that lead to other code, other threads or memory."""

HARMLESS = {
    "resource": frozenset("getrusage RUSAGE_SELF".split()),
    "threading": frozenset("Lock RLock local".split()),
    "tracemalloc": frozenset("start is_tracing get_traced_memory take_snapshot stop reset_peak clear_traces".split()),
}
"""What code may use of such a module: it is a finding only where the text uses another part, or the module itself."""
ENDS_A_TRACE = frozenset("stop reset_peak clear_traces".split())
MEASURING = frozenset("measure_attention_memory profile_memory_scaling".split())
"""Tasks that may end a trace of memory. Within another task it could be the trace that measures the task."""

PARTS = frozenset(
    "inspect.currentframe inspect.getframeinfo inspect.getinnerframes inspect.getouterframes inspect.stack "
    "inspect.trace numpy.core numpy.ctypeslib numpy.f2py numpy.fromfile numpy.load numpy.memmap sys.meta_path "
    "sys.modules sys.path_hooks torch.classes torch.distributed torch.from_file torch.frombuffer torch.hub torch.jit "
    "torch.library torch.load torch.multiprocessing torch.ops torch.overrides torch.package "
    "torch.utils.cpp_extension tqdm.* tqdm.TMonitor types.CellType types.CodeType types.FunctionType "
    "types.GenericAlias types.MethodType weakref.finalize weakref.proxy".split()
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
NUMPYS_PRODUCTS = frozenset("numpy.asarray numpy.dot numpy.einsum numpy.inner numpy.matmul numpy.tensordot".split())

USED = frozenset(
    f"__{name}__"
    for name in "all annotations call class contains doc enter eq exit file getitem hash init init_subclass iter len "
    "main members module name new next post_init qualname repr setattr setitem slots str version wrapped".split()
)
"""Names between double underscores that ordinary code uses of an object."""

TAMPERING = frozenset(
    f"__{name}__"
    for name in "array_function array_interface array_ufunc build_class builtins class del getattribute getstate "
    "import instancecheck loader reduce reduce_ex setstate spec subclasscheck torch_dispatch torch_function".split()
)
"""Those that it neither defines nor names by themselves."""

SLOTS = frozenset("__dict__ __weakref__".split())
"""Names that a string may be: `__slots__` and `hasattr` have them."""
PRIVATE = frozenset(
    "_asdict _base _fields _generate_next_value_ _ignore_ _is_profiler_enabled _make _member_map_ _member_names_ "
    "_missing_ _name_ _order_ _replace _value2member_map_ _value_ _version".split()
)
"""Names with an underscore that NumPy, `collections` and `enum` document, and a flag of torch's profiler."""
SETTINGS = frozenset("allow_tf32 benchmark deterministic enabled".split())
"""What code may set of `torch.backends`."""
BUILTINS = frozenset("compile eval exec open".split())
FIELD_OF_A_TEMPLATE = re.compile(r"\{[^{}]*[.\[]_")
PART_OF_A_NAME = re.compile(r"__[A-Za-z_]+|[A-Za-z_]+__")
BY_NAME = ("operator.attrgetter", "operator.methodcaller")
REACHING = ("__main__", "__name__", "getmodule")
SELF_CHECKS = ("__name__ == '__main__'", "'__main__' == __name__")
OUTSIDE_TORCH = ", which computes outside torch"
"""The end of a finding that matters only in code that a task uses: a figure may be drawn with NumPy."""
TOO_DEEP = "is nested too deep to be reviewed"


class Finding(NamedTuple):
    """A line of a submission, what it does, and the tasks that earn nothing by it."""

    line: int
    what: str
    tasks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def review(source: str, lab: Lab) -> list[Finding]:
    """What honest code for `lab` does not need, in the order of the lines.

    Empty for a text that is not Python: the tests report that. A block under `if __name__ == "__main__":` does not run
    when the file is graded, and is not reviewed, nor is what it alone calls.
    """
    allowed = json.loads(ALLOWANCES.read_text(encoding="utf-8")).get(lab.label, [])
    return [found for found in findings(source, lab) if found.what not in allowed]


def findings(source: str, lab: Lab, *, run_by_hand: bool = False) -> list[Finding]:
    """As `review`, without the lab's allowance; with `run_by_hand` also for functions that only a self-check calls."""
    try:
        tree = ast.parse(source.removeprefix("\ufeff"))
        tree = without_self_check(tree) if run_by_hand else without_what_is_run_by_hand(tree, lab)
        return sorted(set(_Review(tree, lab).findings()))
    except (RecursionError, MemoryError):
        return [Finding(1, TOO_DEEP)]
    except (SyntaxError, ValueError):
        return []


def without_self_check(tree: ast.Module) -> ast.Module:
    """`tree` without the blocks that run only when the file itself is run; what is under their `else` stays."""
    body: list[ast.stmt] = []
    for node in tree.body:
        is_check = isinstance(node, ast.If) and ast.unparse(node.test) in SELF_CHECKS
        body += node.orelse if isinstance(node, ast.If) and is_check else [node]
    tree.body = body
    return tree


def without_what_is_run_by_hand(tree: ast.Module, lab: Lab) -> ast.Module:
    """`tree` without its self-checks, the bodies of functions that only these call, and modules that only both use.

    Where the text could reach a function by other ways than its name, or says itself what `__name__` is, all stays.
    """
    graded = [part for node in without_self_check(ast.Module(list(tree.body), [])).body for part in _one_by_one(node)]
    by_hand = [
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) in SELF_CHECKS
        for inner in node.body
    ]
    names = {id(node): _named(node) for node in graded}
    tasks = {task.name for task in lab.tasks}
    if not by_hand:
        return tree
    named_by_hand = set().union(*map(_named, by_hand))
    found: ast.stmt | None = graded[0] if graded else None
    while found:
        counts = Counter(name for node in graded for name in names[id(node)])
        found = next((node for node in graded if _only_by_hand(node, named_by_hand - tasks, counts, names)), None)
        if found:
            place = graded.index(found)
            named_by_hand |= names[id(found)]
            if isinstance(found, ast.FunctionDef):
                head = ast.FunctionDef(found.name, found.args, [ast.Pass()], [], found.returns, lineno=found.lineno)
                names[id(head)] = _named(head)
                graded[place] = head
            else:
                del graded[place]
    return tree if reaches_any_name(graded, lab) else ast.Module(graded, [])


def reaches_any_name(statements: Sequence[ast.stmt], lab: Lab) -> bool:
    """Whether the statements could use what they do not name, or say themselves what `__name__` is."""
    waiting: list[tuple[ast.AST, bool]] = [(statement, False) for statement in statements]
    while waiting:
        node, in_function = waiting.pop()
        match node:
            case ast.Name("globals") | ast.Attribute(attr="getmodule") | ast.Constant("__name__"):
                return True
            case ast.Name("__name__", ast.Store() | ast.Del()) | ast.FunctionDef(name="__name__"):
                return True
            case ast.Name("locals" | "vars") if not in_function:
                return True
            case ast.ClassDef(name="__name__") | ast.MatchAs(name="__name__") | ast.ImportFrom(module=lab.module):
                return True
            case ast.alias(name=name, asname=other) if {name, other} & {*REACHING, lab.module}:
                return True
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting += [(child, in_function) for child in ast.iter_child_nodes(node)]
    return False


def _only_by_hand(node: ast.stmt, by_hand: set[str], counts: Counter[str], names: dict[int, set[str]]) -> bool:
    """Whether what a statement defines is named by code that is run by hand, and by no other statement."""
    match node:
        case ast.FunctionDef(name=name, decorator_list=[]) if not name.startswith("__"):
            if isinstance(node.body[0], ast.Pass):
                return False
            defined = {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            if not all(_top(module or each.name) in sys.stdlib_module_names for each in aliases):
                return False
            defined = {each.asname or _top(each.name) for each in aliases}
        case _:
            return False
    return defined <= by_hand and all(counts[each] == (each in names[id(node)]) for each in defined)


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as an import of each; another statement as it is."""
    match node:
        case ast.Import(names=aliases):
            return [ast.Import([each], lineno=node.lineno) for each in aliases]
        case ast.ImportFrom(module=module, names=aliases, level=level):
            return [ast.ImportFrom(module, [each], level, lineno=node.lineno) for each in aliases]
    return [node]


def _named(statement: ast.AST) -> set[str]:
    """The names, attributes and strings in a statement."""
    nodes = list(ast.walk(statement))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    aliases = {name for node in nodes if isinstance(node, ast.alias) for name in (node.name, node.asname) if name}
    return texts | names | aliases | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


class _Review:
    """A text: the names that it gives itself, and those that stand for a library or a part of one."""

    def __init__(self, tree: ast.Module, lab: Lab) -> None:
        self.lab = lab
        self.statements = {statement: list(ast.walk(statement)) for statement in tree.body}
        self.own: set[str] = set()
        self.paths: dict[str, str] = {}
        for node in (node for nodes in self.statements.values() for node in nodes):
            match node:
                case ast.Import(names=aliases):
                    self.paths |= {each.asname or _top(each.name): each.name for each in aliases if each.asname}
                    self.paths |= {_top(each.name): _top(each.name) for each in aliases if not each.asname}
                case ast.ImportFrom(names=aliases):
                    self.paths |= {each.asname or each.name: f"{node.module}.{each.name}" for each in aliases}
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    self.own.add(name)
                case (
                    ast.Name(id=name, ctx=ast.Store())
                    | ast.Attribute(value=ast.Name("self" | "cls" | "ctx"), attr=name, ctx=ast.Store())
                ):
                    self.own.add(name)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and self.path(node.value):
                self.paths[node.targets[0].id] = self.path(node.value)
        self.harmful = set(self.used_otherwise())
        self.levels: set[int] = set()
        self.is_torch = any(_top(path) == "torch" for path in self.paths.values())

    def used_otherwise(self) -> Iterator[str]:
        """The modules of `HARMLESS` of which the text uses more than is harmless."""
        yield from (path[:-2] for path in self.paths.values() if path.endswith(".*"))
        for statement, nodes in self.statements.items():
            parts = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
            for node in nodes:
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    top, _, part = self.paths.get(node.id, "").partition(".")
                    if top in HARMLESS:
                        part = part or parts.get(id(node), "")
                        tasks = set(self.tasks_that_use(statement)) if part in ENDS_A_TRACE else MEASURING
                        if part not in HARMLESS[top] or not tasks or tasks - MEASURING:
                            yield top

    def findings(self) -> Iterator[Finding]:
        for statement, nodes in self.statements.items():
            for node in nodes:
                line = getattr(node, "lineno", 0)
                for what in self.odd(node):
                    if not what.endswith(OUTSIDE_TORCH) or self.tasks_that_use(statement):
                        yield Finding(line, what)
                if attention := self.attention(node):
                    for task in self.tasks_that_use(statement):
                        yield Finding(line, f"{task} uses a library's own attention ({attention})", (task,))

    def odd(self, node: ast.AST) -> Iterator[str]:
        """What a node does that honest code does not need."""
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from self.module(alias.name)
            case ast.ImportFrom(names=aliases):
                module = "." * node.level + (node.module or "")
                yield from self.module(module)
                for alias in aliases:
                    yield from self.attribute(f"{module}.{alias.name}", alias.name)
            case ast.Name(id=name, ctx=ast.Load()) if name in BUILTINS | TAMPERING:
                yield f"uses {name}"
            case ast.Attribute(value=value, attr=name):
                if not (name == "__dict__" and _is_self(value)):
                    yield from self.attribute(self.path(node), name)
                if name == "__init__" and isinstance(value, ast.Name) and value.id not in self.own | self.paths.keys():
                    yield "calls __init__ of an object"
                if not isinstance(node.ctx, ast.Load):
                    yield from self.change(value, name)
            case ast.Call():
                yield from self.call(node, self.path(node.func))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in TAMPERING:
                yield f"defines {name}"
            case ast.ClassDef(bases=bases):
                found = {self.path(base) for base in bases} & {"numpy.ndarray", "torch.Tensor"}
                yield from (f"derives a class from {path}" for path in found)
            case ast.MatchClass(kwd_attrs=names):
                for name in names:
                    yield from self.attribute("", name)
            case ast.Constant(value=str(text)):
                part = PART_OF_A_NAME.fullmatch(text) and text.strip("_") and text not in USED | SLOTS
                if part or FIELD_OF_A_TEMPLATE.search(text):
                    yield f"names {text[:40]!r} in a string"

    def module(self, path: str) -> Iterator[str]:
        """Importing a module."""
        top = _top(path)
        if top in sys.stdlib_module_names | COURSE:
            if top in MODULES | COURSE and (top not in HARMLESS or top in self.harmful):
                yield f"imports {path if top == 'labkit' else top}"
        elif top not in LIBRARIES and path != self.lab.module:
            yield f"imports {top or path}, which may be missing where it is graded"
        elif path.startswith("tqdm."):
            yield f"imports {path}"
        if "._" in path:
            yield f"imports {path}"

    def attribute(self, path: str, name: str) -> Iterator[str]:
        """Using the attribute `name`; `path` is the dotted name that it ends where that begins with a library."""
        is_dunder = name.startswith("__") and name.endswith("__")
        if name in ATTRIBUTES or (is_dunder and name not in USED):
            yield f"uses {name}"
        elif name.startswith("_") and not is_dunder and name not in self.own | PRIVATE:
            yield f"uses {name}, which is private to a library"
        elif self.is_torch and (name in ("from_numpy", "numpy") or path in NUMPYS_PRODUCTS):
            yield f"uses {path or name}{OUTSIDE_TORCH}"
        elif path in PARTS or ("." in path and name in MODULES | {"os", "sys"}):
            yield f"uses {path}"

    def change(self, value: ast.expr, name: str) -> Iterator[str]:
        """Setting or deleting `name` of an object."""
        path = self.path(value)
        if path.startswith("torch.backends.") and name in SETTINGS:
            return
        if path:
            yield f"changes {path}.{name}"
        elif name.startswith("__") and name.endswith("__"):
            yield f"changes {name} of an object"

    def call(self, node: ast.Call, path: str) -> Iterator[str]:
        """Calling a function; `path` is its dotted name where that begins with a library."""
        match node:
            case ast.Call(keywords=[*keywords]) if path == "logging.basicConfig":
                self.levels |= {id(each.value) for each in keywords if each.arg == "level"}
            case ast.Call(args=[value, *_]) if id(node) in self.levels and self.path(value) == "logging":
                pass
            case ast.Call(func=ast.Name("getattr" | "setattr" | "delattr" as function), args=[value, name, *_]):
                yield from self.by_name(function, value, [name])
                if function != "getattr":
                    for text in self.texts(name) or ():
                        yield from self.change(value, text)
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[value, *_]):
                if not (_is_self(value) or isinstance(value, ast.Constant)):
                    yield "uses __setattr__"
            case ast.Call(func=ast.Name("vars"), args=[value]) if not _is_self(value):
                yield "uses vars of another object"
            case ast.Call(keywords=[_, *_]) if path in ("functools.update_wrapper", "functools.wraps"):
                yield f"calls {path} with attributes of its choice"
            case ast.Call(args=[_, _, *_]) if path == "weakref.ref":
                yield f"calls {path} with a callback"
            case ast.Call(args=[*names]) if path in BY_NAME:
                yield from self.by_name(path, None, names)

    def by_name(self, function: str, value: ast.expr | None, names: Sequence[ast.expr]) -> Iterator[str]:
        """Using attributes whose names are values."""
        for name in names:
            texts = self.texts(name) if isinstance(name, ast.Constant) or not _is_self(value) else set()
            if texts is not None:
                for part in (part for text in texts for part in text.split(".")):
                    path = self.path(value) if value else ""
                    yield from self.attribute(f"{path}.{part}" if path else "", part)
            else:
                yield f"calls {function} with a computed name"

    @cached_property
    def tables(self) -> dict[str, ast.expr]:
        """What each name stands for that is bound once and only read."""
        tree = ast.Module(list(self.statements), [])
        return {} if reaches_any_name(tree.body, self.lab) else _bound_once(tree)

    def texts(self, node: ast.expr) -> set[str] | None:
        """The strings that a name may be, where the text writes them out; None for one that is computed."""
        match node:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.Name(id=name) if name in self.tables:
                return self.texts(self.tables[name])
            case ast.Subscript(value=table) | ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_]):
                return self.texts(table)
            case ast.Call(func=ast.Name("dict"), args=[table], keywords=[]):
                return self.texts(table)
            case ast.Call(func=ast.Attribute(value=table, attr="items" | "keys" | "values"), args=[]):
                return self.texts(table)
            case ast.Tuple() | ast.List() | ast.Dict():
                with contextlib.suppress(ValueError):
                    return {str(each) for each in _flat(ast.literal_eval(node))}
        return None

    def attention(self, node: ast.AST) -> str:
        """The library's attention that a node names, other than in an import; "" for any other node."""
        names: list[str] = []
        match node:
            case ast.Attribute(attr=name):
                names = [name]
            case ast.Name(id=name, ctx=ast.Load()):
                names = [self.paths.get(name, "").rpartition(".")[2]]
            case ast.Call(func=ast.Name("getattr"), args=[_, *args]):
                names = self.parts(args)
            case ast.Call(args=args) if self.path(node.func) in BY_NAME:
                names = self.parts(args)
        names = ["scaled_dot_product_attention" if name.startswith("_scaled_dot") else name for name in names]
        return next((name for name in names if name in ATTENTION), "")

    def parts(self, names: Sequence[ast.expr]) -> list[str]:
        """The attributes that strings name, as far as the text tells them."""
        return [part for name in names for text in self.texts(name) or () for part in text.split(".")]

    def tasks_that_use(self, statement: ast.stmt) -> list[str]:
        """The tasks that name what `statement`, at the top of the file, defines, by way of others too; or all."""
        users = _defined(statement)
        if not users:
            return [task.name for task in self.lab.tasks]
        uses = {
            top: {node.id for node in nodes if isinstance(node, ast.Name)} for top, nodes in self.statements.items()
        }
        before = -1
        while len(users) != before:
            before = len(users)
            users = users.union(*(_defined(top) for top in uses if uses[top] & users))
        return [task.name for task in self.lab.tasks if task.name in users]

    def path(self, node: ast.AST) -> str:
        """`np.linalg.norm` as "numpy.linalg.norm", `type(x).f` as "type(…).f"; "" where neither begins the chain."""
        match node:
            case ast.Attribute(value=value, attr=name):
                path = self.path(value)
                return f"{path}.{name}" if path else ""
            case ast.Name(id=name):
                return self.paths.get(name, "")
            case ast.Call(func=ast.Name("type")):
                return "type(…)"
        return ""


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of the file defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return set()
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = [each for target in targets for each in getattr(target, "elts", [target])]
    return {each.id for each in names if isinstance(each, ast.Name)}


def _is_self(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id in ("cls", "ctx", "instance", "self")


def _bound_once(tree: ast.Module) -> dict[str, ast.expr]:
    """The values of names that are bound once, by an assignment or a loop, and never used but to be read."""
    values: dict[str, ast.expr] = {}
    bound, loads, reads = Counter[str](), Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
            case (
                ast.For(target=ast.Name(id=name), iter=value) | ast.comprehension(target=ast.Name(id=name), iter=value)
            ):
                values[name] = value
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loads[name] += 1
            case (
                ast.Name(id=name) | ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name))
            ):
                bound[name] += 1
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound[name] += 1
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Load()):
                reads[name] += 1
            case ast.Attribute(value=ast.Name(id=name), attr="get" | "items" | "keys" | "values"):
                reads[name] += 1
            case ast.For(iter=ast.Name(id=name)) | ast.comprehension(iter=ast.Name(id=name)):
                reads[name] += 1
    can_change = ast.List | ast.Dict
    return {
        name: value
        for name, value in values.items()
        if bound[name] == 1 and (reads[name] == loads[name] or not isinstance(value, can_change))
    }


def _flat(value: object) -> Iterator[object]:
    """The numbers and texts in a literal, at any depth."""
    if isinstance(value, dict):
        value = (*value.keys(), *value.values())
    if isinstance(value, tuple | list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _top(path: str) -> str:
    return path.split(".")[0]
