"""Follows every block of memory from the operator that made it to its release, with the line of code behind it."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.timeline import Block, Event

ENGINE = "_engine_run_backward"


@dataclass(frozen=True)
class Line:
    """A line of somebody's code. `file` is a name, not a path: a trace is shown to others."""

    file: str
    number: int
    function: str
    text: str


@dataclass(frozen=True)
class Step:
    """The moment after one operator has run, its operands still held.

    `node` is the autograd node that ran it, None in the forward pass. `line` is an index into `Trace.lines`: the line
    that ran the operator, or, if `for_gradient`, the line of the forward pass whose gradient it computes; None where no
    line of the traced code is behind it.
    """

    op: str
    node: str | None
    line: int | None
    for_gradient: bool
    live_bytes: int


@dataclass
class Life:
    """One storage: what it is, and the steps at which it is alive, `born` ≤ step < `died` (None: it outlived them)."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    node: str | None
    line: int | None
    born: int
    died: int | None = None

    def alive_at(self, step: int) -> bool:
        """Whether it counts at a step."""
        return self.born <= step and (self.died is None or step < self.died)


@dataclass
class Trace:
    """A run, operator by operator, and every block of memory that it made.

    `steps[i].live_bytes` is the sum of `nbytes` over the `lives` that are alive at step i. `forward_steps` is how many
    steps the forward pass took; the others are the backward pass'.
    """

    steps: list[Step] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    peak_bytes: int = 0
    forward_steps: int = 0

    @property
    def peak_step(self) -> int:
        """The first step with the most bytes alive."""
        return max(range(len(self.steps)), key=lambda i: self.steps[i].live_bytes, default=0)

    def alive_at(self, step: int) -> list[Life]:
        """What counts at a step, the largest first."""
        return sorted((life for life in self.lives if life.alive_at(step)), key=lambda life: -life.nbytes)


class TracingMeter(AllocationMeter):
    """An `AllocationMeter` that keeps a `Trace`: the same count, to the byte, but for memory resized by hand.

    Autograd numbers its nodes in the order in which the forward pass makes them, so an operator of the backward pass
    is told by the line of the forward pass whose gradient it computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._trace = Trace()
        self._life_of: dict[Block, Life] = {}
        self._lines: list[tuple[int | None, bool]] = []
        self._numbers: dict[Line, int] = {}
        self._line: tuple[int | None, bool] = (None, False)
        self._line_of_node: dict[int, int | None] = {}
        self._n_nodes = 0
        self._over = False

    def mark_forward_done(self) -> None:
        """What comes from now on is the backward pass."""
        self._trace.forward_steps = len(self.events)

    def finish(self) -> Trace:
        """The trace; what is released from now on outlived the run."""
        peak_bytes = self.peak_bytes  # judges the last operator
        self._over = True
        trace = self._trace
        trace.peak_bytes = peak_bytes
        trace.steps = [
            Step(e.op, e.node, *line, e.live_bytes) for e, line in zip(self.events, self._lines, strict=True)
        ]
        return trace

    def __enter__(self) -> TracingMeter:
        self._n_nodes = torch._C._autograd._get_sequence_nr()
        super().__enter__()
        return self

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._line = self._line_behind(sys._getframe(1))
        return super()._see(func, args, kwargs)

    def _record(self, op: str) -> Event:
        self.events.append(Event(op, self._engine.node_name, self._live, self._peak, ()))
        self._lines.append(self._line)
        return self.events[-1]

    def _came(self, block: Block) -> None:
        if not self._over:
            where = len(self.events)
            life = Life(block.nbytes, block.shape, block.dtype, block.op, block.node, self._line[0], where)
            self._life_of[block] = life
            self._trace.lives.append(life)

    def _went(self, block: Block) -> None:
        if not self._over:
            self._life_of[block].died = len(self.events)

    def _judge(self, pending: Any) -> None:
        super()._judge(pending)
        if pending.older.storage() is None:  # the sum took its place, in the last step so far
            self._life_of[pending.older.block].died = len(self.events) - 1

    def _line_behind(self, frame: FrameType | None) -> tuple[int | None, bool]:
        """The line of the traced code that is running, or whose gradient the engine is computing; and which of both."""
        in_engine = False
        while frame is not None and not _is_somebodys(frame.f_code.co_filename):
            in_engine = in_engine or frame.f_code.co_name == ENGINE
            frame = frame.f_back
        number = None if frame is None else self._number_of(frame)
        if not in_engine:
            made = torch._C._autograd._get_sequence_nr()
            self._line_of_node.update(dict.fromkeys(range(self._n_nodes, made), number))
            self._n_nodes = made
            return number, False
        node: Any = torch._C._current_autograd_node()
        known = self._line_of_node.get(node._sequence_nr()) if node is not None else None
        return (number, False) if known is None else (known, True)

    def _number_of(self, frame: FrameType) -> int:
        code = frame.f_code
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        line = Line(Path(code.co_filename).name, frame.f_lineno, code.co_name, text)
        if line not in self._numbers:
            self._numbers[line] = len(self._trace.lines)
            self._trace.lines.append(line)
        return self._numbers[line]


_OURS = tuple(str(Path(folder).resolve()) for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))
_PYTHONS = tuple(filter(None, map(sysconfig.get_paths().get, ("stdlib", "purelib", "platlib"))))


def _is_somebodys(file: str) -> bool:
    """Whether a file is neither Python's, nor installed, nor this course's."""
    return not file.startswith((*_OURS, *_PYTHONS, "<frozen"))
