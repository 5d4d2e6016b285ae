"""Sums of what is alive at one step of a trace: by kind, by module, by line; and where two runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from labkit.meters.tracing import Life, Trace

OUTSIDE = "outside of modules"
THERE_BEFORE = "there before the run"


class Difference(NamedTuple):
    """The bytes of one line or module at the peaks of two runs."""

    name: str
    first_bytes: int
    second_bytes: int


def by_kind(trace: Trace, step: int) -> Counter[str]:
    """Bytes alive at a step, by kind of tensor."""
    return _sums(trace, step, lambda life: life.kind)


def by_module(trace: Trace, step: int) -> Counter[str]:
    """Bytes alive at a step, by the module that made or owns them; submodules count on their own."""
    return _sums(trace, step, lambda life: life.module or OUTSIDE)


def by_line(trace: Trace, step: int) -> Counter[str]:
    """Bytes alive at a step, by the line that made them: `function: text`, so that a line that moved is the same."""
    return _sums(trace, step, lambda life: line_of(trace, life))


def differences(first: Trace, second: Trace) -> dict[str, list[Difference]]:
    """Where two runs differ at their peaks, by "line" and by "module", the largest difference first."""
    return {
        "line": _differing(by_line(first, first.peak_step), by_line(second, second.peak_step)),
        "module": _differing(by_module(first, first.peak_step), by_module(second, second.peak_step)),
    }


def line_of(trace: Trace, life: Life) -> str:
    """The innermost line that made a tensor, by function and text; the pass where only torch called the operator."""
    if not life.op:
        return THERE_BEFORE
    lines = trace.stacks[life.stack].lines if life.stack is not None else ()
    if not lines:
        return {"backward": "the backward call", "optimizer": "the optimizer's step"}.get(
            trace.pass_at(life.born), life.op.removeprefix("aten::")
        )
    line = trace.lines[lines[0]]
    return f"{line.function}: {line.text or f'{line.file}:{line.number}'}"


def _sums(trace: Trace, step: int, key: Callable[[Life], str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for life in trace.lives:
        if life.alive_at(step):
            found[key(life)] += life.nbytes
    return found


def _differing(first: Counter[str], second: Counter[str]) -> list[Difference]:
    rows = [Difference(name, first[name], second[name]) for name in dict.fromkeys([*first, *second])]
    rows = [row for row in rows if row.first_bytes != row.second_bytes]
    return sorted(rows, key=lambda row: -abs(row.first_bytes - row.second_bytes))
