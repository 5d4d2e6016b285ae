"""A plugin for one lab's suite: tries what a student's tree holds in the student's place, in its drawn, exact tests.

Tried are the public functions of labkit, and all of other labs' stubs.

Nothing of these tests passing, nothing is earned: see `labkit.suite.results.task_points`. `answer_of` is the answer to
be judged, whose every name stands for what is being tried. The file named by PASTING_RESULT gets a line for each test
that passed.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import pkgutil
import resource
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.labs.catalog import find_lab, find_labs, solution_file
from labkit.labs.manifest import Lab
from labkit.suite.limits import TookTooLong, time_limit
from labstaff.derive.build import derive_stub

ROOMS = ("labkit.testing", "labkit.meters", "labkit.serving", "labkit.bench", "labkit.simulated_memory")
"""What knows of attention and its memory. The others run suites and commands, and take no array."""

RESULT, LAB, CONTROL = "PASTING_RESULT", "PASTING_LAB", "the solution"
SECONDS = 10.0
"""CPU seconds that one candidate may take in one test."""
LARGEST_PROCESS = 3 << 30
"""Bytes; the suites themselves need less than one GiB."""


class Place:
    """Where a student's function or class would be; it does what `held` does, whatever that calls its arguments."""

    def __init__(self) -> None:
        self.held: Any = None
        self.signature: inspect.Signature | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.signature is None:
            return self.held(*args, **options)
        bound = self.signature.bind(*args, **options)
        return self.held(*bound.args, **bound.kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)


places: dict[str, Place] = {}


def modules_of(room: str) -> list[str]:
    """The names of a room's modules."""
    package = importlib.import_module(room)
    inside = pkgutil.walk_packages(getattr(package, "__path__", []), f"{room}.")
    return [module.name for module in inside] or [room]


def answer_of(lab: Lab) -> str:
    """The text of an answer whose tasks are places."""
    lines = [f"{task.name} = places.setdefault({task.name!r}, Place())" for task in lab.tasks]
    return "\n".join(["from pasting import Place, places", *lines, ""])


def candidates(signature: inspect.Signature | None) -> dict[str, Any]:
    """Public functions and classes that can be called with the arguments of `signature`; of a class's, all classes."""
    found = {}
    for room in ROOMS:
        for module in map(importlib.import_module, modules_of(room)):
            for name, value in vars(module).items():
                own = getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
                if own and (inspect.isclass(value) if signature is None else _accepts(value, signature)):
                    found[f"{module.__name__}.{name}"] = value
    return found | _of_stubs(signature)


def _of_stubs(signature: inspect.Signature | None) -> dict[str, Any]:
    """What other labs' stubs give away, private or not: whoever pastes can rename."""
    found = {}
    for lab in find_labs():
        if lab.draft or lab.label == os.environ[LAB]:
            continue
        text = derive_stub(lab)
        namespace: dict[str, Any] = {"__name__": f"stub_of_{lab.module}"}
        exec(compile(text, f"{lab.module}.py", "exec"), namespace)
        for name, value in namespace.items():
            own = getattr(value, "__module__", "") == namespace["__name__"]
            if own and (inspect.isclass(value) if signature is None else _accepts(value, signature)):
                found[f"{namespace['__name__']}.{name}"] = value
    return found


def _accepts(function: Callable[..., Any], signature: inspect.Signature) -> bool:
    if not callable(function):
        return False
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    for count in range(len(required), len(positional) + 1):
        try:
            inspect.signature(function).bind(*range(count))
        except (TypeError, ValueError):
            continue
        return True
    return False


def pytest_sessionstart() -> None:
    """What takes a size in bytes for a length would fill the machine before any limit of time can stop it."""
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_PROCESS, LARGEST_PROCESS))


@functools.cache
def _lab() -> Lab:
    return find_lab(os.environ[LAB])


@functools.cache
def _tried(task: str) -> dict[str, Any]:
    """What is tried in the place of a task: the candidates, and the solution's own, which shows that trying works."""
    solved = runpy.run_path(str(solution_file(_lab())))[task]
    return candidates(None if inspect.isclass(solved) else inspect.signature(solved)) | {CONTROL: solved}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the drawn tests of exact results, each with one set of parameters."""
    kept: dict[Any, pytest.Item] = {}
    for item in items:
        kind = item.get_closest_marker("kind")
        if isinstance(item, pytest.Function) and "rng" in item.fixturenames and (not kind or kind.args == ("exact",)):
            kept.setdefault((item.cls, item.originalname), item)
    items[:] = kept.values()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Call the test once with each candidate in its task's place, and note with which of them it passes."""
    task = next(task.name for task in _lab().tasks if task.tests == pyfuncitem.cls.__name__)
    place, solved = places[task], _tried(task)[CONTROL]
    place.signature = None if inspect.isclass(solved) else inspect.signature(solved)
    names = pyfuncitem._fixtureinfo.argnames
    for name, value in _tried(task).items():
        place.held = value
        given = {each: pyfuncitem.funcargs[each] for each in names}
        try:
            with time_limit(SECONDS):
                pyfuncitem.obj(**given | {"rng": copy.deepcopy(given["rng"])})
        except (Exception, SystemExit, TookTooLong, pytest.fail.Exception, pytest.skip.Exception):
            continue
        with Path(os.environ[RESULT]).open("a", encoding="utf-8") as file:
            file.write(f"{pyfuncitem.nodeid}[{name}]\n")
    return True
