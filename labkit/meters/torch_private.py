"""The only module that uses torch's private names: operators, storages, autograd's nodes, dispatch modes, fake tensors.

All are looked up on import, so under a torch that lacks one this import fails, with a sentence that names it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class UnknownTorch(ImportError):
    """The installed torch lacks a private name that is needed here; the message is a sentence."""


try:
    from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch.utils import _python_dispatch
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
    from torch.utils._pytree import tree_leaves as tree_leaves

    ALLOCATION = torch._C._profiler._EventType.Allocation
    """The tag of the profiler's events in which the allocator gives or takes memory."""
    CALL_OF_MODULE = torch.nn.Module._call_impl.__code__
    """The code of each frame that calls a module, its `self`."""
    ENGINE = torch.autograd.graph._engine_run_backward.__name__
    """The name of the function that runs autograd's engine."""
    INDEX_PUT = torch.ops.aten._index_put_impl.default
    active_fake_mode: Callable[[], Any] = functools.partial(
        torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
    )
    """The FakeTensorMode of this thread, or None."""
    backward_number: Callable[[], int] = torch._C._current_graph_task_id
    """The number of the backward pass that this thread runs; -1 for none."""
    current_node: Callable[[], Any] = torch._C._current_autograd_node
    """The node that this thread's backward pass has reached, or None."""
    next_node_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
    """The number that the next node made in this thread will get."""
    _ = torch._C._profiler._RecordFunctionFast
    without_subclasses: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass
    """A context in which torch's functions do not call those of subclasses of tensors."""
    without_modes = _python_dispatch._disable_current_modes
    """A context in which this thread's dispatch modes see no operator."""
    active_modes: Callable[[], list[TorchDispatchMode]] = _python_dispatch._get_current_dispatch_mode_stack
    """This thread's dispatch modes, the outermost first."""
    is_wrapper_type: Callable[[type], bool] = _python_dispatch.is_traceable_wrapper_subclass_type
    """Whether tensors of a class hold their memory in other tensors, as a DTensor does."""
    is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view
    _NODE_NUMBER = torch.autograd.graph.Node._sequence_nr.__name__
    _ADDRESS = torch.UntypedStorage._cdata
    _COO = torch.Tensor._indices, torch.Tensor._values
    _NESTED = (
        torch.Tensor._nested_tensor_size,
        torch.Tensor._nested_tensor_strides,
        torch.Tensor._nested_tensor_storage_offsets,
    )
    _ = torch.ops.aten.add.Tensor._schema.is_mutable
except (ImportError, AttributeError) as error:
    raise UnknownTorch(
        f"torch {torch.__version__} has lost a private name that is needed here: {error}; "
        "labkit/meters/torch_private.py is where these names stand"
    ) from None


def seen_by_profiler_as(name: str) -> Any:
    """A context that `torch.profiler` records under this name."""
    return torch._C._profiler._RecordFunctionFast(name)  # looked up here: the class itself cannot be pickled


class CannotCount(RuntimeError):
    """A tensor whose memory no meter knows how to count; the message is one line."""


def storage_address(storage: torch.UntypedStorage) -> int:
    """The address of a storage itself, which stays the same when its memory moves."""
    return int(_ADDRESS.__get__(storage))


def node_number(node: Any) -> int:
    """An autograd node's place in the order in which its thread made them."""
    return int(getattr(node, _NODE_NUMBER)())


def schema_of(operator: Any) -> Any:
    """An operator's arguments and results, and which of them it writes to."""
    return operator._schema


@functools.cache  # asked at every operator
def qualified_name(operator: Any) -> str:
    """An operator's name, without that of its overload: `aten::add`."""
    return str(operator._schema.name)


def uncompiled(compiled: Any) -> Any:
    """The function or module inside what `torch.compile` returned; anything else itself."""
    return getattr(compiled, "_orig_mod", getattr(compiled, "_torchdynamo_orig_callable", compiled))


def without_compiler() -> AbstractContextManager[Any]:
    """A context in which compiled functions run uncompiled; without any, the compiler is not imported for it."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that hold a tensor's memory: itself, or the parts of a sparse, nested or wrapped one.

    Raises:
        CannotCount: it keeps its memory where torch shows none, as a tensor in oneDNN's own layout does.
    """
    wrapper: Any = tensor if is_wrapper_type(type(tensor)) else None
    if wrapper is None and tensor.layout is torch.strided and not tensor.is_nested:
        return [tensor]
    with without_modes(), torch.no_grad():
        if wrapper is not None:
            inner = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
            return [part for each in inner if isinstance(each, torch.Tensor) for part in plain_parts(each)]
        if tensor.layout is torch.sparse_coo:
            return [read(tensor) for read in _COO]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        if tensor.is_nested:
            return [tensor.values(), *(read(tensor) for read in _NESTED)]
    raise CannotCount(f"a tensor in the layout {tensor.layout} shows no memory to count")
