# ruff: noqa: SIM905 — long lists of names are read best as words
"""Checks a submission's source against one list of what is ordinary, and shows every other line.

Nothing is refused for its text: findings are shown wherever points are, and the instructor decides. The text that is
checked is the text that runs: see `labkit.suite.main_block`. No value is followed from one name to another.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from labkit.labs.manifest import Lab
from labkit.suite.library_work import imported_paths, library_work

MODULES: dict[str, str] = {
    **dict.fromkeys(
        "__future__ abc bisect cmath collections collections.abc contextlib copy datetime decimal enum fractions "
        "hashlib heapq itertools json math numbers operator pathlib pprint random re statistics struct textwrap time "
        "typing typing_extensions matplotlib.pyplot numpy numpy.fft numpy.linalg numpy.random numpy.typing torch "
        "torch.backends.cuda torch.fft torch.linalg torch.nn torch.nn.functional torch.nn.init torch.random "
        "torch.special torch.types triton.language".split(),
        "*",
    ),
    "dataclasses": "FrozenInstanceError InitVar KW_ONLY asdict astuple dataclass field is_dataclass replace",
    "functools": "cache cached_property cmp_to_key lru_cache partial partialmethod reduce total_ordering wraps",
    "gc": "collect disable enable isenabled",
    "inspect": "Parameter cleandoc getdoc isclass isfunction signature",
    "logging": "CRITICAL DEBUG ERROR INFO Logger NullHandler WARNING basicConfig debug error getLogger info warning",
    "matplotlib": "rc rc_context rcParams use",
    "matplotlib.axes": "Axes",
    "matplotlib.colors": "ListedColormap LogNorm Normalize",
    "matplotlib.figure": "Figure",
    "matplotlib.patches": "Patch Rectangle",
    "matplotlib.ticker": "FuncFormatter LogLocator MaxNLocator MultipleLocator NullFormatter ScalarFormatter",
    "numpy.exceptions": "AxisError",
    "numpy.lib.stride_tricks": "sliding_window_view",
    "numpy.testing": "assert_allclose assert_array_almost_equal assert_array_equal",
    "os": "PathLike cpu_count environ fspath getcwd getenv linesep sep",
    "os.path": "abspath basename dirname exists isdir isfile join split splitext",
    "sys": "argv byteorder exit float_info getrecursionlimit getsizeof maxsize platform stderr stdout version_info",
    "timeit": "default_timer",
    "torch.amp": "GradScaler autocast is_autocast_available",
    "torch.autograd": "Function backward detect_anomaly enable_grad grad gradcheck gradgradcheck inference_mode "
    "no_grad set_detect_anomaly set_grad_enabled",
    "torch.autograd.function": "Function FunctionCtx once_differentiable",
    "torch.autograd.functional": "hessian jacobian jvp vjp",
    "torch.autograd.profiler": "_is_profiler_enabled record_function",
    "torch.backends.cudnn": "allow_tf32 benchmark deterministic enabled",
    "torch.cuda": "device_count empty_cache get_rng_state get_rng_state_all is_available manual_seed "
    "max_memory_allocated memory_allocated memory_stats reset_peak_memory_stats set_rng_state set_rng_state_all "
    "synchronize",
    "torch.nn.parameter": "Parameter",
    "torch.profiler": "ProfilerActivity profile record_function schedule",
    "torch.testing": "assert_close",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils._pytree": "tree_flatten tree_leaves tree_map tree_map_only tree_unflatten",
    "threading": "Lock RLock local",
    "tqdm": "tqdm trange",
    "tqdm.auto": "tqdm trange",
    "traceback": "format_exc print_exc",
    "tracemalloc": "get_traced_memory is_tracing start take_snapshot",
    "triton": "Config autotune cdiv heuristics jit next_power_of_2",
    "types": "EllipsisType MappingProxyType NoneType SimpleNamespace TracebackType UnionType",
    "warnings": "catch_warnings filterwarnings simplefilter warn",
    "weakref": "WeakKeyDictionary WeakSet WeakValueDictionary",
    "labkit.ranks.comm": "Comm Deadlock Handle Traffic",
    "labkit.ranks.threads": "Ran run_ranks",
    "labkit.simulated_memory": "HBMArray Index Machine SRAMOverflow Scalar Tile",
}
"""What may be imported, and its ordinary names: "*" is every public one, less those of `LEADS`. A lab's `libraries` are
ordinary too; NumPy, torch, triton and labkit are so in those labs only."""
IN_SOME_LABS = frozenset("numpy torch triton labkit".split())
LEADS = {
    "contextlib": "chdir redirect_stderr redirect_stdout",
    "json": "decoder encoder load scanner tool",
    "matplotlib.pyplot": "cm style switch_backend",
    "numpy": "DataSource char conftest core ctypeslib dtypes emath f2py fromfile fromregex genfromtxt load "
    "loadtxt ma matlib matrixlib memmap polynomial rec save savetxt savez savez_compressed seterrcall show_config "
    "strings tests version",
    "numpy.fft": "tests",
    "numpy.linalg": "lapack_lite tests",
    "numpy.random": "bit_generator mtrand tests",
    "numpy.typing": "mypy_plugin tests",
    "operator": "call",
    "torch": "accelerator ao classes classproperty compile compiler cond contrib cpp cpu distributed distributions "
    "export fork foreach from_dlpack from_file frombuffer func functional futures fx get_device_module "
    "get_file_path hub import_ir_module import_ir_module_from_buffer jit library load masked "
    "merge_type_from_type_comment monitor mps mtia multiprocessing nativert nested numa onnx ops optim "
    "overrides package parse_ir parse_schema parse_type_comment quantization "
    "prepare_multiprocessing_environment quasirandom return_types save serialization sparse storage to_dlpack "
    "torch_version unify_type_list utils version wait while_loop windows xpu",
    "torch.nn": "attention backends common_types cpp grad intrinsic modules parallel qat quantizable quantized utils",
    "torch.nn.functional": "boolean_dispatch grad handle_torch_function has_torch_function has_torch_function_unary",
    "triton.language": "core extra inline_asm_elementwise standard target_info",
    "typing": "ForwardRef evaluate_forward_ref get_args get_type_hints",
    "typing_extensions": "ForwardRef evaluate_forward_ref get_annotations get_args get_type_hints",
    "": "bltns cbook matplotlib mlab mpl np rcsetup stdlib_re torch typing_extensions",
}
"""Public names that lead to files, storages, hooks, modules or other code; under "", modules inside any module."""
NO_MODULES = frozenset("array bisect copy datetime math pprint profile random select time trace".split())
"""Names of the standard library's modules that stand for a function, or for a module that leads nowhere."""
CAPITALS = frozenset("BoolTensor FloatTensor Generator HalfTensor LongTensor OutOfMemoryError Size Tensor".split())
"""The ordinary names of torch with a capital: the others are its compilers' and its storages."""
FUNCTIONS = frozenset(
    "NotImplemented Ellipsis abs all any ascii bin callable chr delattr dir divmod exit format getattr hasattr hash "
    "hex id input isinstance issubclass iter len max min next oct ord pow print quit repr round setattr sorted "
    "sum".split()
)
"""The ordinary builtins, with its classes."""
DUNDERS = frozenset(
    f"__{name}__"
    for name in "abs add all and author bool call class_getitem contains copy debug deepcopy delitem doc enter "
    "eq exit file float floordiv format future ge get getattr getitem gt hash iadd imatmul imul index init "
    "init_subclass int invert isub iter le len lt main matmul members missing mod module mul name ne neg new next "
    "or pos post_init pow qualname radd repr reversed rmatmul rmul rsub rtruediv set set_name setattr setitem slots "
    "str sub truediv version weakref wrapped xor".split()
)
PRIVATE = frozenset(
    "_ _asdict _base _fields _generate_next_value_ _ignore_ _make _member_map_ _member_names_ _missing_ _name_ _order_ "
    "_replace _value2member_map_ _value_ _version".split()
)
"""Names with an underscore that NumPy, torch, `collections` and `enum` document."""
COURSE = frozenset("_call _ledger _ledger_array _ledger_charge _ledger_content _messages _rank _world".split())
"""Those of the objects that a suite hands over, which are never a submission's own."""
REACHING = re.compile(
    "(ag|cr|gi)_(await|code|frame|yieldfrom)|f_(back|builtins|code|globals|locals)|tb_(frame|next)|mro|redispatch|"
    "as_subclass|(const_)?data_ptr|record_stream|resize_|resize_as_|set_|setflags|share_memory_|sparse_resize_|"
    r"_?(typed_|untyped_)storage|storage|ctypes|c?ffi|_\w+_hooks|register_.*hook|register_prehook|saved_tensors_hooks|"
    "dump|open|"
    "(read|write)_(bytes|text)|tofile|savefig|imsave|imread|print_(figure|png|raw)|canvas|fp|handlers|"
    "(return_)?annotation|FileType|(sym|hard)link_to"
)
"""Attributes that lead to frames, code, memory, hooks and files, of whatever object."""
BY_NAME = frozenset("getattr setattr delattr .__setattr__ operator.attrgetter operator.methodcaller".split())
"""Ordinary where they are called, with a name that is written there."""
NAMED = ("__doc__", "__name__", "__qualname__")
OF_CLASS = frozenset(".__init__ .__new__ .__setattr__ .__get__ .__set__ .__set_name__".split())
"""Methods that are ordinary of `super()`; the first two of classes too, and the second and third of `object`."""
TEMPLATE = re.compile(r"['\"]([^{}]|\{[^{}.\[]*([.]\d+\w?)?\})*['\"]\.\w+", re.DOTALL)
"""A text whose fields have no attributes, and its method `format`."""
TOO_DEEP = "is nested too deep to be checked"


class Finding(NamedTuple):
    """A line of a submission, what it does, and the tasks that earn nothing by it."""

    line: int
    what: str
    tasks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def check_source(text: str, lab: Lab) -> list[Finding]:
    """What `text` does that is not ordinary in `lab`, each thing once, in the order of the lines.

    Empty for a text that is not Python: the tests report that.
    """
    first: dict[tuple[str, tuple[str, ...]], int] = {}
    try:
        tree = ast.parse(text)
        check = _Check(tree, lab)
        found = [(getattr(node, "lineno", 1), what, ()) for node in check.nodes for what in check.odd(node)]
        for line, what, tasks in sorted([*found, *library_work(tree, lab)]):
            first.setdefault((what, tasks), line)
    except (RecursionError, MemoryError):
        return [Finding(1, TOO_DEEP)]
    except (SyntaxError, ValueError):
        return []
    return [Finding(line, what, tasks) for (what, tasks), line in first.items()]


class _Check:
    """A text, what its imports stand for, and the names that it gives itself."""

    def __init__(self, tree: ast.Module, lab: Lab) -> None:
        self.nodes, self.ordinary, self.paths = list(ast.walk(tree)), lab.ordinary, imported_paths(tree)
        self.parents = {id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)}
        libraries = {each.partition(">=")[0] for each in lab.libraries}
        needed = IN_SOME_LABS - libraries
        here = {name: MODULES[name] for name in MODULES if name.split(".")[0] not in needed and "._" not in name}
        here |= {name: "*" if name == "weakref" else MODULES.get(name, "*") for name in libraries}
        here[lab.module] = " ".join(task.name for task in lab.tasks)
        self.modules = {name.rsplit(".", n)[0]: "" for name in here for n in range(name.count(".") + 1)} | here
        self.own: set[str] = set()
        self.bound = {node.arg for node in self.nodes if isinstance(node, ast.arg)} | self.paths.keys()
        for node in self.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                    self.bound.add(name)
                case ast.Attribute(value=ast.Name("self" | "cls" | "ctx"), attr=name, ctx=ast.Store()):
                    self.own.add(name)
        self.classes = {node.name for node in self.nodes if isinstance(node, ast.ClassDef)} - self.bound
        self.bound |= self.classes
        self.own |= self.bound - self.paths.keys()

    def odd(self, node: ast.AST) -> Iterator[str]:
        """What a node does that is not ordinary."""
        match node:
            case ast.Import(names=aliases):
                yield from (f"imports {each.name}" for each in aliases if each.name not in self.modules)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for name in (each.name for each in aliases):
                    if level or name == "*" or module not in self.modules:
                        yield f"imports {'.' * level}{module or ''}" + (".*" if name == "*" else "")
                    elif any(self.part(module, name)):
                        yield f"imports {module}.{name}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if _is_dunder(name):
                yield from (f"defines {name}" for _ in self.attribute(name))
            case ast.MatchClass(kwd_attrs=names):
                yield from (what for name in names for what in self.attribute(name, by_name=True))
            case ast.Call(func=function, keywords=keywords) if self.path(function):
                yield from (f"passes {each.arg}" for each in keywords if each.arg in ("eval_str", "filename"))
                if any(path.startswith(("inspect.", "logging.")) for path in self.path(function)):
                    yield from (f"passes {ast.unparse(each)}" for each in keywords if each.arg is None)
            case ast.Name(id=name) if _is_dunder(name):
                yield from self.attribute(name)
            case ast.Name(id=name, ctx=ast.Load()):
                yield from self.use(node, name)
            case ast.Attribute(value=value, attr=name):
                yield from self.of(value, name) if name != "__class__" else ()
                if isinstance(node.ctx, ast.Load):
                    yield from self.use(node, f".{name}")
                else:
                    yield from self.changes(value, name)

    def path(self, node: ast.AST) -> set[str]:
        """The dotted names that a chain of attributes stands for, where an import begins it."""
        match node:
            case ast.Name(id=name):
                return self.paths.get(name, set())
            case ast.Attribute(value=value, attr=name):
                return {f"{path}.{name}" for path in self.path(value)}
        return set()

    def of(self, value: ast.expr, name: str) -> Iterator[str]:
        """Using the attribute `name` of `value`."""
        modules = self.path(value) & self.modules.keys()
        yield from (what for module in modules for what in self.part(module, name))
        yield from () if modules else self.attribute(name)

    def part(self, module: str, name: str) -> Iterator[str]:
        """Using `name` of an ordinary module."""
        path, names = f"{module}.{name}", self.modules[module]
        leads = name in f"{LEADS.get(module)} {LEADS['']}".split() or name in sys.stdlib_module_names - NO_MODULES
        leads = leads or (module == "torch" and name[0].isupper() and name not in CAPITALS)
        if path not in self.modules and path not in self.ordinary and name not in names.split():
            yield from [f"uses {path}"] if names != "*" or leads or any(self.attribute(name)) else ()

    def attribute(self, name: str, *, by_name: bool = False) -> Iterator[str]:
        """Using the attribute `name` of whatever object."""
        is_odd = name not in (NAMED if by_name else DUNDERS) if _is_dunder(name) else bool(REACHING.fullmatch(name))
        is_odd |= name.startswith("_") and not _is_dunder(name) and name not in (self.own - COURSE) | PRIVATE
        is_odd |= name in ("numpy", "from_numpy") and "numpy" not in self.modules
        yield from [f"uses {name}"] if is_odd and name not in self.ordinary else ()

    def changes(self, value: ast.expr, name: str) -> Iterator[str]:
        """Setting or deleting an attribute of something imported."""
        yield from (f"changes {path}.{name}" for path in self.path(value) if not path.startswith("torch.backends."))
        yield from [f"changes {name} of an object"] if _is_dunder(name) else ()

    def use(self, node: ast.Name | ast.Attribute, name: str) -> Iterator[str]:
        """Using what is ordinary in some places only; `name` is a name, or an attribute with its dot."""
        parent, paths = self.parents[id(node)], self.path(node)
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        if name in vars(builtins) and not (paths or name in FUNCTIONS or isinstance(getattr(builtins, name), type)):
            yield f"uses {name}"
        for function in {name, *paths} & BY_NAME:
            yield from self.by_name(function.lstrip("."), call)
        if name in (".format", ".format_map") and not TEMPLATE.fullmatch(ast.unparse(node)):
            yield f"uses {name[1:]} of a text that is not written there"
        if name in OF_CLASS and isinstance(node, ast.Attribute) and not self.is_above(node.value, name):
            yield f"uses {name[1:]} of an object"
        is_base, used_as = isinstance(parent, ast.Attribute), getattr(parent, "attr", "")
        is_asked = isinstance(parent, ast.Call) and self.is_builtin(parent.func, "getattr", "hasattr")
        asked_for = self.parents.get(id(parent)) if isinstance(parent, ast.keyword) and parent.arg == "file" else None
        is_printed = isinstance(asked_for, ast.Call) and self.is_builtin(asked_for.func, "print")
        for path in paths:
            is_class = (path.startswith("torch.") and path.endswith(".Tensor")) or (
                path.startswith("labkit.") and path.split(".")[-1][0].isupper() and not path.split(".")[-1].isupper()
            )
            is_class &= not (call or is_base or self.is_type(node))
            is_stream = path in ("sys.stdout", "sys.stderr") and not (is_printed or used_as in ("write", "flush"))
            if is_class or is_stream or (path in self.modules and not (is_base or is_asked)):
                yield f"uses {path} as a value"
        if name in ("type", ".__class__"):
            made = call if call and name == "type" and len(call.args) == 1 else None
            whole, of = (made, made.args[0]) if made else (node, getattr(node, "value", None))
            user = self.parents[id(whole)]
            is_named = isinstance(user, ast.FormattedValue) or getattr(user, "attr", "") in NAMED
            is_copied = getattr(user, "func", None) is whole and getattr(of, "id", "") in ("self", "cls")
            if not (is_named or is_copied or self.is_type(whole)):
                yield "uses type as a value"

    def is_builtin(self, node: ast.AST | None, *names: str) -> bool:
        """Whether a node is one of these builtins, and no other thing of its name."""
        return isinstance(node, ast.Name) and node.id in names and node.id not in self.bound

    def is_above(self, value: ast.expr, name: str) -> bool:
        """Whether `value` is a class, or `super()`, to whose method `name` a class of a submission's own may lead."""
        if isinstance(value, ast.Call):
            return self.is_builtin(value.func, "super")
        if name in (".__new__", ".__setattr__") and self.is_builtin(value, "object"):
            return True
        is_own = isinstance(value, ast.Name) and value.id in self.classes
        return name in (".__init__", ".__new__") and (
            is_own or any(not path.startswith("labkit.") for path in self.path(value))
        )

    def by_name(self, function: str, call: ast.Call | None) -> Iterator[str]:
        """Using attributes whose names are values."""
        names = (call.args if "." in function else call.args[1:2]) if call else []
        texts = [each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if not texts or (len(texts) < len(names) and function != "operator.methodcaller"):
            yield f"uses {function} without a name that is written there"
        for part in (part for text in texts for part in text.split(".")):
            yield from self.attribute(part, by_name=True)
            if call and "." not in function:
                yield from self.of(call.args[0], part)
                paths = {f"{path}.{part}" for path in self.path(call.args[0])}
                yield from (f"uses {path} as a value" for path in paths & self.modules.keys())
                yield from self.changes(call.args[0], part) if function != "getattr" else ()

    def is_type(self, node: ast.AST) -> bool:
        """Whether a class stands where a type does: in an annotation, a comparison, `isinstance` or `except`."""
        while isinstance(parent := self.parents[id(node)], ast.Subscript | ast.Tuple | ast.List | ast.BinOp):
            if isinstance(parent, ast.Subscript):
                if parent.value is node:
                    return isinstance(node, ast.Name)
                return self.is_plain(parent.value) and getattr(parent.value, "id", "") not in self.classes
            if isinstance(parent, ast.BinOp) and not (self.is_plain(parent.left) and self.is_plain(parent.right)):
                return False
            node = parent
        match parent:
            case ast.FunctionDef(returns=kind) | ast.AnnAssign(annotation=kind):
                return kind is node
            case ast.Compare(left=left, comparators=others):
                return all(each is node or self.is_plain(each) for each in [left, *others])
            case ast.Call(func=function):
                return self.is_builtin(function, "isinstance", "issubclass")
        return isinstance(parent, ast.arg | ast.ExceptHandler | ast.Raise | ast.MatchClass)

    def is_plain(self, node: ast.AST) -> bool:
        """Whether a node is a class or a type that no code of the submission's own can receive something by."""
        match node:
            case ast.Constant() | ast.Name(id="Self" | "Any"):
                return True
            case ast.Name(id=name):
                return name in self.classes or bool(self.path(node)) or self.is_builtin(node, *vars(builtins))
            case ast.Attribute():
                return bool(self.path(node)) or node.attr == "__class__"
            case ast.Subscript(value=value):
                return self.is_plain(value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(map(self.is_plain, parts))
            case ast.BinOp(left=left, right=right):
                return self.is_plain(left) and self.is_plain(right)
            case ast.Call(func=function):
                return self.is_builtin(function, "type")
        return False


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
