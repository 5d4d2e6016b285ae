"""Makes the traces that chapters 2, 5 and 6 link to, in docs/_static/traces: `uv run python -m labstaff.traces`.

Labs 05's and 06's solutions are traced, so this needs `solutions/`. Of a solution's lines the pages show the function
and the number only: students read them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labkit.labs.catalog import find_lab, solution_file
from labkit.meters.torch_private import FakeTensorMode
from labkit.meters.tracing import Trace
from labkit.trace.page import page
from labkit.trace.record import record
from labkit.trace.targets import find_target

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static" / "traces"
SHAPE = (256, 32)
"""Positions and width of the attentions, one head."""
LAYERS, SEGMENTS, ACTIVATION = 16, 4, (64, 64)


def softmax_written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention whose softmax is four operators."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    shifted = scores - scores.max(-1, keepdim=True)[0]
    powers = shifted.exp()
    weights = powers / powers.sum(-1, keepdim=True)
    return weights @ v


def softmax_built_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same with torch's own softmax."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    return weights @ v


def plain_chain(functions: Sequence[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
    """The functions one after the other, everything kept."""
    for function in functions:
        x = function(x)
    return x


def simulated(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Trace:
    """The trace of a function on leaves of these shapes; a trace needs only sizes."""
    with FakeTensorMode():
        return record(function, [torch.empty(shape, requires_grad=True) for shape in shapes])


def solved(number: str, name: str) -> Callable[..., Any]:
    """A function of a lab's solution."""
    return find_target([f"{solution_file(find_lab(number))}:{name}"]).function


def without_text(trace: Trace) -> Trace:
    """A trace of a solution without the text of its lines."""
    return replace(trace, lines=[replace(line, text="") for line in trace.lines])


def step() -> list[tuple[str, Trace]]:
    """Chapter 2: one training step, its softmax in four operators and in one."""
    forms = {"softmax, written out": softmax_written_out, "softmax, built in": softmax_built_in}
    return [(name, simulated(form, SHAPE, SHAPE, SHAPE)) for name, form in forms.items()]


def attention() -> list[tuple[str, Trace]]:
    """Chapter 5: the textbook's attention, and Lab 05's solution."""
    textbook = simulated(softmax_built_in, SHAPE, SHAPE, SHAPE)
    flash = simulated(solved("05", "FlashAttention.apply"), SHAPE, SHAPE, SHAPE)
    return [("attention, weights kept", textbook), ("FlashAttention", without_text(flash))]


def chain() -> list[tuple[str, Trace]]:
    """Chapter 6: sixteen functions, kept and in four segments."""
    functions = [torch.tanh] * LAYERS
    kept = simulated(partial(plain_chain, functions), ACTIVATION)
    again = simulated(partial(solved("06", "checkpoint_sequential"), functions, SEGMENTS), ACTIVATION)
    return [(f"{LAYERS} functions, all kept", kept), (f"in {SEGMENTS} checkpointed segments", without_text(again))]


TRACES: dict[str, tuple[str, Callable[[], list[tuple[str, Trace]]]]] = {
    "02_step": ("02_measuring_memory", step),
    "05_attention": ("05_flash_attention", attention),
    "06_chain": ("06_recomputation", chain),
}
"""Each with the chapter that links to it and what makes it."""


def chapter_page(name: str) -> str:
    """The page of one of `TRACES`, which loads the viewer's files from labkit, or from the same place in the site."""
    chapter, make = TRACES[name]
    return page(
        make(), viewer="../../../labkit/trace/", back=(f"../../{chapter}.html", "Attention Labs: back to the chapter")
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in TRACES:
        (FOLDER / f"{name}.html").write_text(chapter_page(name), encoding="utf-8")
