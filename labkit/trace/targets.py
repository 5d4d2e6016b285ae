"""Finds the target of a trace (a function, a class, an instance, or a task of a lab) and makes its inputs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from labkit.labs.catalog import ROOT, UnknownLab, find_lab, find_task
from labkit.meters.torch_private import (
    FakeCopyMode,
    FakeTensor,
    active_fake_mode,
    tree_leaves,
    uncompiled,
    unset_fake_temporarily,
)
from labkit.trace.inputs import INPUTS, SEED, SHAPE, make_inputs
from labkit.trace.offer import can_be_traced
from labkit.trace.shapes import CannotTrace, Shape

Arguments = Sequence[Any] | Mapping[str, Any]


@dataclass
class Target:
    """A function or module, its name, and a function that makes its arguments from shapes."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Sequence[Shape]], Arguments]


def find_target(words: Sequence[str], *, init: str | None = None, factory: str | None = None) -> Target:
    """The target that one word, FILE:NAME, PACKAGE.MODULE:NAME or LAB:TASK, or two, LAB TASK, name.

    Under a FakeTensorMode files are loaded and modules made in that mode where they can be. Otherwise they are made
    with values, and fake tensors replace these.

    Args:
        init: arguments, as Python in the target's module: the target is called with them, and what that returns is
            traced. A class is called without arguments where none are given.
        factory: FILE:FUNCTION of a function that returns the target's arguments: a tuple, or a dict by name.

    Raises:
        CannotTrace: there is no such file, module or name, or it needs arguments.
        UnknownLab: there is no such lab or task.
    """
    torch.manual_seed(SEED)  # two runs of a model that routes by its values are the same
    where, _, name = ":".join(words).rpartition(":")
    if not where:
        raise CannotTrace(
            f"{name!r} is not a target: expected FILE:NAME, PACKAGE.MODULE:NAME, or a lab and its task, "
            "like 05 flash_forward"
        )
    is_file = where.endswith(".py") or Path(where).is_file()
    if not is_file and (len(words) > 1 or not _is_module(where)):
        target = _of_lab(where, name)
    else:
        module = _load_file(Path(where)) if is_file else _import(where)
        function = _made(_look_up(module, where, name), module, name, init)
        target = Target(name, function, lambda shapes: make_inputs(function, name, shapes))
    if factory:
        file, _, maker = factory.rpartition(":")
        make = _look_up(_load_file(Path(file or ".")), file, maker)
        target.inputs = lambda _shapes: _as_arguments(_simulated(_attempt(make)))
    return target


def find_optimizer(text: str) -> Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]:
    """Makes an optimizer of `torch.optim`: AdamW, or with arguments: SGD(momentum=0.9).

    Raises:
        CannotTrace: there is none of that name.
    """
    name, _, arguments = text.strip().partition("(")
    kind = getattr(torch.optim, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise CannotTrace(f"torch.optim has no optimizer {name!r}")
    arguments = arguments.removesuffix(")")
    return lambda parameters: eval(f"kind(parameters, {arguments})", {"kind": kind, "parameters": parameters})


def _of_lab(number: str, name: str) -> Target:
    lab = find_lab(number)
    task = find_task(lab, name)
    module = _load_file(lab.student_file)
    function = _made(_look_up(module, str(lab.student_file), task.name), module, task.name, None)
    if not can_be_traced(lab, task):
        raise CannotTrace(f"{lab.label} {task.name} has no inputs here: --inputs FILE:FUNCTION makes them")
    named = f"{lab.label} {task.name}"
    if maker := INPUTS.get(task.name):
        return Target(named, function, lambda shapes: maker(_one_shape(shapes)))
    return Target(named, function, lambda shapes: make_inputs(function, task.name, shapes))


def _one_shape(shapes: Sequence[Shape]) -> tuple[int, ...]:
    if len(shapes) > 1:
        raise CannotTrace("a task takes one --shape")
    return shapes[0].sizes if shapes else SHAPE


def _look_up(module: ModuleType, where: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise CannotTrace(f"{where} has no function, class or module {name!r}")
    return uncompiled(found)


def _made(found: Any, module: ModuleType, name: str, init: str | None) -> Any:
    """The function to trace: the target itself, or its result when it is called with `init`."""
    if isinstance(found, type) and issubclass(found, torch.autograd.Function):
        return found.apply
    if init is None and isinstance(found, type):
        _require_no_arguments(found, name)
        init = ""
    if init is not None:
        known = _Names(module)
        known["the_target"] = found
        found = _attempt(lambda: eval(f"the_target({init})", {"torch": torch}, known))
    found = uncompiled(found)
    if not callable(found):
        raise CannotTrace(f"{name} returned a {type(found).__name__}, which cannot be called")
    return _simulated(found)


def _require_no_arguments(found: type, name: str) -> None:
    try:
        signature = inspect.signature(found)
        signature.bind()
    except TypeError:
        raise CannotTrace(f"{name} needs arguments, {signature}: give its arguments with --init") from None
    except ValueError:  # made in C
        pass


class _Names(dict[str, Any]):
    """A module's names, looked up on use, since packages such as `transformers` load some lazily."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None


def _attempt(make: Callable[[], Any]) -> Any:
    """The result of `make`, run without the active FakeTensorMode if it fails in it, as code that needs values does."""
    if active_fake_mode() is None:
        return make()
    try:
        return make()
    except Exception:  # whatever is wrong otherwise is seen below
        with unset_fake_temporarily():
            return make()


def _simulated(made: Any) -> Any:
    """A copy of a module or of arguments with fake tensors for real ones, under a FakeTensorMode."""
    mode = active_fake_mode()
    parts = made.state_dict(keep_vars=True) if isinstance(made, torch.nn.Module) else made
    real = [leaf for leaf in tree_leaves(parts) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)]
    if mode is None or not real:
        return made
    with FakeCopyMode(mode):
        return copy.deepcopy(made)


def _is_module(where: str) -> bool:
    if not all(part.isidentifier() for part in where.split(".")):
        return False
    try:
        find_lab(where)
    except UnknownLab:
        return True
    return False


def _import(where: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.append("")  # the current folder, after what is installed
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.startswith(error.name):
            raise CannotTrace(f"there is no file, lab or installed package {where}") from None
        raise


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise CannotTrace(f"there is no file {file}")
    name = f"traced_{abs(hash((file.resolve(), id(active_fake_mode()))))}"
    if name in sys.modules:
        return sys.modules[name]
    folder, parts = file.resolve().parent, [file.stem]
    while (folder / "__init__.py").is_file():  # part of a package, which its relative imports need
        folder, parts = folder.parent, [folder.name, *parts]
    for path in (str(folder), str(ROOT)):
        if path not in sys.path:
            sys.path.append(path)
    if len(parts) > 1:
        return _attempt(lambda: importlib.import_module(".".join(parts)))
    return _attempt(lambda: _execute(name, file))


def _execute(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CannotTrace(f"{file} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _as_arguments(values: Any) -> Arguments:
    return values if isinstance(values, tuple | list | dict) else (values,)
