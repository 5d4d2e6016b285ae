"""Decides which file `from profiling import …` means: the student's, the solution, or another answer."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
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

from labkit.labs.manifest import Lab
from labkit.suite.limits import GIVEN_SECONDS, TookTooLong, time_limit

IMPORT_SECONDS = min(30.0, GIVEN_SECONDS)
"""CPU seconds that importing an answer may take."""
OPEN_ROOMS = {"labkit.simulated_memory", "labkit.hierarchy", "labkit.ranks.comm", "labkit.ranks.threads"}


class AnswerMissing(Exception):
    """A task was asked for that the answer's file does not provide; the message is one line for the student."""


class TaskMissing(AnswerMissing):
    """The file can be used, and does not define the task."""


@dataclass(frozen=True)
class Answer:
    """Where a lab's module comes from: one file."""

    lab: Lab
    file: Path


def student_answer(lab: Lab) -> Answer:
    """What the student wrote."""
    return Answer(lab, lab.answer_file)


class AnswerFinder(MetaPathFinder):
    """An entry for `sys.meta_path` that serves the labs' modules and nothing else.

    Args:
        loader: given an answer, what to load in place of its file: a loader of stand-ins for what lives elsewhere.
    """

    def __init__(self, answers: Sequence[Answer], loader: Callable[[Answer], Loader] | None = None) -> None:
        self.answers = {answer.lab.module: answer for answer in answers}
        self.loader = loader

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A spec for a lab's module; None for every other name."""
        answer = self.answers.get(name)
        if answer is None:
            return None
        return importlib.util.spec_from_loader(name, (self.loader or AnswerLoader)(answer), origin=str(answer.file))

    def install(self) -> None:
        """Go first in `sys.meta_path`, and forget modules of these names that were imported before.

        What the labs ask of the environment is set, unless it is already: libraries may be imported from here on.
        """
        for answer in self.answers.values():
            for name, _, value in (setting.partition("=") for setting in answer.lab.environment):
                os.environ.setdefault(name, value)
        sys.meta_path.insert(0, self)
        self._forget()

    def remove(self) -> None:
        """Leave `sys.meta_path` and take the modules along."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._forget()

    def _forget(self) -> None:
        for module in self.answers:
            sys.modules.pop(module, None)


class AnswerLoader(Loader):
    """Runs an answer's file. What goes wrong is kept for the tests of the tasks, so that each is still judged."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        module.__file__ = str(self.answer.file)
        problem = platform_problem(self.answer.lab) or _run(self.answer.file, module.__dict__)
        for task in self.answer.lab.tasks:
            if problem:
                setattr(module, task.name, Absent(problem))
            elif task.name not in module.__dict__:
                setattr(module, task.name, Absent(not_defined(module.__name__, task.name), TaskMissing))


def platform_problem(lab: Lab) -> str | None:
    """Why nothing of `lab` can run on this machine, as one line; None where it can."""
    if lab.platform and not sys.platform.startswith(lab.platform):
        return f"needs {lab.platform.capitalize()}, and this is {sys.platform}: open the course in its container"
    for name, _, least in (needed.partition(">=") for needed in lab.libraries):
        found = _installed(name)
        if _numbers(found) < _numbers(least):
            return (
                f"needs {name} {least} or later, and there is {found or 'none'} here: `uv sync` brings the course's own"
            )
    return None


def _installed(name: str) -> str:
    """The version of a library, without importing it; "" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _numbers(version_text: str) -> tuple[int, ...]:
    """`3.10.1` as numbers, which compare as versions do."""
    return tuple(map(int, re.findall(r"\d+", version_text)[:3]))


def file_problem(file: Path) -> str | None:
    """Why `file` cannot even be read as Python, as one line; None where it can."""
    parsed = _parsed(file)
    return parsed if isinstance(parsed, str) else None


def _run(file: Path, namespace: dict[str, Any]) -> str | None:
    """Execute `file` in `namespace`; returns what went wrong as one line."""
    tree = _parsed(file)
    if isinstance(tree, str):
        return tree
    if borrowed := _borrowed_rooms(tree):
        return f"{file.name} imports {borrowed}: an answer stands by itself, without the course's own tools"
    try:
        with time_limit(IMPORT_SECONDS):
            exec(compile(tree, str(file), "exec", dont_inherit=True), namespace)
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        return _syntax_problem(file, error)
    except BaseException as error:
        return _import_problem(file, error)
    return None


def _parsed(file: Path) -> ast.Module | str:
    """The syntax of `file`, or what is wrong with it; a byte-order mark at its start is none of its text."""
    try:
        return ast.parse(file.read_text(encoding="utf-8-sig"), str(file))
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        return f"{file.name} is not UTF-8 text: {error.reason} at byte {error.start}"
    except SyntaxError as error:
        return _syntax_problem(file, error)
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} cannot be read as Python: {error}"


def _syntax_problem(file: Path, error: SyntaxError) -> str:
    code = (error.text or "").strip()
    return f"{file.name} has a syntax error in line {error.lineno}: {error.msg}" + (f": {code}" if code else "")


def _borrowed_rooms(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            if name.split(".")[0] == "labkit" and name not in OPEN_ROOMS:
                return name
    return None


def import_problem(file: str, error: str, said: str, line_number: int | None = None, code: str = "") -> str:
    """What keeps `file` from being imported, as one line: an error, what it says, and the line where it came up."""
    where = f" (line {line_number}{': ' + code if code else ''})" if line_number else ""
    first = said.splitlines()[0] if said else ""
    return f"importing {file} failed: {error}{': ' + first if first else ''}{where}"


def _import_problem(file: Path, error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file]
    where = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    if isinstance(error, TookTooLong):
        return f"importing {file.name} took too long: {error}{where}"
    last = frames[-1] if frames else None
    line_number, code = (last.lineno, last.line or "") if last else (None, "")
    return import_problem(file.name, type(error).__name__, str(error), line_number, code)


def not_defined(module: str, name: str) -> str:
    """What is said of a task that `module` does not define."""
    return f"{module}.py defines no {name}: was it renamed or deleted?"


class Absent:
    """Stands for a function or class that is not there; any use says why."""

    def __init__(self, reason: str, kind: type[AnswerMissing] = AnswerMissing) -> None:
        self.__dict__.update(reason=reason, kind=kind)

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise the reason."""
        raise self.kind(self.reason)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.kind(self.reason)
