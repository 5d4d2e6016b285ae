"""The forms of attention that the labs give the benchmark: the solution's, or in a student's tree their own."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.finder import Answer, AnswerFinder, student_answer

if TYPE_CHECKING:
    import torch


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Lab 05's `FlashAttention.apply`: tiles, and a backward pass that computes the weights again."""
    return _module("05").FlashAttention.apply(q, k, v)


def checkpointed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Written-out attention under Lab 06's `checkpoint`: nothing kept, everything computed again at once."""
    from labkit.bench.variants import written_out

    return _module("06").checkpoint(written_out, q, k, v)


def _module(number: str) -> ModuleType:
    if number not in _MODULES:
        lab = find_lab(number)
        answer = Answer(lab, solution_file(lab))
        finder = AnswerFinder([answer if answer.file.exists() else student_answer(lab)])
        finder.install()
        try:
            _MODULES[number] = importlib.import_module(lab.module)
        finally:
            finder.remove()
    return _MODULES[number]


_MODULES: dict[str, ModuleType] = {}
