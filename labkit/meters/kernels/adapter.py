"""The only module that uses Triton's private names: its interpreter's memory, and its compiler's stages up to PTX.

`@triton.jit` reads the environment's TRITON_INTERPRET when it runs, Triton's own functions of Triton's language
included. So a process has either the interpreter or the compiler, unless it imports Triton twice: `compiler` does, and
keeps the second import apart.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from labkit.meters.kernels.cache import made_once

KNOWN_VERSIONS = ("3.6", "3.9")
"""Versions of Triton, as far as their second number, under which Lab 10's suite was tried.

The interpreter of 3.6 makes numbers of arrays of one element, which NumPy refuses from 2.4 on: below that it runs.
"""

SWITCH = "TRITON_INTERPRET"
PTX_VERSION = 87
"""PTX 8.7: given, or Triton would start ptxas to ask for it."""

INTERPRETER_NAMES = {
    "triton.runtime.interpreter": (
        *("InterpretedFunction.run", "InterpreterBuilder.create_masked_load", "InterpreterBuilder.create_masked_store"),
        *("InterpreterBuilder.create_atomic_rmw", "InterpreterBuilder.create_atomic_cas"),
        *(
            "InterpreterBuilder.create_dot",
            "InterpreterBuilder.create_mul",
            "TensorHandle",
            "interpreter_builder",
            "InterpreterError",
            "_patch_lang",
        ),
    )
}
COMPILER_NAMES = {
    "triton.compiler": ("ASTSource.make_ir", "make_backend"),
    "triton.backends.compiler": ("GPUTarget",),
    "triton.runtime.jit": ("JITFunction",),
    "triton._C.libtriton": ("ir.context", "ir.load_dialects"),
}


class UnknownTriton(RuntimeError):
    """Triton is missing, has an unknown version, or was imported the wrong way; the message is a sentence."""


class Handler(Protocol):
    """Receives what a kernel does in the interpreter. Addresses and masks are arrays of one shape.

    `load`, `store` and `update` (an atomic operation) return the mask to use instead of the one given.
    """

    def launched(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
        """A kernel is about to run on `grid`."""

    def load(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program reads."""

    def store(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program writes."""

    def update(self, addresses: np.ndarray, mask: np.ndarray, itemsize: int, program: tuple[int, ...]) -> np.ndarray:
        """A program reads and writes atomically."""

    def multiplied(self, left: tuple[int, ...], right: tuple[int, ...]) -> None:
        """A program multiplies two tiles, of these shapes, by `tl.dot`."""


class Compiler(NamedTuple):
    """A second import of Triton, without its interpreter: its modules by name."""

    modules: dict[str, ModuleType]

    def name(self, module: str, name: str) -> Any:
        """An attribute of one of its modules."""
        return _at(self.modules[module], name)


def version() -> str:
    """Triton's version, `3.9`, without importing it; "" where it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return ".".join(version_of("triton").split(".")[:2])
    except PackageNotFoundError:
        return ""


def interpreter() -> ModuleType:
    """The module of Triton's interpreter.

    Raises:
        UnknownTriton: it is not there, lacks a name that is needed here, or is switched off.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnknownTriton("Triton is not installed here: it comes with torch for Linux, and for nothing else")
    module = _with_names(INTERPRETER_NAMES)["triton.runtime.interpreter"]
    language = importlib.import_module("triton.language")
    if not isinstance(language.sum, module.InterpretedFunction):
        raise UnknownTriton(f"Triton was imported without its interpreter: set {SWITCH}=1 before anything imports it")
    return module


@contextlib.contextmanager
def watching(handler: Handler, *, unwritten_is_nan: bool = True) -> Iterator[None]:
    """Report to `handler` what kernels do in the interpreter. An error in a kernel is raised unchanged.

    Args:
        unwritten_is_nan: what a load without `other` gives where its mask is False: NaN, or the 0 that Triton's
            interpreter gives.
    """
    module: Any = interpreter()
    builder, function = module.InterpreterBuilder, module.InterpretedFunction
    here = module.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas, dot, run = builder.create_atomic_rmw, builder.create_atomic_cas, builder.create_dot, function.run
    patch = module._patch_lang
    language: Any = importlib.import_module("triton.language")
    patched: dict[int, dict[str, Any]] = {}

    def handle(data: np.ndarray, like: Any) -> Any:
        return module.TensorHandle(data, like.dtype)

    def asked(pointers: Any) -> tuple[np.ndarray, int, tuple[int, ...]]:
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        return pointers.data, itemsize, (*here.grid_idx,)

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **more: Any) -> Any:
        addresses, itemsize, program = asked(pointers)
        lanes = handler.load(addresses, mask.data, itemsize, program)
        missing = other is None and unwritten_is_nan and not mask.data.all()
        got = load(self, pointers, handle(lanes, mask), other, *rest, **more)
        if missing:
            got.data = np.where(mask.data, got.data, _anything(got.data.dtype))
        return got

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        addresses, itemsize, program = asked(pointers)
        lanes = handler.store(addresses, mask.data, itemsize, program)
        return store(self, pointers, value, handle(lanes, mask), *rest, **more)

    def atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        addresses, itemsize, program = asked(pointers)
        lanes = handler.update(addresses, mask.data, itemsize, program)
        return rmw(self, operation, pointers, value, handle(lanes, mask), *rest, **more)

    def atomic_cas(self: Any, pointers: Any, *rest: Any, **more: Any) -> Any:
        addresses, itemsize, program = asked(pointers)
        handler.update(addresses, np.ones(addresses.shape, bool), itemsize, program)
        return cas(self, pointers, *rest, **more)

    def multiply(self: Any, left: Any, right: Any, *rest: Any, **more: Any) -> Any:
        handler.multiplied(left.data.shape, right.data.shape)
        return dot(self, left, right, *rest, **more)

    def loop(first: Any, end: Any = None, step: Any = None, **_options: Any) -> Iterable[Any]:
        """The values of a loop: scalars of the bounds' widest type, as in a compiled kernel, instead of Python ints."""
        first, end, step = 0 if end is None else first, first if end is None else end, 1 if step is None else step
        numbers = range(first, end, step)
        bounds = [bound for bound in (first, end, step) if isinstance(bound, language.tensor)]
        return (sum(bound * 0 for bound in bounds) + number for number in numbers) if bounds else numbers

    def patch_once(kernel: FunctionType) -> Any:
        """Patch Triton's language only once: Triton repeats it at each call in a kernel, even of `tl.max`."""
        if id(kernel.__globals__) in patched:
            return None
        patched[id(kernel.__globals__)] = kernel.__globals__
        scope = patch(kernel)
        language.range = loop  # undone with the rest of what was patched
        kernel.__globals__.setdefault("range", loop)
        return scope

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        handler.launched(self, args, kwargs, grid)
        patched.clear()  # a launch undoes at its end what it has patched at its beginning
        try:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            for names in patched.values():
                if names.get("range") is loop:
                    del names["range"]

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas
    builder.create_dot, function.run = multiply, launch
    module._patch_lang = patch_once
    try:
        yield
    except module.InterpreterError as error:
        raise _kernels_own(error, module.InterpreterError) from None
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas
        builder.create_dot, function.run = dot, run
        module._patch_lang = patch


@contextlib.contextmanager
def int32_products() -> Iterator[list[int]]:
    """In the block, collects from each product of int32 numbers in the interpreter the largest absolute value.

    A product that is an offset, and grows with the tensor, exceeds 2³¹ in a large one. Small tensors show it in this.
    """
    builder: Any = interpreter().InterpreterBuilder  # type: ignore[attr-defined]
    multiply, found = builder.create_mul, list[int]()

    def noted(self: Any, left: Any, right: Any) -> Any:
        product = multiply(self, left, right)
        if product.data.dtype == np.int32 and product.data.size:
            found.append(int(np.abs(product.data.astype(np.int64)).max()))
        return product

    builder.create_mul = noted
    try:
        yield found
    finally:
        builder.create_mul = multiply


def _kernels_own(error: BaseException, wrapper: type[BaseException]) -> BaseException:
    """The error that a kernel raised, and where, without the wrappers that the interpreter adds."""
    while isinstance(error, wrapper) and error.__cause__ is not None:
        error = error.__cause__
    return error


_second: list[Compiler] = []


@contextlib.contextmanager
def compiler() -> Iterator[Compiler]:
    """Context in which Triton is imported without its interpreter, instead of the current import.

    Raises:
        UnknownTriton: it is not there, or lacks a name that is needed here.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnknownTriton("Triton is not installed here: it comes with torch for Linux, and for nothing else")
    importlib.import_module("triton")  # its library cannot be imported twice
    first, switch = _modules(), os.environ.get(SWITCH)
    for name in first:
        del sys.modules[name]
    os.environ[SWITCH] = "0"
    try:
        if _second:
            sys.modules.update(_second[0].modules)
        else:
            _with_names(COMPILER_NAMES)
            _silence_at_exit()
            _second.append(Compiler(_modules()))
            _second[0].modules["triton._C.libtriton"] = sys.modules["triton._C.libtriton"]
        yield _second[0]
        _second[0].modules.update(_modules())
    finally:
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(first)
        os.environ.pop(SWITCH) if switch is None else os.environ.__setitem__(SWITCH, switch)


def compilable(kernel: Any, second: Compiler) -> Any:
    """An interpreted or compiled kernel as one for `second`.

    It sees the globals of its module, in which kernels, and what comes from Triton, are the second import's.
    """
    jit = second.name("triton.runtime.jit", "JITFunction")
    made: dict[int, Any] = {}
    around: dict[str, Any] = {}

    def turned(value: Any) -> Any:
        if isinstance(value, ModuleType):
            return second.modules.get(value.__name__, value)
        function = getattr(value, "fn", value)
        if (getattr(function, "__module__", None) or "").split(".")[0] == "triton" and hasattr(function, "__name__"):
            return getattr(second.modules.get(function.__module__), function.__name__, value)
        if isinstance(function, FunctionType) and function is not value:
            if id(value) not in made:
                made[id(value)] = jit(_copy(function, around))
            return made[id(value)]
        if type(value).__name__ == "constexpr":
            return second.name("triton.language", "constexpr")(value.value)
        return value

    plain = kernel.fn.__globals__
    around.update({name: turned(value) for name, value in plain.items() if name in _named(kernel, plain)})
    around["__name__"] = plain.get("__name__", "kernels")
    return turned(kernel)


def to_ptx(kernel: Any, signature: dict[str, str], constants: dict[str, Any], divisible: list[str], arch: int,
           num_warps: int, num_stages: int, second: Compiler) -> tuple[str, int]:  # fmt: skip
    """A kernel of `second` compiled for sm_`arch`: its PTX, and the bytes of shared memory it requests.

    No program is started. Raises what Triton's compiler raises.
    """
    ir = second.name("triton._C.libtriton", "ir")
    target = second.name("triton.backends.compiler", "GPUTarget")("cuda", arch, 32)
    backend = second.name("triton.compiler", "make_backend")(target)
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = second.name("triton.compiler", "ASTSource")(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages, "ptx_version": PTX_VERSION, "enable_fp_fusion": True}
    parsed = backend.parse_options(options)
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen, module_map = backend.get_codegen_implementation(parsed), backend.get_module_map()
    first = source.make_ir(target, parsed, codegen, module_map, context)

    def through_all_stages() -> list[str | int]:
        made, told = first, dict[str, Any]()
        for name, stage in stages.items():
            made = stage(made, told)
            if name == "ptx":
                break
        return [made, int(told["shared"])]

    ptx, shared = made_once(f"sm_{arch} {sorted(options.items())}\n{first.str_nodebug()}", through_all_stages)
    return str(ptx), int(shared)


def _with_names(names: Mapping[str, tuple[str, ...]]) -> dict[str, ModuleType]:
    found = {}
    for module, parts in names.items():
        try:
            found[module] = importlib.import_module(module)
            for part in parts:
                _at(found[module], part)
        except (ImportError, AttributeError) as error:
            raise UnknownTriton(
                f"Triton {version()} is not one of those known here ({', '.join(KNOWN_VERSIONS)}): {error}; "
                "labkit/meters/kernels/adapter.py is where its names stand"
            ) from None
    return found


def _at(thing: Any, name: str) -> Any:
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def _modules() -> dict[str, ModuleType]:
    """Triton's imported modules, without its shared library."""
    named = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "triton"}
    return {name: module for name, module in named.items() if not name.startswith("triton._C")}


def _copy(function: FunctionType, around: dict[str, Any]) -> FunctionType:
    copy = FunctionType(function.__code__, around, function.__name__, function.__defaults__, function.__closure__)
    copy.__annotations__, copy.__module__ = function.__annotations__, function.__module__
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _named(kernel: Any, around: dict[str, Any]) -> set[str]:
    """The globals that a kernel and the kernels it calls may use."""
    names: set[str] = set()
    left = [kernel.fn]
    while left:
        new = {name for name in left.pop().__code__.co_names if name in around} - names
        names |= new
        functions = (getattr(around[name], "fn", None) for name in new)
        left += [each for each in functions if isinstance(each, FunctionType)]
    return names


def _anything(dtype: np.dtype) -> Any:
    """A value for a register that nothing was loaded into."""
    return np.nan if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).max // 3 if dtype.kind in "iu" else True


def _silence_at_exit() -> None:
    """Keep Triton's library from listing objects that Python has not released when the process ends."""
    import atexit

    def silence() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)

    atexit.register(silence)
