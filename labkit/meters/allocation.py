"""Counts what torch operators allocate on the CPU and in simulated (fake or `meta`) tensors, in bytes."""

import functools
import sys
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from labkit.meters.modes import OperatorMode
from labkit.meters.torch_private import (
    ENGINE,
    INDEX_PUT,
    CannotCount,
    active_fake_mode,
    active_modes,
    backward_number,
    current_node,
    is_view,
    node_number,
    plain_parts,
    qualified_name,
    storage_address,
)

RESIZE = "storage.resize_"
"""Stands for the operator where a storage changes its size without one."""
_LIFT_FRESH = torch.ops.aten.lift_fresh.default
_Tensor = torch.Tensor
_STRIDED = torch.strided
_CONTAINERS = (tuple, list, dict)


@dataclass(eq=False)
class Block:
    """One storage, counted once however many tensors view it.

    `shape` and `dtype` are those of the first tensor seen on the storage. `op` is the operator that made it
    (`aten::bmm`), `node` the autograd node that ran it (`ExpBackward0`), None in the forward pass. `name` is what
    `AllocationMeter.name` was told to call it.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    node: str | None
    name: str | None = None

    @property
    def label(self) -> str:
        """The given name; else the autograd node, if any, and the operator."""
        if self.name is not None:
            return self.name
        op = self.op.removeprefix("aten::")
        return op if self.node is None else f"{self.node}: {op}"


@dataclass
class Event:
    """The blocks alive right after `op`, with its operands: `live_bytes` is the sum over `blocks`."""

    op: str
    node: str | None
    live_bytes: int
    peak_bytes: int
    blocks: tuple[Block, ...]


class SimulatedOutOfMemoryError(torch.OutOfMemoryError):
    """More bytes were alive at once than the `capacity_bytes` a meter was given."""


class AllocationMeter(OperatorMode):
    """Counts the storages allocated between entering and leaving, in bytes.

    Every operator's outputs are looked up by storage, so views, in-place results and whatever existed before cost
    nothing. A storage counts from the operator that makes it until its last owner lets go, be that Python or an
    autograd node; after leaving, releases still count and new storages do not.

    `round_to` rounds each storage up, as an allocator does (512 for CUDA's; its habit of handing out a block up to
    1 MiB too large rather than splitting it is not simulated). `timeline=True` records an `Event` for each operator.
    `capacity_bytes` makes the operator that goes over it raise SimulatedOutOfMemoryError.

    While a dispatch mode looks on, autograd copies where it would else write in place: into the older of two gradients
    that meet at a fan-out, and into the zeros that the backward of `max` or `gather` scatters to. The meter undoes
    this: where autograd itself runs the operator and the older array is gone by the next one, the result counts in its
    place. Likewise the copy of a sparse gradient counts as the gradient itself.

    What it cannot see, and `torch.profiler` can: scratch inside a kernel that dispatches nothing (flash attention on
    the CPU, products of half-precision or of expanded matrices, some reductions), the state of the random generator
    that `torch.utils.checkpoint` sets aside, and the single number that a Python scalar becomes as an operand. The
    backward of a few other operators (`prod`) differs under a dispatch mode. On meta tensors a fused kernel
    is not simulated: `scaled_dot_product_attention` takes its plain form there.

    A storage may change its size without an operator (`tensor.untyped_storage().resize_(0)`, as FSDP does). That is
    an event of its own, `RESIZE`; while memory is copied, the old and the new are both alive. Tensors that were there
    before count from when they are resized, all of their new memory.

    A sparse, nested or wrapped tensor counts as the plain tensors that hold its memory. Under torch's FakeTensorMode
    the tensors of the CPU take the CPU's operators, fused kernels too, and count alike.

    Raises CannotCount for CUDA tensors (`CudaMeter` reads what they cost), fake ones too, and for tensors that show no
    storage (oneDNN's own layout).
    """

    def __init__(self, round_to: int = 1, timeline: bool = False, capacity_bytes: int | None = None) -> None:
        super().__init__()
        if round_to < 1:
            raise ValueError(f"round_to must be at least 1 byte, got {round_to}")
        self.round_to = round_to
        self.capacity_bytes = capacity_bytes
        self.events: list[Event] = []
        self._records = timeline
        self._alive: dict[int, _Held] = {}
        self._outside: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._live = self._peak = self._largest = 0
        self._engine = EngineWatch()
        self._pending: _Pending | None = None
        self._fake_mode: Any = None
        self._copies: Counter[Block] = Counter()

    def __enter__(self) -> Any:
        _watch_resizes()
        self._fake_mode = active_fake_mode()
        return super().__enter__()

    @property
    def live_bytes(self) -> int:
        """Bytes alive now, of those allocated inside."""
        self._catch_up()
        return self._live

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once since entering or since `reset`."""
        self._catch_up()
        return self._peak

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest single storage made since entering or since `reset`."""
        return self._largest

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What is alive now, oldest first."""
        self._catch_up()
        return tuple(dict.fromkeys(held.block for held in self._alive.values()))

    def reset(self) -> None:
        """Start the peak, the largest storage and the timeline again from what is alive now."""
        self._catch_up()
        self._peak, self._largest, self.events = self._live, 0, []

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The counted block of the tensor's storage; None if it existed before or is not counted."""
        return next(iter(self.blocks_of(tensor)), None)

    def blocks_of(self, tensor: torch.Tensor) -> list[Block]:
        """The counted blocks that hold the tensor; several for a sparse, nested or wrapped one."""
        addresses = [storage_address(part.untyped_storage()) for part in plain_parts(tensor)]
        return [self._alive[address].block for address in addresses if address in self._alive]

    def name(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Name the tensor's storage, in earlier events too; returns the tensor."""
        for block in self.blocks_of(tensor):
            block.name = name
        return tensor

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._has_wrappers and active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # a DTensor asks for the shape of a result
        self._catch_up()
        operands = _plain_tensors(args) + _plain_tensors(kwargs)
        for tensor in operands:
            self._note_outside(tensor.untyped_storage(), func)
        out = func(*args, **kwargs)
        self._engine.look()
        name = qualified_name(func)
        if self._engine.would_take_over(func, args):
            for older_part, tensor in zip(operands, _plain_tensors((out,)), strict=True):
                self._share(older_part.untyped_storage(), tensor.untyped_storage())
        for tensor in operands if out is None else _plain_tensors((out,)):  # without a result it may resize operands
            self._count(tensor, name)
        event = self._record(name)
        older = self._older(operands)
        if older is not None and self._engine.may_overwrite(func, operands, older.block, older.node_run):
            self._pending = _Pending(older, self._live, event)
        else:
            self._raise_peak(self._live, event)
        return out

    def _note_outside(self, storage: torch.UntypedStorage, func: Any) -> None:
        key = storage_address(storage)
        if key in self._alive or key in self._outside:
            return
        if func is _LIFT_FRESH and storage.resizable():
            return  # torch.tensor hands its new memory to lift_fresh, from_numpy borrowed one
        self._outside[key] = weakref.ref(storage, lambda _: self._outside.pop(key, None)), storage.nbytes()

    def _older(self, operands: list[torch.Tensor]) -> "_Held | None":
        """The storage that autograd's operator might overwrite, if autograd runs one."""
        if not operands or self._engine.node_name is None:
            return None
        return self._alive.get(storage_address(operands[0].untyped_storage()))

    def _count(self, tensor: torch.Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        key = storage_address(storage)
        if (known := self._alive.get(key)) is not None:
            if known.exact != storage.nbytes():
                self._let_go(self._take_in_size(known, storage))
            return
        if key in self._outside and self._outside[key][1] == storage.nbytes():
            return
        self._begin(storage, tuple(tensor.shape), str(tensor.dtype), op)

    def _begin(self, storage: torch.UntypedStorage, shape: tuple[int, ...], dtype: str, op: str) -> None:
        key, exact = storage_address(storage), storage.nbytes()
        self._outside.pop(key, None)
        block = Block(self._rounded(exact), shape, dtype, op, self._engine.node_name)
        self._alive[key] = _Held(
            weakref.ref(storage, lambda _: self._release(key)), exact, block, self._engine.node_run
        )
        self._add(block)

    def _share(self, older: torch.UntypedStorage, copy: torch.UntypedStorage) -> None:
        """Count a copy as the memory that it is a copy of: both are one without a dispatch mode."""
        key, held = storage_address(copy), self._alive.get(storage_address(older))
        if held is None:
            self._outside[key] = weakref.ref(copy, lambda _: self._outside.pop(key, None)), copy.nbytes()
        else:
            self._alive[key] = replace(held, storage=weakref.ref(copy, lambda _: self._release(key)))
            self._copies[held.block] += 1

    def _add(self, block: Block) -> None:
        self._on_alloc(block)
        self._live += block.nbytes
        self._largest = max(self._largest, block.nbytes)

    def _let_go(self, block: Block) -> None:
        self._live -= block.nbytes
        self._on_free(block)

    def _release(self, key: int) -> None:
        block = self._alive.pop(key).block
        if self._copies[block]:
            self._copies[block] -= 1
        else:
            self._let_go(block)

    def _on_alloc(self, block: Block) -> None:
        """For subclasses that follow every block: this one counts from now on."""

    def _on_free(self, block: Block) -> None:
        """For subclasses: this block no longer counts."""

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.round_to) * self.round_to

    def _record(self, op: str) -> Event | None:
        if not self._records:
            return None
        blocks = tuple(dict.fromkeys(held.block for held in self._alive.values()))
        self.events.append(Event(op, self._engine.node_name, self._live, self._peak, blocks))
        return self.events[-1]

    def _raise_peak(self, live_bytes: int, event: Event | None = None) -> None:
        self._peak = max(self._peak, live_bytes)
        if event is not None:
            event.peak_bytes = self._peak
        if self.capacity_bytes is not None and live_bytes > self.capacity_bytes:
            raise SimulatedOutOfMemoryError(f"{live_bytes:,} bytes alive, {self.capacity_bytes:,} bytes of memory")

    def _catch_up(self) -> None:
        """Settle a pending sum."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._settle(pending)

    def _take_in_size(self, held: "_Held", storage: torch.UntypedStorage) -> Block:
        """Count a storage's new size; returns the block of its old one, which still counts."""
        older = held.block
        held.exact = storage.nbytes()
        held.block = replace(older, nbytes=self._rounded(held.exact))
        self._add(held.block)
        return older

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that was resized without an operator."""
        self._catch_up()
        self._engine.look()
        held = self._alive.get(storage_address(storage))
        if held is None:
            self._begin(storage, (storage.nbytes(),), "torch.uint8", RESIZE)
            self._raise_peak(self._live, self._record(RESIZE))
            return
        older = self._take_in_size(held, storage)
        is_copied = held.exact > 0
        if not is_copied:
            self._let_go(older)
        event = self._record(RESIZE)
        if is_copied and event is not None:
            event.blocks = (older, *event.blocks)
        self._raise_peak(self._live, event)
        if is_copied:
            self._let_go(older)

    def _settle(self, pending: "_Pending") -> None:
        live_bytes, event = pending.live_bytes, pending.event
        if pending.older.storage() is None:  # it was the last owner's: without a dispatch mode the sum overwrites it
            live_bytes -= pending.older.block.nbytes
            if event is not None:
                event.live_bytes = live_bytes
                event.blocks = tuple(block for block in event.blocks if block is not pending.older.block)
        self._raise_peak(live_bytes, event)


@dataclass(slots=True)
class _Held:
    """A counted storage: its `exact` size when last read, in a block that may be rounded up."""

    storage: weakref.ref[torch.UntypedStorage]
    exact: int
    block: Block
    node_run: int


class _Pending(NamedTuple):
    """An operator's result; the next operator shows whether it replaces `older`."""

    older: _Held
    live_bytes: int
    event: Event | None


@functools.cache
def _watch_resizes() -> None:
    """Have storages report to this thread's meters when they are resized, once and for good.

    Meters of several threads come and go in any order, so none of them could undo this.
    """
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = resize(storage, size)
        if storage.nbytes() != before:
            for mode in active_modes():
                if isinstance(mode, AllocationMeter):
                    mode._resized(storage)
        return result

    torch.UntypedStorage.resize_ = resize_  # type: ignore


def _plain_tensors(tree: Any) -> list[torch.Tensor]:
    """The plain tensors that hold the tensors in nested tuples, lists and dicts, in order."""
    found: list[torch.Tensor] = []
    for leaf in tree.values() if isinstance(tree, dict) else tree:
        if type(leaf) is _Tensor and leaf.layout is _STRIDED and not leaf.is_nested:  # at every operator
            if not (leaf.is_cpu or leaf.is_meta):
                _refuse_other_devices(leaf)
            found.append(leaf)
        elif isinstance(leaf, _CONTAINERS):
            found += _plain_tensors(leaf)
        elif isinstance(leaf, _Tensor):
            _refuse_other_devices(leaf)
            found += plain_parts(leaf)
    return found


def _refuse_other_devices(tensor: torch.Tensor) -> None:
    if tensor.device.type not in ("cpu", "meta"):
        raise CannotCount(f"a tensor on {tensor.device}: read its allocator with CudaMeter, or measure on meta")


class EngineWatch:
    """Follows a backward pass from inside a dispatch mode; `look` once an operator, then ask.

    Holds no node: that would keep the node's saved tensors alive.
    """

    def __init__(self) -> None:
        self.node_name: str | None = None
        self.node_run = 0
        self._identity: tuple[int, str, int] | None = None
        self._feeds_one_edge_twice = False

    def look(self) -> None:
        """Record the running node; `node_run` increases each time it changes."""
        task = backward_number()
        node = current_node() if task != -1 else None
        identity = None if node is None else (task, node.name(), node_number(node))
        if identity == self._identity:
            return
        self._identity, self.node_run = identity, self.node_run + 1
        self.node_name = None if node is None else node.name()
        edges = [] if node is None else [(id(following), slot) for following, slot in node.next_functions if following]
        self._feeds_one_edge_twice = len(edges) != len(set(edges))

    def may_overwrite(self, operator: Any, operands: list[torch.Tensor], first: Block, first_run: int) -> bool:
        """Whether the result would reuse the first operand's block, if nothing else refers to that.

        True for autograd's own sum of the gradients that meet at a fan-out (in place unless `create_graph`), and for
        the backward of `max`, `gather` and their like, which scatter into zeros that they made a moment before.
        `first_run` is the node run that made the block. That it was the last to hold it, only the next operator tells.
        """
        if self._identity is None or torch.is_grad_enabled() or not _called_by_engine():
            return False
        if operator in _FILLING:
            return first.op in _ZEROS and first_run == self.node_run
        if operator is not torch.ops.aten.add.Tensor or len(operands) != 2:
            return False
        older, newer = operands
        if is_view(older) or older.shape != newer.shape or older.dtype != newer.dtype:
            return False  # a view's base holds the storage too
        return first_run != self.node_run or self._feeds_one_edge_twice

    def would_take_over(self, operator: Any, args: tuple[Any, ...]) -> bool:
        """Whether the result is a copy of a sparse gradient, which autograd keeps itself without a dispatch mode."""
        return (
            operator is torch.ops.aten.clone.default
            and self.node_name == "torch::autograd::AccumulateGrad"
            and args[0].layout is torch.sparse_coo
            and not torch.is_grad_enabled()
            and _called_by_engine()
        )


_ZEROS = ("aten::new_zeros", "aten::zeros", "aten::zeros_like")
_FILLING = (
    torch.ops.aten.scatter.src,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.index_add.default,
    torch.ops.aten.index_put.default,
    INDEX_PUT,
)


OF_MODES = ("__torch_dispatch__", "_see")
"""The methods of dispatch modes in which an operator runs."""


def _called_by_engine() -> bool:
    """Whether autograd called the operator, with nothing in Python but dispatch modes in between."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or frame.f_code.co_name in OF_MODES):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == ENGINE
