"""The labs' modules for the benchmark: the solution's, or in a student's tree their own."""

from __future__ import annotations

import importlib
from types import ModuleType

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.finder import LabFinder, Source, student_source


def lab_module(number: str) -> ModuleType:
    """The module of the lab with this number, imported once."""
    if number not in _MODULES:
        lab = find_lab(number)
        answer = Source(lab, solution_file(lab))
        finder = LabFinder([answer if answer.file.exists() else student_source(lab)])
        finder.install()
        try:
            _MODULES[number] = importlib.import_module(lab.module)
        finally:
            finder.remove()
    return _MODULES[number]


_MODULES: dict[str, ModuleType] = {}
