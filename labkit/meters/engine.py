"""Which autograd node is running, and whether it would overwrite an operand if no dispatch mode were active."""

import sys
from typing import Any

import torch

from labkit.meters.timeline import Block


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
        task = torch._C._current_graph_task_id()
        node: Any = torch._C._current_autograd_node() if task != -1 else None
        identity = None if node is None else (task, node.name(), node._sequence_nr())
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
        if older._is_view() or older.shape != newer.shape or older.dtype != newer.dtype:
            return False  # a view's base holds the storage too
        return first_run != self.node_run or self._feeds_one_edge_twice


_ZEROS = ("aten::new_zeros", "aten::zeros", "aten::zeros_like")
_FILLING = (
    torch.ops.aten.scatter.src,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.index_add.default,
    torch.ops.aten.index_put.default,
    torch.ops.aten._index_put_impl.default,
)


OF_MODES = ("__torch_dispatch__", "_see")
"""The methods of dispatch modes in which an operator runs."""


def _called_by_engine() -> bool:
    """Whether autograd called the operator, with nothing in Python but dispatch modes in between."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or frame.f_code.co_name in OF_MODES):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
