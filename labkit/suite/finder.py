"""Import finder: decides which file `from profiling import …` means, the student's, the solution or another one."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from packaging.version import Version

from labkit.labs.manifest import Lab
from labkit.suite.limits import MAX_TEST_SECONDS, TookTooLong, time_limit
from labkit.suite.source_text import read_source

MAX_BYTES = 1 << 20
"""How large a student's file may be, also where it is graded."""
IMPORT_SECONDS = min(30.0, MAX_TEST_SECONDS)
"""CPU seconds that importing a lab's module may take."""
OUT_OF_MEMORY = (
    *("not enough memory", "can't allocate memory", "out of memory"),
    *("Cannot allocate memory", "can't start new thread"),
)
"""The words of torch, and of the operating system."""


class Unusable(Exception):
    """A task is not available in the lab's module; the message is one line for the student."""


class TaskMissing(Unusable):
    """The file can be used but does not define the task."""


class ImportNeedsMemory(Unusable):
    """Importing the file needs more memory than there is."""


@dataclass(frozen=True)
class Source:
    """The file from which a lab's module is imported."""

    lab: Lab
    file: Path


def student_source(lab: Lab) -> Source:
    """The student's own file."""
    return Source(lab, lab.student_file)


class LabFinder(MetaPathFinder):
    """An entry for `sys.meta_path` that finds the labs' modules and nothing else.

    Args:
        loader: makes the loader of a source; by default its file is run. The grader's makes remote functions.
    """

    def __init__(self, sources: Sequence[Source], loader: Callable[[Source], Loader] | None = None) -> None:
        self.sources = {source.lab.module: source for source in sources}
        self.loader = loader

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A spec for a lab's module; None for every other name."""
        source = self.sources.get(name)
        if source is None:
            return None
        return importlib.util.spec_from_loader(name, (self.loader or SourceLoader)(source), origin=str(source.file))

    def install(self) -> None:
        """Become the first entry of `sys.meta_path`, and drop modules of these names that were imported before.

        The labs' environment variables are set here, unless they are set already: libraries are imported from now on.
        """
        for source in self.sources.values():
            for setting in source.lab.environment:
                name, _, value = setting.partition("=")
                os.environ.setdefault(name, value)
        sys.meta_path.insert(0, self)
        self._drop_modules()

    def remove(self) -> None:
        """Leave `sys.meta_path`, and drop the modules."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._drop_modules()

    def _drop_modules(self) -> None:
        for module in self.sources:
            sys.modules.pop(module, None)


class SourceLoader(Loader):
    """Runs a source's file. Any problem is raised by each task when it is used, so that every test has a result."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        file, lab = self.source.file, self.source.lab
        module.__file__ = str(file)
        problem = platform_problem(lab)
        unusable = Unusable(problem) if problem else _run(file, module.__dict__, lab)
        for task in lab.tasks:
            if unusable:
                setattr(module, task.name, UnusableTask(unusable))
            elif task.name not in module.__dict__:
                missing = f"{module.__name__}.py defines no {task.name}: was it renamed or deleted?"
                setattr(module, task.name, UnusableTask(TaskMissing(missing)))


class UnusableTask:
    """Replaces a function or class that is not available: any use raises an error like `error`."""

    def __init__(self, error: Unusable) -> None:
        self.__dict__.update(kind=type(error), args=error.args)

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise the error."""
        raise self.kind(*self.args)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.kind(*self.args)


def platform_problem(lab: Lab) -> str | None:
    """Why `lab` cannot run on this machine, as one line; None if it can."""
    if lab.platform and not sys.platform.startswith(lab.platform):
        return f"needs {lab.platform.capitalize()}, and this is {sys.platform}: open the course in its container"
    for needed in lab.libraries:
        name, _, least = needed.partition(">=")
        package = name.split(".")[0]
        if package == "labkit" or package in sys.stdlib_module_names:
            continue
        found = _installed(package)
        if not found:
            return missing_library(package)
        if least and Version(found) < Version(least):
            return f"needs {name} {least} or later, and there is {found} here: `uv sync` installs the course's version"
    return None


def missing_library(package: str) -> str:
    """That a library of the course is not installed, as one line."""
    return f"needs {package}, which is not installed: `uv sync` installs all that the course uses"


def file_problem(file: Path) -> str | None:
    """Why `file` cannot be read as Python, as one line; None if it can."""
    parsed = _parsed(file)
    return parsed if isinstance(parsed, str) else None


def untouched_tasks(lab: Lab) -> set[str]:
    """The tasks whose code in the student's file is still the stub's, found by reading it, without running anything."""
    tree = _parsed(lab.student_file)
    if isinstance(tree, str):
        return set()
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    bound += [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    stubs = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_stub(node)}
    return {task.name for task in lab.tasks if task.name in stubs and bound.count(task.name) == 1}


def needs_memory(error: BaseException) -> bool:
    """Whether an exception reports that memory is missing; torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def _installed(name: str) -> str:
    """The version of a library, without importing it; "" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _run(file: Path, namespace: dict[str, Any], lab: Lab) -> Unusable | None:
    """Execute `file` in `namespace`; returns what went wrong."""
    tree = _parsed(file)
    if isinstance(tree, str):
        return Unusable(tree)
    if imported := _forbidden_import(tree, lab):
        return Unusable(f"{file.name} imports {imported}: your code must work without the course's own tools")
    try:
        with time_limit(IMPORT_SECONDS):
            exec(compile(tree, str(file), "exec", dont_inherit=True), namespace)
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        return Unusable(_syntax_problem(file, error))
    except BaseException as error:
        return (ImportNeedsMemory if needs_memory(error) else Unusable)(_import_problem(file, error))
    return None


def _parsed(file: Path) -> ast.Module | str:
    """The syntax tree of `file`, or why there is none."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return f"{file.name} is larger than {MAX_BYTES >> 20} MiB: remove what your code does not need"
        return ast.parse(read_source(file), str(file))
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        return f"{file.name} is not {error.encoding.upper()} text: {error.reason} at byte {error.start}"
    except SyntaxError as error:
        return _syntax_problem(file, error)
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} cannot be read as Python: {error}"


def _is_stub(node: ast.stmt) -> bool:
    """Whether a function does nothing but raise NotImplementedError, or each function of a class."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return False
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if isinstance(node, ast.ClassDef):
        return bool(body) and all(map(_is_stub, body))
    return [ast.unparse(each) for each in body] == ["raise NotImplementedError()"]


def _syntax_problem(file: Path, error: SyntaxError) -> str:
    code = (error.text or "").strip()
    where = f" in line {error.lineno}" if error.lineno else ""  # for a NUL byte Python names none
    return f"{file.name} has a syntax error{where}: {error.msg}" + (f": {code}" if code else "")


def _forbidden_import(tree: ast.Module, lab: Lab) -> str | None:
    """The first module of labkit that the file may not import but does."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            if name.split(".")[0] == "labkit" and name not in lab.libraries:
                return name
    return None


def _import_problem(file: Path, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = ""
    if frames:
        code = f": {frames[-1].line}" if frames[-1].line else ""
        where = f" (line {frames[-1].lineno}{code})"
    if isinstance(error, TookTooLong):
        return f"importing {file.name} took too long: {error}{where}"
    lines = str(error).splitlines()
    message = f": {lines[0]}" if lines else ""
    return f"importing {file.name} failed: {type(error).__name__}{message}{where}"
