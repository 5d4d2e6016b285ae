"""Follows every block of memory from the operator that made it to its release, with the code behind it."""

from __future__ import annotations

import contextlib
import linecache
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.meters.allocation import AllocationMeter, Block, Event
from labkit.meters.torch_private import (
    CALL_OF_MODULE,
    ENGINE,
    backward_number,
    current_node,
    next_node_number,
    node_number,
    plain_parts,
    seen_by_profiler_as,
    storage_address,
    tree_leaves,
)

MARK = "traced operator "
"""Begins the name under which `torch.profiler` sees an operator; the number of the step follows."""
THERE_BEFORE = ("parameter", "input", "before")
"""Kinds of blocks that were there before the run; they count in `Trace.before_bytes`, not in a step's bytes."""


@dataclass(frozen=True)
class Line:
    """A line of code. `file` is a name, not a path, since traces are shared."""

    file: str
    number: int
    function: str
    text: str


@dataclass(frozen=True)
class Stack:
    """Where an operator was called: indices into `Trace.lines`, the innermost first, and the module.

    `module` is a path that begins with the type of the outermost module, as torch's trackers have it: GPT.layers.0.
    """

    lines: tuple[int, ...]
    module: str = ""


@dataclass(frozen=True)
class Step:
    """The moment after one operator has run, its operands still held.

    `node` is the autograd node that ran it, None in the forward pass. `stack` is an index into `Trace.stacks`: the code
    that ran the operator, or, if `for_gradient`, the code of the forward pass whose gradient it computes; None where
    only torch itself called it. `live_bytes` are those of tensors made by the run, `workspace_bytes` what the operator
    needed in addition while it ran.
    """

    op: str
    node: str | None
    stack: int | None
    for_gradient: bool
    live_bytes: int
    workspace_bytes: int = 0


@dataclass
class Life:
    """One storage: what it is, and the steps at which it is alive, `born` ≤ step < `died` (None: it outlived them).

    `kind` is one of parameter, input, before (there before the run), gradient, optimizer state, activation (made in a
    forward pass and alive at its end), temporary, workspace (inside one operator), rest (many blocks together).
    `module` is that of the code that made it, or the one that owns the parameter; "" outside of all modules.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    node: str | None
    stack: int | None
    born: int
    died: int | None = None
    kind: str = ""
    name: str = ""
    module: str = ""

    def alive_at(self, step: int) -> bool:
        """Whether it counts at a step."""
        return self.born <= step and (self.died is None or step < self.died)


@dataclass(frozen=True)
class Pass:
    """Steps that belong together: "forward", "backward" or "optimizer", from the step `first` to the next pass."""

    name: str
    first: int


@dataclass
class Trace:
    """A run, operator by operator, and every block of memory that it made.

    `steps[i].live_bytes + steps[i].workspace_bytes` is the sum of `nbytes` over the `lives` that are alive at step i
    and were not there before. `notes` say what is not counted.
    """

    steps: list[Step] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def peak_step(self) -> int:
        """The first step with the most bytes alive."""
        return max(range(len(self.steps)), key=self.bytes_at, default=0)

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once, of those that the run allocated."""
        return self.bytes_at(self.peak_step) if self.steps else 0

    @property
    def before_bytes(self) -> int:
        """Bytes that were there before the run: parameters, buffers, inputs."""
        return sum(life.nbytes for life in self.lives if life.kind in THERE_BEFORE)

    def bytes_at(self, step: int) -> int:
        """Bytes alive at a step, of those that the run allocated."""
        return self.steps[step].live_bytes + self.steps[step].workspace_bytes

    def pass_at(self, step: int) -> str:
        """The name of the pass that a step belongs to."""
        return next((each.name for each in reversed(self.passes) if each.first <= step), "")

    def lives_by_birth(self) -> list[Life]:
        """All lives, the oldest first, beginning with what was there before."""
        return sorted(self.lives, key=lambda life: (life.born, life.kind not in THERE_BEFORE))

    def alive_at(self, step: int) -> list[Life]:
        """What is alive at a step, the largest first."""
        return sorted((life for life in self.lives if life.alive_at(step)), key=lambda life: -life.nbytes)


class TracingMeter(AllocationMeter):
    """An `AllocationMeter` that keeps a `Trace`: the same count, to the byte.

    Autograd numbers its nodes in the order in which the forward pass makes them, so an operator of the backward pass
    is attributed to the line of the forward pass whose gradient it computes. Every module that is called is found on
    the call stack, so its parameters and their gradients have names, and so does an optimizer's state after its step.
    Each operator runs under a name that `torch.profiler` records (`MARK` and the number of its step).
    """

    def __init__(self) -> None:
        super().__init__()
        self._trace = Trace()
        self._life_of: dict[Block, Life] = {}
        self._before: dict[int, Life] = {}
        self._places: list[tuple[int | None, bool]] = []
        self._pass_of: list[str] = []
        self._stack_numbers: dict[Stack, int] = {}
        self._line_numbers: dict[tuple[CodeType, int], int] = {}
        self._place: tuple[int | None, bool] = (None, False)
        self._stack_of_node: dict[int, int | None] = {}
        self._n_nodes = 0
        self._path_of_module: dict[int, str] = {}
        self._modules: list[torch.nn.Module] = []
        self._entered_from: CodeType | None = None
        self._in_pass: str | None = None
        self._over = False
        self._hooks = contextlib.ExitStack()

    def know_module(self, module: torch.nn.Module) -> None:
        """Name the parameters, buffers and submodules of `module`, and the gradients that its parameters will get."""
        if id(module) in self._path_of_module:
            return
        self._modules.append(module)  # or another could get its id
        root = type(module).__name__
        for path, each in module.named_modules():
            self._path_of_module[id(each)] = f"{root}.{path}" if path else root
        for name, parameter in module.named_parameters():
            self.know_leaf("parameter", name, parameter, _owner(root, name))
        for name, buffer in module.named_buffers():
            self._call_or_hold("parameter", f"{name} (buffer)", buffer, _owner(root, name))

    def know_leaf(self, kind: str, name: str, tensor: torch.Tensor, module: str = "") -> None:
        """Name a parameter or input that was there before, and the gradient that it will get."""
        self._call_or_hold(kind, name, tensor, module)
        if tensor.requires_grad and tensor.is_leaf:
            self._hooks.callback(tensor.register_post_accumulate_grad_hook(self._name_gradient(name, module)).remove)

    @contextlib.contextmanager
    def in_pass(self, name: str) -> Iterator[None]:
        """Count what runs inside as this pass, no matter what calls it."""
        before, self._in_pass = self._in_pass, name
        try:
            yield
        finally:
            self._in_pass = before

    def call(self, kind: str, name: str, tensor: torch.Tensor, module: str = "") -> None:
        """Name a tensor that the run has made, and the module that owns it; ignores other tensors."""
        for block in self.blocks_of(tensor):
            life = self._life_of[block]
            life.kind, life.name, life.module = kind, name, module or life.module

    def finish(self) -> Trace:
        """The finished trace; blocks released later count as outliving the run."""
        self._catch_up()  # settles the last operator
        self._over = True
        trace = self._trace
        trace.steps = [
            Step(e.op, e.node, *place, e.live_bytes) for e, place in zip(self.events, self._places, strict=True)
        ]
        first = 0
        for name, steps in groupby(self._pass_of):
            trace.passes.append(Pass(name, first))
            first += len(list(steps))
        _name_kinds(trace)
        return trace

    def __enter__(self) -> TracingMeter:
        self._n_nodes = next_node_number()
        self._entered_from = sys._getframe(1).f_code
        super().__enter__()
        for hook in (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace in ("profiler", "prim"):  # torch marks an optimizer's step, asks a fake tensor for its device
            return func(*args, **kwargs)
        self._place = self._place_of(sys._getframe(1))
        with seen_by_profiler_as(f"{MARK}{len(self.events)}"):
            return super()._see(func, args, kwargs)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        self._place = self._place_of(sys._getframe(1))
        super()._resized(storage)

    def _record(self, op: str) -> Event:
        self.events.append(Event(op, self._engine.node_name, self._live, self._peak, ()))
        self._places.append(self._place)
        in_backward = backward_number() != -1
        self._pass_of.append(self._in_pass or ("backward" if in_backward else "forward"))
        return self.events[-1]

    def _on_alloc(self, block: Block) -> None:
        if not self._over:
            where, stack = len(self.events), self._place[0]
            life = Life(block.nbytes, block.shape, block.dtype, block.op, block.node, stack, where)
            life.module = "" if stack is None else self._trace.stacks[stack].module
            self._life_of[block] = life
            self._trace.lives.append(life)

    def _on_free(self, block: Block) -> None:
        if not self._over:
            self._life_of[block].died = len(self.events)

    def _settle(self, pending: Any) -> None:
        super()._settle(pending)
        if pending.older.storage() is None:  # the sum took its place, in the last step so far
            self._life_of[pending.older.block].died = len(self.events) - 1

    def _call_or_hold(self, kind: str, name: str, tensor: torch.Tensor, module: str = "") -> None:
        for part in plain_parts(tensor):
            storage = part.untyped_storage()
            address = storage_address(storage)
            if address in self._alive:
                self.call(kind, name, part, module)
            elif address not in self._before:  # tied weights count once
                shape, dtype = tuple(part.shape), str(part.dtype)
                life = Life(storage.nbytes(), shape, dtype, "", None, None, 0, None, kind, name, module)
                self._before[address] = life
                self._trace.lives.append(life)

    def _name_gradient(self, name: str, module: str) -> Any:
        def name_it(leaf: torch.Tensor) -> None:
            if leaf.grad is not None:
                self.call("gradient", f"gradient of {name}", leaf.grad, module)

        return name_it

    def _before_optimizer(self, *_: Any) -> None:
        self._in_pass = "optimizer"

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._in_pass = None
        names = {
            id(parameter): (name, _owner(type(module).__name__, name))
            for module in self._modules
            for name, parameter in module.named_parameters()
        }
        for parameter, state in optimizer.state.items():
            name, owner = names.get(id(parameter), ("a parameter", ""))
            for key, value in state.items():
                for leaf in tree_leaves(value):  # LBFGS keeps lists
                    if isinstance(leaf, torch.Tensor):
                        self.call("optimizer state", f"{key} of {name}", leaf, owner)

    def _place_of(self, frame: FrameType | None) -> tuple[int | None, bool]:
        """The stack that is running, or whose gradient the engine is computing; and whether it is the latter."""
        lines: list[int] = []
        modules: list[torch.nn.Module] = []
        in_engine = False
        while frame is not None and frame.f_code is not self._entered_from:
            code = frame.f_code
            if code is CALL_OF_MODULE:
                modules.append(frame.f_locals["self"])
            elif code.co_name == ENGINE:
                in_engine = in_engine or not lines
            elif is_user_code(code.co_filename):
                lines.append(self._line_number(code, frame.f_lineno))
            frame = frame.f_back
        if modules and id(modules[0]) not in self._path_of_module:
            self.know_module(modules[-1])
        module = self._path_of_module.get(id(modules[0]), "") if modules else ""
        number = self._stack_number(Stack(tuple(lines), module)) if lines or module else None
        if not in_engine:
            made = next_node_number()
            self._stack_of_node.update(dict.fromkeys(range(self._n_nodes, made), number))
            self._n_nodes = made
            return number, False
        node = current_node()
        known = self._stack_of_node.get(node_number(node)) if node is not None else None
        return (number, False) if known is None else (known, True)

    def _stack_number(self, stack: Stack) -> int:
        if stack not in self._stack_numbers:
            self._stack_numbers[stack] = len(self._trace.stacks)
            self._trace.stacks.append(stack)
        return self._stack_numbers[stack]

    def _line_number(self, code: CodeType, number: int) -> int:
        if (code, number) not in self._line_numbers:
            self._line_numbers[code, number] = len(self._trace.lines)
            text = linecache.getline(code.co_filename, number).strip()
            self._trace.lines.append(Line(Path(code.co_filename).name, number, code.co_name, text))
        return self._line_numbers[code, number]


def _owner(root: str, name: str) -> str:
    """The module that owns a parameter of this name."""
    path = name.rpartition(".")[0]
    return f"{root}.{path}" if path else root


def _name_kinds(trace: Trace) -> None:
    """Give every life without a kind one: a block that is alive after a forward pass is an activation."""
    firsts = [each.first for each in trace.passes]
    ends = [*firsts[1:], len(trace.steps)]
    for life in trace.lives:
        if not life.kind:
            number = bisect_right(firsts, life.born) - 1
            outlives = life.died is None or life.died >= ends[number]
            is_activation = outlives and trace.passes[number].name == "forward"
            life.kind = "activation" if is_activation else "temporary"


_OURS = tuple(str(Path(folder).resolve()) for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


@cache
def is_user_code(file: str) -> bool:
    """Whether a file is neither Python's, nor torch's, nor this course's."""
    if file.startswith((*_OURS, "<frozen")):
        return False
    return not file.startswith(_STANDARD_LIBRARY) or "-packages" in file
