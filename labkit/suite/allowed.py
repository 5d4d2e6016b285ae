# ruff: noqa: SIM905 — long lists of names are read best as words
"""What a graded answer may import and use: the one list of it, and where in a text it goes beyond.

Grading runs an answer in a box, and this list keeps what is measured in the same process honest. It allows rather than
forbids: modules, their public parts, and of what begins with an underscore Python's own protocol and the answer's own
names. Both sides of the judge, the finder and `lab check` read it, so that a student can see beforehand what grading
refuses.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.labs.manifest import Lab

STANDARD = frozenset(
    "__future__ abc array bisect collections collections.abc contextlib copy dataclasses decimal enum fractions "
    "functools gc heapq itertools math numbers operator random re statistics string time types typing "
    "typing_extensions warnings weakref".split()
)
"""Modules of Python's own."""

NUMPY = frozenset(
    "numpy numpy.exceptions numpy.fft numpy.lib numpy.lib.array_utils numpy.lib.stride_tricks numpy.linalg numpy.ma "
    "numpy.polynomial numpy.random numpy.testing numpy.typing".split()
)
MATPLOTLIB = frozenset(
    "matplotlib matplotlib.axes matplotlib.cm matplotlib.colors matplotlib.figure matplotlib.lines matplotlib.patches "
    "matplotlib.pyplot matplotlib.scale matplotlib.ticker matplotlib.transforms".split()
)
TORCH = frozenset(
    "torch torch.amp torch.autograd torch.autograd.function torch.autograd.functional torch.autograd.graph "
    "torch.autograd.profiler torch.autograd.forward_ad torch.backends torch.backends.cuda torch.backends.mkldnn "
    "torch.backends.opt_einsum torch.compiler torch.cpu torch.cuda torch.cuda.amp torch.fft torch.func torch.linalg "
    "torch.masked torch.nested torch.nn torch.nn.attention torch.nn.attention.bias torch.nn.attention.flex_attention "
    "torch.nn.functional torch.nn.init torch.nn.modules torch.nn.parameter torch.nn.utils torch.ops torch.ops.aten "
    "torch.optim torch.profiler torch.random torch.special torch.storage torch.testing torch.types torch.utils "
    "torch.utils._pytree torch.utils.checkpoint torch.utils.weak".split()
)
TRITON = frozenset({"triton", "triton.language", "triton.language.math"})
MACHINE = frozenset({"labkit.simulated_memory", "labkit.hierarchy"})
"""Modules of the course that stand in for a library."""

LIBRARIES = {
    "profiling": NUMPY | MATPLOTLIB,
    "peak_memory": TORCH | NUMPY | MATPLOTLIB | {"torch.utils._python_dispatch", "torch.overrides"},
    "linear_attention": TORCH | NUMPY | MATPLOTLIB | {"torch.utils._python_dispatch"},
    "online_softmax": NUMPY,
    "tiling": NUMPY | MATPLOTLIB | MACHINE,
    "ring_attention": TORCH | NUMPY | MATPLOTLIB | {"labkit.ranks.comm", "labkit.ranks.threads"},
    "triton_kernel": TORCH | NUMPY | MATPLOTLIB | TRITON,
}
"""What the answer to a lab may import besides Python's own modules, by the lab's module."""

KERNELS = frozenset({"triton_kernel"})
"""Modules of labs whose answers hold kernels in Triton."""

OTHERWISE = TORCH | NUMPY | MATPLOTLIB
"""The same for labs not named above."""

HEAVY = {"torch": "labkit.suite.prefork_torch", "matplotlib": "matplotlib.pyplot"}
"""What takes long to import, by the name under which a text mentions it."""

METERS = {
    "measure_arrays": "labkit.meters.arrays",
    "kept_by_forward": "labkit.meters.saved",
    "measure_peak": "labkit.meters.tensors",
}
"""Meters that a suite may have called on an answer's function, where that function is."""

REFUSED_PARTS = frozenset(
    # from an object to everything else, and code from text
    "gc.callbacks gc.get_objects gc.get_referrers gc.get_referents operator.attrgetter operator.methodcaller "
    "string.Formatter "
    "types.FunctionType types.CodeType types.CellType types.FrameType types.new_class "
    "typing.get_type_hints typing.ForwardRef typing_extensions.get_type_hints typing_extensions.get_annotations "
    "typing_extensions.ForwardRef typing_extensions.evaluate_forward_ref enum.global_enum dataclasses.make_dataclass "
    "torch.utils.set_module gc.garbage gc.set_debug "
    # what meters go by
    "torch.DispatchKey torch.DispatchKeySet torch.utils._pytree.SUPPORTED_NODES "
    "torch.utils._pytree.SUPPORTED_SERIALIZED_TYPES torch.utils._pytree.treespec_loads "
    # files, and what runs elsewhere
    "numpy.memmap numpy.load numpy.fromfile numpy.ctypeslib numpy.f2py torch.load torch.save torch.hub torch.jit "
    "torch.from_file torch.UntypedStorage.from_file torch.ops.import_module torch.ops.load_library "
    "torch.library torch.package torch.multiprocessing torch.distributed torch.classes torch.os torch.sys "
    "torch.builtins torch.ctypes torch.inspect torch.threading".split()
)
"""Public parts of modules that an answer may not use."""

OF_NUMPY_TESTING = frozenset(("assert_", "suppress_warnings", "overrides"))
"""What an answer may use of NumPy's tests beside the assertions: the rest runs texts, threads and other modules."""

OF_TRITON = frozenset("triton.jit triton.cdiv triton.next_power_of_2 triton.language triton.language.math".split())
"""What an answer may use of Triton itself; of its language, what is public and no module."""

MODULES_OF_TRITON = frozenset(
    f"triton.language.{name}" for name in "core extra random semantic standard target_info".split()
)

BUILTINS_REFUSED = frozenset("eval exec compile open input breakpoint globals locals vars help __import__".split())
"""Builtins that an answer does not find: files, and code made from text."""

PROTOCOL = frozenset(
    f"__{name}__"
    for name in "abs add aenter aexit aiter all and anext annotations array array_function array_priority array_ufunc "
    "await bool bytes call ceil class class_getitem complex contains copy debug deepcopy del delattr delete delitem "
    "dir divmod doc enter eq exit file float floor floordiv format ge get getattr getattribute getitem gt hash iadd "
    "iand ifloordiv ilshift imatmul imod imul index init init_subclass instancecheck int invert ior ipow irshift isub "
    "iter itruediv ixor le len length_hint lshift lt main matmul missing mod module mul name ne neg new "
    "next or pos post_init pow prepare qualname radd rand rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul "
    "ror round rpow rrshift rshift rsub rtruediv rxor set set_name setattr setitem sizeof slots str sub subclasscheck "
    "torch_dispatch torch_function truediv trunc version weakref xor".split()
)
"""Names between double underscores that an answer may use: Python's protocol, as far as it stays with the object."""

PRIVATE_OF_LIBRARIES = frozenset(
    "_asdict _base _cdata _fields _is_checkpoint_valid _is_view _make _replace _schema _use_count _version "
    "_scaled_dot_product_flash_attention_for_cpu _softmax".split()
)
"""Names after one underscore that libraries document, or that a lab's handout leads to."""

SAVED = "_saved_"
"""How the attributes of an autograd node begin that hold what it saved: torch's notes on autograd document them."""

FRAMES = frozenset(
    "ctypes tb_frame tb_next f_back f_globals f_locals f_builtins f_code gi_frame gi_code gi_yieldfrom cr_frame "
    "cr_code ag_frame ag_code".split()
)
"""Names that lead from a traceback or a generator to the code that called it, and from an array to any address."""

MATCHED_BY_POSITION = frozenset("bool bytes bytearray dict float frozenset int list set str tuple".split())
"""Classes that `case int(n)` matches by position; others give out what their `__match_args__` name."""

TOO_DEEP = "is nested too deep to be read"


def is_assertion_of_numpy(name: str) -> bool:
    """Whether an answer may use `numpy.testing.name`."""
    return name.startswith("assert_") or name in OF_NUMPY_TESTING


def may_import(name: str, module: str) -> bool:
    """Whether an answer to the lab whose module is `module` may import the module `name`."""
    return name in STANDARD or name in LIBRARIES.get(module, OTHERWISE) or name == module


def imported_modules(source: str, module: str) -> list[str]:
    """The libraries that `source`, an answer to the lab whose module is `module`, imports anywhere and may import.

    Those under `if __name__ == "__main__":` are left out, since that is not run.
    """
    try:
        nodes = list(ast.walk(without_self_check(ast.parse(source.removeprefix("\ufeff")))))
    except (RecursionError, MemoryError, SyntaxError, ValueError):
        return []
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(name for name in named if name != module and may_import(name, module))


def refusals(source: str, lab: Lab) -> list[tuple[int, str]]:
    """Where `source`, an answer to `lab`, goes beyond what grading runs: (line, what it does there), in order.

    Empty for a text that grading runs, and for one that is no Python: that is said elsewhere. What stands under
    `if __name__ == "__main__":` does not count, since it is not run.
    """
    try:
        return refused_in(without_self_check(ast.parse(source.removeprefix("\ufeff"))), lab.module)
    except (RecursionError, MemoryError):
        return [(1, TOO_DEEP)]
    except (SyntaxError, ValueError):
        return []


def refused_in(tree: ast.Module, module: str) -> list[tuple[int, str]]:
    """As `refusals`, for a text that is parsed, and by the name of the lab's module."""
    nodes = list(ast.walk(tree))
    rules = _Rules(nodes, module)
    return sorted({(getattr(node, "lineno", 0), what) for node in nodes for what in rules.broken_by(node)})


def without_self_check(tree: ast.Module) -> ast.Module:
    """`tree` without the blocks that run only when the file itself is run (its `else` stays)."""
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.If) and _asks_for_main(node.test):
            body += node.orelse
        else:
            body.append(node)
    tree.body = body
    return tree


def may_name(name: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether an answer may use an attribute `name`; `own` are the names that it gives itself."""
    if name in FRAMES:
        return False
    if not name.startswith("_") or name in PROTOCOL or name in PRIVATE_OF_LIBRARIES:
        return True
    if name.startswith(SAVED):
        return True
    return name in own and not (name.startswith("__") and name.endswith("__"))


def given_names(tree: ast.AST) -> frozenset[str]:
    """The names that a text gives to what it makes: its functions, classes, variables, attributes, arguments."""
    return _given_names(ast.walk(tree))


def _given_names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in _given(node))


class _Rules:
    def __init__(self, nodes: list[ast.AST], module: str) -> None:
        self.module = module
        self.own = _given_names(nodes)
        self.libraries: dict[str, str] = {}  # what a name at the top of a chain of attributes stands for
        for node in nodes:
            self.libraries.update(_libraries_of(node))
        self.bound = frozenset(name for node in nodes for name in _bound(node))
        rebound = {name for node in nodes if not isinstance(node, ast.ClassDef) for name in _bound(node)}
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        imported = {name for node in nodes for name in _imported(node)}
        self.known = self.bound | imported | set(dir(builtins)) | {"__name__", "__file__"}
        self.roots = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        self.classes = _of_no_metaclass(classes) - rebound
        self.plain_classes = {node.name for node in classes if _is_plain(node)} - rebound

    def broken_by(self, node: ast.AST) -> Iterator[str]:
        """What `node` itself does, apart from what lies below it, that an answer may not."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not may_import(alias.name, self.module):
                    yield f"imports {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            yield from self._taken(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.Name):
            builtin = node.id in BUILTINS_REFUSED and node.id not in self.bound
            if builtin or (node.id.startswith("__") and node.id.endswith("__") and not may_name(node.id)):
                yield f"uses {node.id}"
            elif self.module in KERNELS:
                yield from self._in_a_kernel(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("__") and node.name.endswith("__") and not may_name(node.name):
                yield f"defines {node.name}"
        elif isinstance(node, ast.MatchClass):
            refused = [name for name in node.kwd_attrs if not may_name(name, self.own)]
            yield from (f"uses {name}" for name in refused)
            if node.patterns and not self._matches_by_position(node.cls):
                yield "matches a class by position that is neither Python's own nor this file's"
            elif node.kwd_attrs and not refused and not self._is_of_this_file(node.cls):
                yield "matches attributes of a class that is not this file's"

    def _in_a_kernel(self, node: ast.Name) -> Iterator[str]:
        """What a name may not be where Triton runs the text of functions anew, without the guards of a graded run."""
        if isinstance(node.ctx, ast.Load) and node.id not in self.known:
            yield f"uses {node.id}, which it does not define"
        elif self.libraries.get(node.id) in TRITON and id(node) not in self.roots:
            yield f"uses {node.id} as a value"

    def _taken(self, node: ast.ImportFrom) -> Iterator[str]:
        name = "." * node.level + (node.module or "")
        if node.level or not may_import(name, self.module):
            yield f"imports {name}"
            return
        for alias in node.names:
            whole = f"{name}.{alias.name}"
            if may_import(whole, self.module) or name == self.module:
                continue
            if (
                whole in REFUSED_PARTS
                or _is_hidden(whole)
                or not may_name(alias.name)
                or alias.name.startswith("__")
                or self._is_foreign_module(name, alias.name)
            ):
                yield f"uses {whole}"

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        root, parts = _chain(node)
        library = self.libraries.get(root)
        whole = ".".join([library or root, *parts]) if root else node.attr
        if library is None:
            if not may_name(node.attr, self.own):
                yield f"uses {node.attr}"
            return
        if may_import(whole, self.module):
            return
        if whole.startswith("torch.ops.aten.") and isinstance(node.ctx, ast.Load):
            return
        hidden = _is_hidden(whole)
        if whole in REFUSED_PARTS or hidden or not may_name(node.attr) or self._is_foreign_module(library, node.attr):
            yield f"uses {whole}"
        elif isinstance(node.ctx, ast.Store | ast.Del):
            yield f"changes {whole}, which is not its own"

    def _is_foreign_module(self, library: str, name: str) -> bool:
        """Whether `name` is what a module of Python's own imported for itself (`warnings.sys`)."""
        return library in STANDARD and name in sys.stdlib_module_names and name not in STANDARD

    def _is_of_this_file(self, cls: ast.expr) -> bool:
        return isinstance(cls, ast.Name) and cls.id in self.classes

    def _matches_by_position(self, cls: ast.expr) -> bool:
        return isinstance(cls, ast.Name) and cls.id in self.plain_classes | (MATCHED_BY_POSITION - self.bound)


def _is_hidden(whole: str) -> bool:
    """Whether a library has this for itself, of those libraries of which only some parts are open."""
    parts = whole.split(".")
    if parts[:2] == ["numpy", "testing"]:
        return len(parts) > 2 and not is_assertion_of_numpy(parts[2])
    if parts[0] != "triton":
        return False
    if parts[:2] == ["triton", "language"]:
        return ".".join(parts[:3]) in MODULES_OF_TRITON
    return whole not in OF_TRITON


def _asks_for_main(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, test.comparators[0]]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and values == ["__main__"]


def _is_plain(node: ast.ClassDef) -> bool:
    """Whether what a class matches by position is written in it: no metaclass, no base but NamedTuple."""
    return not node.keywords and all(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)


def _of_no_metaclass(classes: list[ast.ClassDef]) -> set[str]:
    """The classes that are of `type`, as far as the text shows: they and their bases are written in it."""
    found: set[str] = set()
    for node in classes:  # a base stands before what is derived from it
        if not node.keywords and all(isinstance(b, ast.Name) and b.id in found | {"NamedTuple"} for b in node.bases):
            found.add(node.name)
    return found


def _chain(node: ast.Attribute) -> tuple[str, list[str]]:
    """`a.b.c` as "a" and ["b", "c"]; the root of anything else is ""."""
    parts: list[str] = []
    here: ast.expr = node
    while isinstance(here, ast.Attribute):
        parts.append(here.attr)
        here = here.value
        if len(parts) > 100:
            raise RecursionError
    return (here.id if isinstance(here, ast.Name) else ""), parts[::-1]


def _libraries_of(node: ast.AST) -> dict[str, str]:
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
            for alias in node.names
        }
    if isinstance(node, ast.ImportFrom) and not node.level:
        candidates = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return {name: whole for name, whole in candidates.items() if whole in STANDARD | OTHERWISE | MACHINE | TRITON}
    return {}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a node binds in some scope of the answer's."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def _given(node: ast.AST) -> Iterator[str]:
    yield from _bound(node)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value  # __slots__, setattr(self, "_x", …), namedtuple("Pair", "first")
