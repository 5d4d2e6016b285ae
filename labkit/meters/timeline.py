"""The records of a torch meter: one block of memory, and the moment after one operator."""

from dataclasses import dataclass


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
