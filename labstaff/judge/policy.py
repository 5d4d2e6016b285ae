# ruff: noqa: SIM905 — long lists of names are read best as words
"""What a graded answer may import and name: the rule that keeps measurements inside its process honest.

Values need no such rule, since they are compared in another process. Bytes are counted where they are allocated, in the
answer's own process: so an answer that reaches for the interpreter's inner life, where a count could be forged, is
not run at all, and the grader is told the line.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

MODULES = frozenset(
    "__future__ abc array bisect collections contextlib copy dataclasses decimal enum fractions functools gc heapq "
    "itertools math matplotlib numbers numpy operator random re statistics string time torch types typing "
    "typing_extensions warnings weakref".split()
)
"""Modules that an answer may import, with what lies inside them."""

ROOMS = frozenset({"labkit.simulated_memory", "labkit.hierarchy"})
"""Modules of the course that an answer may import."""

CLOSED = frozenset(
    # the interpreter and the operating system
    "sys os builtins importlib ctypes inspect tracemalloc subprocess socket threading multiprocessing pickle marshal "
    "shutil pathlib _thread faulthandler settrace setprofile _getframe "
    # from an object to everything else
    "__globals__ __code__ __closure__ __builtins__ __subclasses__ __mro__ __bases__ __base__ __dict__ __traceback__ "
    "__getattribute__ __reduce__ __reduce_ex__ __loader__ __spec__ __wrapped__ __import__ tb_frame tb_next f_back "
    "f_globals f_locals f_builtins f_code gi_frame cr_frame ag_frame FunctionType CodeType attrgetter methodcaller "
    "get_objects get_referrers get_referents get_field Formatter get_type_hints ForwardRef _evaluate "
    "__getstate__ __setstate__ __array_interface__ __array_struct__ __match_args__ "
    # what sets attributes of others
    "__setattr__ __delattr__ wraps update_wrapper make_dataclass new_class "
    # what switches a measurement off
    "_disable_current_modes _DisableTorchDispatch _ExcludeDispatchKeyGuard no_dispatch _pop_torch_dispatch_stack "
    "_pop_mode _pop_mode_temporarily _set_dispatch_mode _unset_dispatch_mode _len_torch_dispatch_stack reset_peak "
    "get_traced_memory".split()
)
"""Names that an answer may not use, as a variable or as an attribute."""

CLOSED_BUILTINS = frozenset("eval exec compile open input breakpoint globals vars help".split())
"""Builtins that an answer does not find: files, and code made from text."""

CLOSED_IN_LIBRARIES = CLOSED_BUILTINS | frozenset(
    "fromfile tofile memmap DataSource loadtxt savetxt genfromtxt savez savez_compressed load save hub jit package "
    "cpp_extension load_library ctypeslib f2py testing lib2to3 modules".split()
)
"""Attributes of imported modules that an answer may not use. Its own objects may have a `load`."""

PLAIN = frozenset("bool bytes dict float frozenset int list set str tuple".split())
"""Classes that an answer may match by position, `case int(n)`: others could be made to give out any attribute."""

DECORATOR = "wraps"
"""Closed but for `@wraps(function)` and its import: with more arguments it sets attributes of others."""

LEDGER = "_ledger"
"""How the names begin under which the simulated machine keeps its counts and contents: closed, all of them."""

PAST_THE_METERS = frozenset("numpy from_numpy tolist data_ptr ctypes_data __array__ frombuffer".split())
"""Attributes by which torch code leaves torch, and its meters, behind: shown to the grader."""


class Finding(NamedTuple):
    """A place in an answer, and what is wrong with it."""

    line: int
    what: str


def breaches(tree: ast.Module, own: frozenset[str] = frozenset()) -> list[Finding]:
    """Why an answer must not run; empty when it may. `own`: as in `may_import`."""
    libraries = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    excused = {id(node) for each in ast.walk(tree) for node in _excused(each)}
    nodes = [node for node in ast.walk(tree) if id(node) not in excused]
    return sorted({finding for node in nodes for finding in _breaches(node, libraries, own)})


def oddities(tree: ast.Module) -> list[Finding]:
    """What a grader should look at, though it may run."""
    imports = {name.split(".")[0] for node in ast.walk(tree) for name in imported(node)}
    if "torch" not in imports:
        return []
    return sorted(
        Finding(node.lineno, f".{node.attr} leaves torch, whose meters then see nothing")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in PAST_THE_METERS
    )


def may_import(name: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether an answer may import the module `name`; `own` names the labs' modules that lie beside it."""
    return name in ROOMS or name in own or (name.split(".")[0] in MODULES and not any(map(is_closed, name.split("."))))


def is_closed(name: str) -> bool:
    """Whether an answer may not use `name`, also as the private alias under which a library keeps it (`_os`)."""
    alias = name.lstrip("_") in CLOSED and not name.endswith("__")
    return name in CLOSED or alias or name.lower().startswith(LEDGER)


def imported(node: ast.AST) -> list[str]:
    """The modules an import statement names; empty for every other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _breaches(node: ast.AST, libraries: set[str], own: frozenset[str]) -> list[Finding]:
    found = [f"imports {name}" for name in imported(node) if not may_import(name, own)]
    names = []
    if isinstance(node, ast.Attribute):
        names = [node.attr]
        if _root(node) in libraries and node.attr in CLOSED_IN_LIBRARIES:
            found.append(f"uses {ast.unparse(node)}")
        if isinstance(node.ctx, ast.Store | ast.Del) and (_root(node) in libraries or node.attr == "__class__"):
            found.append(f"changes {ast.unparse(node)}, which is not its own")
    elif isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.MatchClass):
        names = node.kwd_attrs
        if node.patterns and not (isinstance(node.cls, ast.Name) and node.cls.id in PLAIN):
            found.append(f"matches {ast.unparse(node.cls)} by position")
    elif isinstance(node, ast.ImportFrom):
        aliases = [alias for alias in node.names if alias.name != DECORATOR or alias.asname]
        names = [part for alias in aliases for part in alias.name.split(".")]
        found += [f"uses {name}" for name in names if name in CLOSED_IN_LIBRARIES]
    found += [f"uses {name}" for name in names if is_closed(name)]
    return [Finding(getattr(node, "lineno", 0), what) for what in found]


def _excused(node: ast.AST) -> list[ast.AST]:
    """What below `node` is closed in general, and not here: `super().__setattr__` and `@wraps(function)`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        call = node.value
        plain = isinstance(call.func, ast.Name) and call.func.id == "super" and not call.args
        return [node] if plain and node.attr in ("__setattr__", "__delattr__") else []
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return [node.func] if name == DECORATOR else []
    return []


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
