"""The forms of attention that the benchmark compares; every `(..., N, d)` input gives `(..., N, d_v)`."""

import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType

import torch
from torch.nn import functional

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.finder import LabFinder, Source, student_source

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Namer = Callable[[str, torch.Tensor], torch.Tensor]


def attention_form(impl: str | Attention) -> Attention:
    """The form called `impl` (a key of FORMS), or `impl` itself if it can be called. Raises ValueError otherwise."""
    if callable(impl):
        return impl
    if impl not in FORMS:
        raise ValueError(f"impl {impl!r} is none of {', '.join(FORMS)}")
    return FORMS[impl]


def unnamed(_name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor unchanged; `AllocationMeter.name` can be used instead and labels it."""
    return tensor


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: Namer = unnamed) -> torch.Tensor:
    """Softmax as four operators, each with an N×N result that autograd or Python holds on to."""
    return name("output", written_out_softmax(_scores(q, k, name), name) @ v)


def built_in_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: Namer = unnamed) -> torch.Tensor:
    """Softmax as one operator: the scores are freed as soon as the weights exist."""
    return name("output", name("weights", _scores(q, k, name).softmax(-1)) @ v)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`scaled_dot_product_attention`, with the kernel that torch picks; on meta tensors its plain one."""
    return functional.scaled_dot_product_attention(q, k, v)


def checkpointed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Written-out attention under Lab 06's `checkpoint`: nothing kept, everything recomputed at once."""
    return _lab_module("06").checkpoint(written_out, q, k, v)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Lab 05's `FlashAttention.apply`: tiles, and a backward pass that recomputes the weights."""
    return _lab_module("05").FlashAttention.apply(q, k, v)


FORMS: dict[str, Attention] = {
    "written_out": written_out,
    "built_in": built_in_softmax,
    "sdpa": sdpa,
    "checkpointed": checkpointed,
    "flash": flash,
}


def written_out_softmax(scores: torch.Tensor, name: Namer = unnamed) -> torch.Tensor:
    """exp(x − max x) / Σ exp(x − max x) over the last axis, keeping every intermediate until the end."""
    shifted = name("shifted", scores - _row_maxima(scores, name))
    exponentials = name("exponentials", shifted.exp())
    return name("weights", exponentials / name("row_sums", exponentials.sum(-1, keepdim=True)))


def _scores(q: torch.Tensor, k: torch.Tensor, name: Namer) -> torch.Tensor:
    return name("scores", name("products", q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1]))


def _row_maxima(scores: torch.Tensor, name: Namer) -> torch.Tensor:
    values, positions = scores.max(-1, keepdim=True)
    name("argmax", positions)
    return name("row_maxima", values)


@functools.cache
def _lab_module(number: str) -> ModuleType:
    """A lab's module: the solution, or the student's file where there are no solutions."""
    lab = find_lab(number)
    answer = Source(lab, solution_file(lab))
    finder = LabFinder([answer if answer.file.exists() else student_source(lab)])
    finder.install()
    try:
        return importlib.import_module(lab.module)
    finally:
        finder.remove()
